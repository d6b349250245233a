package config

import (
	"net/netip"
	"slices"

	"hairpin/cluster"
)

// serviceOptions returns the options that restrict the ports and addresses of Services, and those
// that select the Services which get addresses of LoadBalancerPools.
func serviceOptions() []Option {
	return []Option{
		{"default", "reserved-node-ports",
			"ports and port ranges of node addresses, of every protocol, at which no Service is served " +
				"(externalIPs, load balancer addresses, NodePorts); empty = none",
			func(c *Config, v string) error { return setPorts(&c.Cluster.ReservedNodePorts, v) },
			func(c *Config) string { return join(c.Cluster.ReservedNodePorts) }},
		allowedRanges("external-ip-ranges",
			"allowed ranges for spec.externalIPs of Services; empty = any address outside the "+
				"cluster; none = no address",
			func(c *Config) *cluster.AllowedRanges { return &c.Cluster.ExternalIPs }),
		allowedRanges("load-balancer-ranges",
			"allowed ranges for load balancer addresses of Services; empty = any address outside the "+
				"cluster; none = no address",
			func(c *Config) *cluster.AllowedRanges { return &c.Cluster.LoadBalancerIPs }),
		requiredText("default", "load-balancer-class",
			"class (spec.loadBalancerClass) of the Services that get addresses of LoadBalancerPools",
			func(c *Config) *string { return &c.Cluster.LoadBalancer.Class }),
		boolean("default", "load-balancer-default",
			"Services of type LoadBalancer without a class also get addresses of LoadBalancerPools",
			func(c *Config) *bool { return &c.Cluster.LoadBalancer.Default }),
	}
}

// noAddress is the value of allowedRanges that allows no address.
const noAddress = "none"

// allowedRanges returns an option of section [default]. If it is empty, it does not restrict
// addresses.
func allowedRanges(key, usage string, field func(*Config) *cluster.AllowedRanges) Option {
	return Option{"default", key, usage,
		func(c *Config, v string) error {
			l := cluster.AllowedRanges{Set: v != ""}
			if l.Set && v != noAddress {
				if err := setPrefixes(&l.Ranges, v); err != nil {
					return err
				}
			}
			*field(c) = l
			return nil
		},
		func(c *Config) string {
			if l := field(c); l.Set && len(l.Ranges) == 0 {
				return noAddress
			}
			return join(field(c).Ranges)
		}}
}

// setPorts reads numbers and ranges such as "22,2379-2381".
func setPorts(dst *cluster.PortRanges, v string) error {
	var list cluster.PortRanges
	for _, t := range splitList(v) {
		r, err := cluster.ParsePortRange(t)
		if err != nil {
			return err
		}
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b cluster.PortRange) int { return int(a.First) - int(b.First) })
	*dst = list
	return nil
}

// primaryAddresses is the value for the Node's InternalIPs in a list of addresses for NodePorts.
const primaryAddresses = "primary"

// setNodePortAddresses reads ranges and primaryAddresses, in any order.
func setNodePortAddresses(dst *cluster.NodePortAddresses, v string) error {
	var n cluster.NodePortAddresses
	for _, t := range splitList(v) {
		if t == primaryAddresses {
			n.Primary = true
			continue
		}
		p, err := parsePrefix(t)
		if err != nil {
			return err
		}
		n.Ranges = append(n.Ranges, p)
	}
	slices.SortFunc(n.Ranges, netip.Prefix.Compare)
	n.Ranges = slices.Compact(n.Ranges)
	*dst = n
	return nil
}

func getNodePortAddresses(n *cluster.NodePortAddresses) string {
	ranges := join(n.Ranges)
	switch {
	case !n.Primary:
		return ranges
	case ranges == "":
		return primaryAddresses
	}
	return primaryAddresses + "," + ranges
}
