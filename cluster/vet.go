package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"hairpin/delta"
)

// Vetted holds which claims of nodes about themselves are accepted. An attacker with the
// credentials of one kubelet can write anything into its Node: that must harm only that node.
type Vetted struct {
	// Rejected has the problems of nodes that claim what another node has or no node can have.
	// Other nodes send nothing to them.
	Rejected map[string][]Problem
	// Hosts are the addresses that other nodes accept as a node's, with the node's name.
	Hosts delta.Map[netip.Addr, string]
	// Untrusted are the problems of nodes with addresses that other nodes do not accept.
	Untrusted []Problem
	ranges    delta.Map[netip.Prefix, string] // of pods, with the node's name
	lengths   []int                           // of ranges, each once
}

// VettedChanges is what differs between two Vetted.
type VettedChanges struct {
	Rejected []string // nodes that are newly rejected or newly accepted
	// addresses whose node changed, with the previous node's name; "" is none
	Hosts  map[netip.Addr]string
	ranges map[netip.Prefix]string // the same for ranges
}

// rangesOf returns the names of the nodes that gained or lost a range.
func (c *VettedChanges) rangesOf(v *Vetted) map[string]bool {
	names := map[string]bool{}
	for r, before := range c.ranges {
		names[before], names[v.ranges.At(r)] = true, true
	}
	return names
}

// Older orders nodes by precedence for what both claim: the older first, then the one with the
// lower UID.
func (n *Node) Older(m *Node) int {
	return cmp.Or(n.Created.Compare(m.Created), cmp.Compare(n.UID, m.UID), cmp.Compare(n.Name, m.Name))
}

// Vet compares the claims of all nodes. The node named own, if any, keeps all it claims: it is
// the caller's. Among the others, the older one has precedence.
func Vet(nodes []*Node, own string, config *Config) *Vetted {
	v, _ := NewVetting(own, config.ClusterSubnets).Vet(nodes)
	return v
}

// problems returns the problems of all nodes, including those of nodes that claim an address of an
// EgressIP.
func (v *Vetted) problems(nodes []*Node, egress map[netip.Addr]*EgressIP) []Problem {
	list := slices.Clone(v.Untrusted)
	for _, refused := range v.Rejected {
		list = append(list, refused...)
	}
	if len(egress) == 0 {
		return list
	}
	var claimed Problems
	for _, n := range nodes {
		check := func(a netip.Addr, annotation string) {
			if e := egress[a]; e != nil {
				claimed.Add(nodeOwner(n.Name), "metadata.annotations["+annotation+"]", "%s is an address of %s", a,
					e.Owner)
			}
		}
		for _, p := range n.HostAddresses {
			check(p.Addr(), AnnotationHostCIDRs)
		}
		for _, a := range n.Gateway.NextHops {
			check(a, AnnotationGateway)
		}
	}
	return append(list, claimed.List()...)
}

// arePerNode reports whether all changed ranges are per-node parts of the cluster's subnets.
func (c *VettedChanges) arePerNode(config *Config) bool {
	for r := range c.ranges {
		if !slices.ContainsFunc(config.ClusterSubnets,
			func(s ClusterSubnet) bool { return s.CIDR.Contains(r.Addr()) && s.HostLength == r.Bits() }) {
			return false
		}
	}
	return true
}

// mayBeReserved reports whether an address would be reserved if a node had the per-node part of the
// cluster's subnet that contains it.
func (c *Config) mayBeReserved(a netip.Addr) bool {
	return slices.ContainsFunc(c.ClusterSubnets, func(s ClusterSubnet) bool {
		own := reservedIn(netip.PrefixFrom(a, s.HostLength).Masked())
		return s.CIDR.Contains(a) && (a == own[0] || a == own[1])
	})
}

// foreignAddresses reports the addresses of a pod that are outside its node's range: a pod cannot
// have another node's addresses.
func (v *Vetted) foreignAddresses(p *Pod, nodes map[Owner][]*Node) []Problem {
	var problems []Problem
	for i, ip := range p.IPs {
		for _, n := range nodes[nodeOwner(p.Node)] {
			c := n.PodCIDR(FamilyOf(ip))
			if c.IsValid() && !(c.Contains(ip) && v.ranges.At(c) == n.Name) {
				problems = append(problems, Problem{
					Owner: p.Owner, Field: fmt.Sprintf("status.podIPs[%d].ip", i),
					Message: fmt.Sprintf("%s is not in the pod CIDR of node %s", ip, n.Name),
				})
			}
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
		switch own := reservedIn(c); a {
		case own[0]:
			return "the cluster router's"
		case own[1]:
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
