// Package trust decides which claims of objects are accepted. Whoever can write an object of one
// Node, Service, Pod or pool must not take addresses of the cluster or of other objects.
//
// Input are the facts of a whole cluster and its configuration. Output are decisions, with the
// reason for each rejected claim:
//
//   - Vetted: which node has which ID, address and pod range.
//   - Guard: which addresses Services, endpoints, Pods and pools may have.
//   - Reserved: which addresses of pools no Service can get.
//
// Among objects with the same claim, the older one has precedence. Decisions depend only on facts,
// so that all nodes decide equally, except that a node accepts its own claims.
package trust

import (
	"fmt"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/cluster/annotation"
	"hairpin/delta"
)

// Vetted holds which claims of nodes about themselves are accepted. An attacker with the
// credentials of one kubelet can write anything into its Node: that must harm only that node.
type Vetted struct {
	// Rejected has the problems of nodes that claim what another node has or no node can have.
	// Other nodes send nothing to them.
	Rejected map[string][]cluster.Problem
	// Hosts are the addresses that other nodes accept as a node's, with the node's name.
	Hosts delta.Map[netip.Addr, string]
	// Untrusted are the problems of nodes with addresses that other nodes do not accept.
	Untrusted []cluster.Problem
	ranges    delta.Map[netip.Prefix, string] // of pods, with the node's name
	lengths   []int                           // of ranges, each once
}

// VettedChanges is what differs between two Vetted.
type VettedChanges struct {
	Rejected []string // nodes that are newly rejected or newly accepted
	// Hosts has the addresses whose node changed, with the previous node's name; "" is none.
	Hosts  map[netip.Addr]string
	ranges map[netip.Prefix]string // the same for pod ranges
}

// NodesOfRanges returns the names of the nodes that gained or lost a range.
func (c *VettedChanges) NodesOfRanges(v *Vetted) map[string]bool {
	names := map[string]bool{}
	for r, before := range c.ranges {
		names[before], names[v.ranges.At(r)] = true, true
	}
	return names
}

// Vet compares the claims of all nodes. The node named own, if any, keeps all it claims: it is the
// caller's. Among the others, the older one has precedence.
func Vet(nodes []*cluster.Node, own string, config *cluster.Config) *Vetted {
	v, _ := NewVetting(own, config.ClusterSubnets).Vet(nodes)
	return v
}

// Problems returns the problems of all nodes, including those of nodes that claim an address of an
// EgressIP.
func (v *Vetted) Problems(nodes []*cluster.Node, g *Guard) []cluster.Problem {
	list := slices.Clone(v.Untrusted)
	for _, refused := range v.Rejected {
		list = append(list, refused...)
	}
	if len(g.egress) == 0 {
		return list
	}
	var ofEgressIPs cluster.Problems
	for _, n := range nodes {
		check := func(a netip.Addr, name string) {
			if e := g.egress[a]; e != nil {
				ofEgressIPs.Add(cluster.NodeOwner(n.Name), annotation.Field(name), "%s is an address of %s", a,
					e.Owner)
			}
		}
		for _, p := range n.HostAddresses {
			check(p.Addr(), annotation.HostCIDRs)
		}
		for _, a := range n.Gateway.NextHops {
			check(a, annotation.Gateway)
		}
	}
	return append(list, ofEgressIPs.List()...)
}

// RangesArePerNode reports whether all changed ranges have the length of a node's part of a cluster
// subnet.
func (c *VettedChanges) RangesArePerNode(config *cluster.Config) bool {
	for r := range c.ranges {
		if !slices.ContainsFunc(config.ClusterSubnets,
			func(s cluster.ClusterSubnet) bool { return s.CIDR.Contains(r.Addr()) && s.HostLength == r.Bits() }) {
			return false
		}
	}
	return true
}

// MayBeReserved reports whether a node can have a pod range in which the address is not for pods:
// whether it is the first or second of a part, of the size of a node's range, of a cluster subnet.
func MayBeReserved(a netip.Addr, c *cluster.Config) bool {
	return slices.ContainsFunc(c.ClusterSubnets, func(s cluster.ClusterSubnet) bool {
		used := reservedIn(netip.PrefixFrom(a, s.HostLength).Masked())
		return s.CIDR.Contains(a) && (a == used[0] || a == used[1])
	})
}

// ForeignAddresses returns a problem for each address of a pod outside the range of its node n.
func (v *Vetted) ForeignAddresses(p *cluster.Pod, n *cluster.Node) []cluster.Problem {
	var problems []cluster.Problem
	for i, ip := range p.IPs {
		c := n.PodCIDR(cluster.FamilyOf(ip))
		if c.IsValid() && !(c.Contains(ip) && v.ranges.At(c) == n.Name) {
			problems = append(problems, cluster.Problem{
				Owner: p.Owner, Field: fmt.Sprintf("status.podIPs[%d].ip", i),
				Message: fmt.Sprintf("%s is not in the pod CIDR of node %s", ip, n.Name),
			})
		}
	}
	return problems
}

// reserved returns the use of an address in a node's range that is not for pods; empty if it is for
// pods.
func (v *Vetted) reserved(a netip.Addr) string {
	for _, bits := range v.lengths {
		c, err := a.Prefix(bits)
		if err != nil || v.ranges.At(c) == "" { // of another family, or of no node
			continue
		}
		switch used := reservedIn(c); a {
		case used[0]:
			return "the cluster router's"
		case used[1]:
			return "ovn-k8s-mp0's"
		}
	}
	return ""
}

// reservedIn returns the addresses of the cluster router and of ovn-k8s-mp0 in a node's range.
func reservedIn(c netip.Prefix) [2]netip.Addr {
	router := c.Addr().Next()
	return [2]netip.Addr{router, router.Next()}
}
