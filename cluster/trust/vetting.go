package trust

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/cluster/annotation"
	"hairpin/delta"
)

// Vetting vets the nodes of a cluster incrementally: the cost of a change depends on the claims of
// the changed nodes, not on the number of nodes. It is not safe for concurrent use.
type Vetting struct {
	own     string // the caller's node; empty: none
	subnets []cluster.ClusterSubnet
	nodes   []*cluster.Node
	claims  map[string]*nodeClaims // by node
	last    *Vetted

	ids         claimants[int]
	internalIPs claimants[netip.Addr]
	hosts       claimants[netip.Addr] // other accepted addresses
	networks    map[netip.Prefix]network
	ranges      map[netip.Prefix]string
	lengths     []int // of ranges, each once, ascending
	overlap     bool  // ranges of some nodes overlap, so all are assigned again after each change
	rejected    map[string][]cluster.Problem
	untrusted   map[string][]cluster.Problem

	// Of one call of Vet:
	changes   VettedChanges
	undecided map[string]bool // nodes to decide about
}

// nodeClaims is a Node with the state of its claims.
type nodeClaims struct {
	*cluster.Node
	hosts    []netip.Addr      // its keys in Vetting.hosts
	overlaps []cluster.Problem // of its ranges
}

// network is a network in which nodes have addresses.
type network struct {
	nodes int
	only  string // the name of the node, if nodes is 1
}

// NewVetting returns a Vetting without nodes, for a cluster whose pods have addresses of the
// subnets. The node named own, if any, keeps all it claims: it is the caller's. Among the others,
// the older one has precedence.
func NewVetting(own string, subnets []cluster.ClusterSubnet) *Vetting {
	return &Vetting{
		own: own, subnets: subnets, claims: map[string]*nodeClaims{}, last: &Vetted{},
		ids: newClaimants[int](), internalIPs: newClaimants[netip.Addr](), hosts: newClaimants[netip.Addr](),
		networks: map[netip.Prefix]network{},
		ranges:   map[netip.Prefix]string{}, rejected: map[string][]cluster.Problem{},
		untrusted: map[string][]cluster.Problem{},
	}
}

// Vet takes all nodes, sorted by name. It returns which of their claims are accepted, and the
// changes since the previous call. Later calls modify neither.
func (t *Vetting) Vet(nodes []*cluster.Node) (*Vetted, VettedChanges) {
	t.changes, t.undecided = VettedChanges{Hosts: map[netip.Addr]string{}, ranges: map[netip.Prefix]string{}},
		map[string]bool{}
	c := cluster.Compare(t.nodes, nodes, (*cluster.Node).Compare)
	t.nodes = nodes
	for _, n := range c.Removed {
		t.remove(n)
	}
	slices.SortFunc(c.Added, t.byPrecedence) // so that no node displaces an earlier one
	for _, n := range c.Added {
		t.add(n)
	}
	if t.overlap || slices.ContainsFunc(c.Added,
		func(n *cluster.Node) bool { return !t.assignRanges(t.claims[n.Name]) }) {
		t.assignAllRanges()
	}
	for name := range t.undecided {
		t.decide(name)
	}
	t.last = t.result()
	return t.last, t.changes
}

// byPrecedence compares nodes by precedence of their claims.
func (t *Vetting) byPrecedence(a, b *cluster.Node) int {
	switch isOwn := a.Name == t.own; {
	case isOwn == (b.Name == t.own):
		return a.CompareAge(b)
	case isOwn:
		return -1
	}
	return 1
}

// add registers all claims of a node except its ranges.
func (t *Vetting) add(n *cluster.Node) {
	t.claims[n.Name] = &nodeClaims{Node: n}
	t.undecided[n.Name] = true
	if n.ID != 0 {
		t.decideAgain(t.ids.put(n.ID, n, t.byPrecedence))
	}
	for _, a := range n.Addresses {
		t.recordHost(a)
		t.decideAgain(t.internalIPs.put(a, n, t.byPrecedence))
	}
	for _, m := range networks(n) {
		x := t.networks[m]
		if x.nodes++; x.nodes == 1 {
			x.only = n.Name
		} else if x.nodes == 2 {
			t.undecided[x.only] = true
		}
		t.networks[m] = x
	}
}

