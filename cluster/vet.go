package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Vetted holds which claims of nodes about themselves are accepted. An attacker with the credentials of one kubelet can write
// anything into its Node: that must harm only that node.
type Vetted struct {
	// Refused has the problems of nodes that claim what belongs to another node or cannot belong to any. Other nodes send nothing to them.
	Rejected map[string][]Problem
	// Hosts are the addresses that other nodes accept as a node's, with the node's name.
	Hosts map[netip.Addr]string
	// Doubted are the problems of nodes with addresses that other nodes do not accept.
	Untrusted []Problem
	ranges    map[netip.Prefix]string // of pods, with the node's name
}

// Older orders nodes by which one keeps what both claim: the older, then the one with the lower UID.
func (n *Node) Older(m *Node) int {
	return cmp.Or(n.Created.Compare(m.Created), cmp.Compare(n.UID, m.UID), cmp.Compare(n.Name, m.Name))
}

// Vet compares the claims of all nodes. The node named first, if any, keeps whatever it claims: it is the caller's
// own node. Among the others the older one keeps it.
func Vet(nodes []*Node, first string, config *Config) *Vetted {
	v := &Vetted{Rejected: map[string][]Problem{}, Hosts: make(map[netip.Addr]string, 2*len(nodes))}
	byAge := slices.SortedFunc(slices.Values(nodes), func(a, b *Node) int {
		if c := cmp.Compare(boolInt(b.Name == first), boolInt(a.Name == first)); c != 0 {
			return c
		}
		return a.Older(b)
	})
	t := taken{ids: make(map[int]string, len(nodes)), ends: make(map[netip.Addr]string, 2*len(nodes)), ranges: make(map[netip.Prefix]string, 2*len(nodes))}
	for _, n := range byAge {
		p := nodeParser{node: n}
		t.take(&p, config)
		if len(p.problems) > 0 && n.Name != first {
			v.Rejected[n.Name] = p.problems
		}
	}
	v.ranges = t.ranges
	v.hosts(byAge)
	return v
}

// problems are those of all nodes, and of nodes that claim an address of an EgressIP.
func (v *Vetted) problems(nodes []*Node, egress map[netip.Addr]*EgressIP) []Problem {
	list := slices.Clone(v.Untrusted)
	for _, refused := range v.Rejected {
		list = append(list, refused...)
	}
	for _, n := range nodes {
		tell := func(a netip.Addr, annotation string) {
			if e := egress[a]; e != nil {
				list = append(list, Problem{nodeOwner(n.Name), "metadata.annotations[" + annotation + "]", fmt.Sprintf("%s is an address of %s", a, e.Owner)})
			}
		}
		for _, p := range n.HostAddresses {
			tell(p.Addr(), AnnotationHostCIDRs)
		}
		for _, a := range n.Gateway.NextHops {
			tell(a, AnnotationGateway)
		}
	}
	return list
}

// rangesOf names the nodes that have a range of addresses in one of the two only.
func (v *Vetted) rangesOf(w *Vetted) map[string]bool {
	names := map[string]bool{}
	if v == w {
		return names
	}
	had := map[netip.Prefix]string{}
	if v != nil {
		had = v.ranges
	}
	for _, pair := range [][2]map[netip.Prefix]string{{had, w.ranges}, {w.ranges, had}} {
		for c, name := range pair[0] {
			if pair[1][c] != name {
				names[name] = true
			}
		}
	}
	return names
}

