package config

import (
	"slices"
	"strconv"
	"strings"

	"hairpin/cluster"
)

// limitOptions returns the limits of addresses that Services may request, and which Services get
// addresses.
func limitOptions() []Option {
	return []Option{
		{"default", "reserved-node-ports",
			"ports and port ranges of node addresses, of every protocol, at which no Service is served " +
				"(externalIPs, load balancer addresses, NodePorts); empty = none",
			func(c *Config, v string) error { return setPorts(&c.Cluster.ReservedNodePorts, v) },
			func(c *Config) string { return getPorts(c.Cluster.ReservedNodePorts) }},
		limit("external-ip-ranges",
			"allowed ranges for spec.externalIPs of Services; empty = any address outside the "+
				"cluster; none = no address",
			func(c *Config) *cluster.AllowedRanges { return &c.Cluster.ExternalIPs }),
		limit("load-balancer-ranges",
			"allowed ranges for load balancer addresses of Services; empty = any address outside the "+
				"cluster; none = no address",
			func(c *Config) *cluster.AllowedRanges { return &c.Cluster.LoadBalancerIPs }),
		path("default", "load-balancer-class",
			"class (spec.loadBalancerClass) of the Services that get addresses of LoadBalancerPools",
			func(c *Config) *string { return &c.Cluster.LoadBalancer.Class }),
		{"default", "load-balancer-default",
			"Services of type LoadBalancer without a class also get addresses of LoadBalancerPools",
			func(c *Config, v string) error { return setBool(&c.Cluster.LoadBalancer.Default, v) },
			func(c *Config) string { return strconv.FormatBool(c.Cluster.LoadBalancer.Default) }},
	}
}

// nowhere is the limit that contains no address.
const nowhere = "none"

func limit(key, usage string, field func(*Config) *cluster.AllowedRanges) Option {
	return Option{"default", key, usage,
		func(c *Config, v string) error {
			l := cluster.AllowedRanges{Set: v != ""}
			if l.Set && v != nowhere {
				if err := setPrefixes(&l.Ranges, v); err != nil {
					return err
				}
			}
			*field(c) = l
			return nil
		},
		func(c *Config) string {
			if l := field(c); l.Set && len(l.Ranges) == 0 {
				return nowhere
			}
			return join(field(c).Ranges)
		}}
}

// setPorts reads numbers and ranges such as "22,2379-2381".
func setPorts(dst *cluster.PortRanges, v string) error {
	var list cluster.PortRanges
	for _, word := range strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' }) {
		r, err := cluster.ParsePortRange(word)
		if err != nil {
			return err
		}
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b cluster.PortRange) int { return int(a.First) - int(b.First) })
	*dst = list
	return nil
}

func getPorts(list cluster.PortRanges) string {
	var words []string
	for _, r := range list {
		words = append(words, r.String())
	}
	return strings.Join(words, ",")
}