// remove removes all claims of a node.
func (t *Vetting) remove(n *cluster.Node) {
	c := t.claims[n.Name]
	delete(t.claims, n.Name)
	t.undecided[n.Name] = true
	if n.ID != 0 {
		t.decideAgain(t.ids.drop(n.ID, n))
	}
	for _, a := range n.Addresses {
		t.recordHost(a)
		t.decideAgain(t.internalIPs.drop(a, n))
	}
	t.dropHosts(c)
	for _, m := range networks(n) {
		x := t.networks[m]
		if x.nodes--; x.nodes == 0 {
			delete(t.networks, m)
			continue
		}
		if x.nodes == 1 {
			for _, o := range t.claims {
				if slices.Contains(networks(o.Node), m) {
					x.only = o.Name
				}
			}
			t.undecided[x.only] = true
		}
		t.networks[m] = x
	}
	for _, r := range n.PodCIDRs {
		if t.ranges[r] == n.Name {
			t.setRange(r, "")
		}
	}
}

// decideAgain marks nodes that lost or gained a claim.
func (t *Vetting) decideAgain(nodes []*cluster.Node) {
	for _, n := range nodes {
		t.undecided[n.Name] = true
	}
}

// recordHost records the previous node of an address whose node may change.
func (t *Vetting) recordHost(a netip.Addr) {
	if _, known := t.changes.Hosts[a]; !known {
		t.changes.Hosts[a] = t.last.Hosts.At(a)
	}
}

// setRange sets the node of a range; empty: none.
func (t *Vetting) setRange(r netip.Prefix, name string) {
	if _, known := t.changes.ranges[r]; !known {
		t.changes.ranges[r] = t.last.ranges.At(r)
	}
	if name == "" {
		delete(t.ranges, r)
		return
	}
	t.ranges[r] = name
	if i, found := slices.BinarySearch(t.lengths, r.Bits()); !found {
		t.lengths = slices.Insert(slices.Clone(t.lengths), i, r.Bits())
	}
}

// assignRanges assigns to a node those of its ranges that are free and within the pod subnets, and
// reports whether none overlaps another node's.
func (t *Vetting) assignRanges(c *nodeClaims) (disjoint bool) {
	var overlaps cluster.Problems
	for _, r := range c.PodCIDRs {
		if other, overlap := t.overlapping(r); other != "" {
			overlaps.Add(cluster.NodeOwner(c.Name), "spec.podCIDRs", "%s overlaps %s of node %s", r, overlap, other)
		} else if t.within(r) {
			t.setRange(r, c.Name)
		}
	}
	c.overlaps = overlaps.List()
	return len(c.overlaps) == 0
}

// assignAllRanges assigns the ranges of all nodes again, in order of precedence.
func (t *Vetting) assignAllRanges() {
	for r := range maps.Clone(t.ranges) {
		t.setRange(r, "")
	}
	t.overlap = false
	for _, n := range slices.SortedFunc(slices.Values(t.nodes), t.byPrecedence) {
		c := t.claims[n.Name]
		had := c.overlaps
		t.overlap = !t.assignRanges(c) || t.overlap
		if !slices.Equal(had, c.overlaps) {
			t.undecided[n.Name] = true
		}
	}
}

// overlapping returns the range that overlaps c, and its node. Of several, it is the widest; of
// several of the same width, the first.
func (t *Vetting) overlapping(c netip.Prefix) (name string, of netip.Prefix) {
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
			if r.Bits() == bits && c.Contains(r.Addr()) && (name == "" || r.Addr().Less(of.Addr())) {
				name, of = n, r
			}
		}
		if name != "" {
			break
		}
	}
	return name, of
}