// stray reports the addresses of a pod that are outside its node's range: a pod cannot have another node's addresses.
func (v *Vetted) stray(p *Pod, nodes map[Owner][]*Node) []Problem {
	var problems []Problem
	for i, ip := range p.IPs {
		for _, n := range nodes[nodeOwner(p.Node)] {
			c := n.PodCIDR(FamilyOf(ip))
			if c.IsValid() && !(c.Contains(ip) && v.ranges[c] == n.Name) {
				problems = append(problems, Problem{p.Owner, fmt.Sprintf("status.podIPs[%d].ip", i), fmt.Sprintf("%s is not in the pod CIDR of node %s", ip, n.Name)})
			}
		}
	}
	return problems
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// taken is what nodes claim and no two nodes may share.
type taken struct {
	ids     map[int]string
	ends    map[netip.Addr]string
	ranges  map[netip.Prefix]string
	lengths []int // of ranges, each once
}

// take reports what a node claims and others have. What is free is its own from then on, whether or not the rest is valid.
func (t *taken) take(p *nodeParser, config *Config) {
	n := p.node
	if other := t.ids[n.ID]; n.ID != 0 && other != "" {
		p.problem("metadata.annotations["+AnnotationNodeID+"]", "%d is the node ID of node %s", n.ID, other)
	} else if n.ID != 0 {
		t.ids[n.ID] = n.Name
	}
	for _, a := range n.Addresses {
		if other := t.ends[a]; other != "" {
			p.problem("status.addresses", "%s is an address of node %s", a, other)
		} else {
			t.ends[a] = n.Name
		}
	}
	for _, c := range n.PodCIDRs {
		switch other, overlap := t.overlap(c); {
		case other != "":
			p.problem("spec.podCIDRs", "%s overlaps %s of node %s", c, overlap, other)
		case !config.pods(c):
			p.problem("spec.podCIDRs", "%s is not within [default] cluster-subnets", c)
		default:
			t.ranges[c] = n.Name
			if !slices.Contains(t.lengths, c.Bits()) {
				t.lengths = append(t.lengths, c.Bits())
			}
		}
	}
}

// overlap finds a range that shares addresses with c, and its node.
func (t *taken) overlap(c netip.Prefix) (string, netip.Prefix) {
	for _, bits := range t.lengths {
		if bits > c.Addr().BitLen() {
			continue // of IPv6
		}
		if bits <= c.Bits() {
			wider := netip.PrefixFrom(c.Addr(), bits).Masked()
			if n := t.ranges[wider]; n != "" {
				return n, wider
			}
			continue
		}
		for r, n := range t.ranges {
			if r.Bits() == bits && c.Contains(r.Addr()) {
				return n, r
			}
		}
	}
	return "", netip.Prefix{}
}

// pods reports whether a range is within the pod ranges.
func (c *Config) pods(p netip.Prefix) bool {
	return slices.ContainsFunc(c.ClusterSubnets, func(s ClusterSubnet) bool {
		return s.CIDR.Bits() <= p.Bits() && s.CIDR.Contains(p.Addr())
	})
}

// hosts are the InternalIPs of nodes, and of their other addresses the private ones (RFC 1918, RFC 4193), those in the
// network of an InternalIP, and those in a network that another node has as well. Otherwise a node could claim any address in
// the world.
func (v *Vetted) hosts(byAge []*Node) {
	const shared = "*"
	networks := map[netip.Prefix]string{} // and whose, or shared
	for _, n := range byAge {
		for _, p := range n.HostAddresses {
			switch m := p.Masked(); {
			case p.IsSingleIP() || networks[m] == n.Name:
			case networks[m] == "":
				networks[m] = n.Name
			default:
				networks[m] = shared
			}
		}
	}
	for _, n := range byAge {
		for _, a := range n.Addresses {
			v.Hosts[a] = cmp.Or(v.Hosts[a], n.Name)
		}
	}
	for _, n := range byAge {
		for _, p := range n.HostAddresses {
			a := p.Addr()
			switch known := a.IsPrivate() || slices.ContainsFunc(n.HostAddresses, func(q netip.Prefix) bool {
				return q.Contains(a) && (networks[q.Masked()] == shared || n.hasInternalIPIn(q))
			}); {
			case known:
				v.Hosts[a] = cmp.Or(v.Hosts[a], n.Name)
			case v.Hosts[a] != n.Name:
				v.Untrusted = append(v.Untrusted, Problem{nodeOwner(n.Name), "metadata.annotations[" + AnnotationHostCIDRs + "]",
					fmt.Sprintf("%s is neither private nor in a network of other nodes: other nodes do not accept it", p)})
			}
		}
	}
}

// hasInternalIPIn reports whether an InternalIP of the node is in a network that is no wider than a site's.
func (n *Node) hasInternalIPIn(network netip.Prefix) bool {
	const site4, site6 = 16, 48
	if a := network.Addr(); a.Is4() && network.Bits() < site4 || a.Is6() && network.Bits() < site6 {
		return false
	}
	return slices.ContainsFunc(n.Addresses, network.Contains)
}