// within reports whether a range is within the cluster's pod subnets.
func (t *Vetting) within(r netip.Prefix) bool {
	return slices.ContainsFunc(t.subnets, func(s cluster.ClusterSubnet) bool {
		return s.CIDR.Bits() <= r.Bits() && s.CIDR.Contains(r.Addr())
	})
}

// decide decides which claims of a node are accepted.
func (t *Vetting) decide(name string) {
	var rejected, untrusted []cluster.Problem
	if c := t.claims[name]; c != nil {
		if name != t.own {
			rejected = t.rejectedClaims(c)
		}
		untrusted = t.acceptHosts(c)
	}
	if (len(rejected) > 0) != (len(t.last.Rejected[name]) > 0) {
		t.changes.Rejected = append(t.changes.Rejected, name)
	}
	put(t.rejected, name, rejected)
	put(t.untrusted, name, untrusted)
}

// put sets a list, or deletes it if it is empty.
func put(m map[string][]cluster.Problem, name string, list []cluster.Problem) {
	if len(list) == 0 {
		delete(m, name)
	} else {
		m[name] = list
	}
}

// rejectedClaims returns the problems of a node's claims: those that other nodes have, and ranges
// outside the pod subnets.
func (t *Vetting) rejectedClaims(c *nodeClaims) []cluster.Problem {
	var rejected cluster.Problems
	problem := func(field, format string, args ...any) {
		rejected.Add(cluster.NodeOwner(c.Name), field, format, args...)
	}
	if first := t.ids.first[c.ID]; c.ID != 0 && first != c.Node {
		problem(annotation.Field(annotation.NodeID), "%d is the node ID of node %s", c.ID, first.Name)
	}
	for _, a := range c.Addresses {
		if first := t.internalIPs.first[a]; first != c.Node {
			problem("status.addresses", "%s is an address of node %s", a, first.Name)
		}
	}
	for _, r := range c.PodCIDRs {
		if !t.within(r) {
			problem("spec.podCIDRs", "%s is not within [default] cluster-subnets", r)
		}
	}
	return append(rejected.List(), c.overlaps...)
}

// acceptHosts decides which other addresses of a node are accepted, and returns the problems of the
// others. Accepted are the private ones (RFC 1918, RFC 4193), those in the network of an
// InternalIP, and those in a network that another node has as well. Otherwise a node could claim
// any address.
func (t *Vetting) acceptHosts(c *nodeClaims) []cluster.Problem {
	var untrusted cluster.Problems
	t.dropHosts(c)
	for _, p := range c.HostAddresses {
		a := p.Addr()
		if cluster.HostOnly(a) {
			continue
		}
		inKnown := func(q netip.Prefix) bool {
			return q.Contains(a) && (t.networks[q.Masked()].nodes > 1 || hasInternalIPIn(c.Node, q))
		}
		switch {
		case a.IsPrivate() || slices.ContainsFunc(c.HostAddresses, inKnown):
			t.recordHost(a)
			t.hosts.put(a, c.Node, t.byPrecedence)
			c.hosts = append(c.hosts, a)
		case t.internalIPs.first[a] != c.Node: // an InternalIP is accepted by itself
			untrusted.Add(cluster.NodeOwner(c.Name), annotation.Field(annotation.HostCIDRs),
				"%s is neither private nor in a network of other nodes: other nodes do not accept it", p)
		}
	}
	return untrusted.List()
}

// dropHosts removes the claims that acceptHosts accepted.
func (t *Vetting) dropHosts(c *nodeClaims) {
	for _, a := range c.hosts {
		t.recordHost(a)
		t.hosts.drop(a, c.Node)
	}
	c.hosts = nil
}

// networks returns the networks of a node's addresses, each once. A single address has none.
func networks(n *cluster.Node) (list []netip.Prefix) {
	for _, p := range n.HostAddresses {
		if m := p.Masked(); !p.IsSingleIP() && !cluster.HostOnly(p.Addr()) && !slices.Contains(list, m) {
			list = append(list, m)
		}
	}
	return list
}

// hasInternalIPIn reports whether an InternalIP of the node is in the network. A network that is
// wider than a site's does not count.
func hasInternalIPIn(n *cluster.Node, network netip.Prefix) bool {
	const site4, site6 = 16, 48
	if a := network.Addr(); a.Is4() && network.Bits() < site4 || a.Is6() && network.Bits() < site6 {
		return false
	}
	return slices.ContainsFunc(n.Addresses, network.Contains)
}

// result applies the changes to the previous result.
func (t *Vetting) result() *Vetted {
	v := *t.last
	v.Rejected, v.Untrusted = maps.Clone(t.rejected), nil
	for _, name := range slices.Sorted(maps.Keys(t.untrusted)) {
		v.Untrusted = append(v.Untrusted, t.untrusted[name]...)
	}
	host := func(a netip.Addr) string {
		if n := cmp.Or(t.internalIPs.first[a], t.hosts.first[a]); n != nil {
			return n.Name
		}
		return ""
	}
	maps.DeleteFunc(t.changes.Hosts, func(a netip.Addr, was string) bool { return host(a) == was })
	v.Hosts = updated(v.Hosts, t.changes.Hosts, host)
	maps.DeleteFunc(t.changes.ranges, func(r netip.Prefix, was string) bool { return t.ranges[r] == was })
	v.ranges, v.lengths = updated(v.ranges, t.changes.ranges, func(r netip.Prefix) string { return t.ranges[r] }),
		t.lengths
	return &v
}

// updated returns a map with new names for the changed keys; a key without a name is deleted.
func updated[K comparable](m delta.Map[K, string], changed map[K]string, name func(K) string) delta.Map[K, string] {
	d := delta.Delta[K, string]{Change: map[K]string{}, Delete: map[K]string{}}
	for k := range changed {
		if is := name(k); is != "" {
			d.Change[k] = is
		} else {
			d.Delete[k] = ""
		}
	}
	return d.ApplyToMap(m)
}

// claimants records keys that only one node can have, and the nodes that claim them.
type claimants[K comparable] struct {
	first  map[K]*cluster.Node
	others map[K][]*cluster.Node // in order
}

func newClaimants[K comparable]() claimants[K] {
	return claimants[K]{map[K]*cluster.Node{}, map[K][]*cluster.Node{}}
}

// put registers a node's claim, once or more often. It returns the nodes about which to decide
// again: the other claimants, if the node is the first now.
func (s *claimants[K]) put(k K, n *cluster.Node, order func(a, b *cluster.Node) int) (again []*cluster.Node) {
	switch first := s.first[k]; {
	case first == nil:
		s.first[k] = n
	case first == n:
	case order(n, first) < 0:
		s.first[k], s.others[k] = n, slices.Insert(s.others[k], 0, first)
		return s.others[k]
	default:
		if i, found := slices.BinarySearchFunc(s.others[k], n, order); !found {
			s.others[k] = slices.Insert(s.others[k], i, n)
		}
	}
	return nil
}

// drop removes a node's claim. It returns the nodes about which to decide again: the other
// claimants, if the node was the first.
func (s *claimants[K]) drop(k K, n *cluster.Node) (again []*cluster.Node) {
	others := s.others[k]
	switch {
	case s.first[k] != n:
		others = slices.DeleteFunc(others, func(m *cluster.Node) bool { return m == n })
	case len(others) == 0:
		delete(s.first, k)
	default:
		again = slices.Clone(others)
		s.first[k], others = others[0], others[1:]
	}
	if s.others[k] = others; len(others) == 0 {
		delete(s.others, k)
	}
	return again
}
