// Package assign decides for the whole cluster: which node has which number, which node carries
// which egress address, and whose the pods are that several EgressIPs select. It is pure, as
// package plan is.
package assign

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"hairpin/cluster"
)

// Rules is what Addresses is told beside the Snapshot.
type Rules struct {
	// Unreachable are nodes that answer no probe.
	Unreachable map[string]bool
}

// Decision is what Addresses decided for one EgressIP.
type Decision struct {
	EgressIP *cluster.EgressIP
	Items    []cluster.Assignment // sorted
	Refused  []Refusal            // the other addresses, as in the spec, and those on nodes that do not answer
}

// Reasons of Refusals and of Events on EgressIPs, the words of OVN-Kubernetes.
const (
	ReasonNoNode      = "NoMatchingNodeFound" // no node may carry it
	ReasonUnsupported = "UnsupportedRequest"  // no node can have it as things are
	ReasonTooFewNodes = "UnassignedRequest"   // the nodes that could have another address of the same EgressIP
)

// Refusal says why an address has no node.
type Refusal struct {
	Address netip.Addr
	Reason  string // one of the constants
	Message string
}

// Addresses decides which node carries which egress address, in the order of s.EgressIPs. It is a
// function of the Snapshot alone, in which the decisions of before stand as Assigned: they stay
// while they are good. What needs a node gets the one that carries least. A node that is about to
// leave is left as soon as there is another, and not before. One that only seems to be dead keeps
// what it has while the EgressIP has no other address of the family: else its pods would leave with
// another source.
func Addresses(s *cluster.Snapshot, rules Rules) []Decision {
	a := newAssigner(s, rules)
	for _, e := range a.byAge {
		if e.Service != nil {
			a.host(e)
		}
	}
	for _, e := range a.byAge {
		if e.Service == nil {
			a.keep(e, e.Assigned, (*egressNode).stays)
		}
	}
	for _, e := range a.byAge {
		if e.Service == nil {
			a.place(e)
		}
	}
	out := make([]Decision, len(s.EgressIPs))
	for i, e := range s.EgressIPs {
		out[i] = a.outcome(e)
	}
	return out
}

// assigner is Addresses at work.
type assigner struct {
	rules Rules
	byAge []*cluster.EgressIP
	nodes map[string]*egressNode
	list  []*egressNode         // by name, those with the label
	all   []*egressNode         // by name, where there are EgressServices
	whys  map[string]string     // by node, why it cannot carry anything now
	hosts map[netip.Addr]string // InternalIPs, and whose
	hops  []netip.Addr          // default gateways, as the administrator names them
	taken map[netip.Addr]*cluster.EgressIP
	items map[*cluster.EgressIP][]cluster.Assignment
}

// egressNode is a node that carries addresses or could.
type egressNode struct {
	node     *cluster.Node
	networks []cluster.Network // longest prefix first
	why      string            // it cannot carry anything now; empty when it can
	load     int
}

func newAssigner(s *cluster.Snapshot, rules Rules) *assigner {
	a := &assigner{
		rules: rules, byAge: slices.SortedFunc(slices.Values(s.EgressIPs), (*cluster.EgressIP).Older),
		nodes: map[string]*egressNode{}, whys: map[string]string{}, hosts: map[netip.Addr]string{},
		hops:  s.Config.Gateway.NextHops,
		taken: map[netip.Addr]*cluster.EgressIP{}, items: map[*cluster.EgressIP][]cluster.Assignment{},
	}
	vetted := cluster.Vet(s.Nodes, "", &s.Config)
	services := slices.ContainsFunc(a.byAge, func(e *cluster.EgressIP) bool { return e.Service != nil })
	for _, n := range s.Nodes {
		for _, p := range n.Addresses {
			a.hosts[p] = n.Name
		}
		if !n.Egress.Assignable && !services {
			continue
		}
		c := &egressNode{node: n, networks: n.Networks(&s.Config), why: unusable(n, rules, vetted)}
		a.whys[n.Name] = c.why
		if services {
			a.all = append(a.all, c)
		}
		if n.Egress.Assignable {
			a.nodes[n.Name] = c
			a.list = append(a.list, c)
		}
	}
	return a
}

// unusable says why a node cannot carry addresses now.
func unusable(n *cluster.Node, rules Rules, vetted *cluster.Vetted) string {
	switch {
	case len(vetted.Rejected[n.Name]) > 0:
		return "claims what is another node's"
	case n.ID == 0:
		return "has no node ID yet"
	case !n.Egress.Ready:
		return "is not ready"
	case rules.Unreachable[n.Name]:
		return notReachable
	}
	return ""
}

// notReachable is what may be wrong: a node that is alone with it keeps what it has.
const notReachable = "is not reachable"

// stays, leaves and silent are the states of a node in which it can have an address: the better
// ones first.
func (c *egressNode) stays() bool  { return c.why == "" && !c.node.Egress.Leaving }
func (c *egressNode) leaves() bool { return c.why == "" && c.node.Egress.Leaving }
func (c *egressNode) silent() bool { return c.why == notReachable }

// serves reports whether the node can carry the address at all, ready or not.
func (a *assigner) serves(c *egressNode, x netip.Addr) bool {
	n, ok := cluster.NetworkOf(c.networks, x)
	return ok && x != n.Prefix.Addr() && x != broadcast(n.Prefix) && c.has(x) == ""
}

// has says what the node says that the address is to it. It may be wrong: that must not take the
// address from others.
func (c *egressNode) has(x netip.Addr) string {
	switch {
	case c.node.HasAddress(x):
		return fmt.Sprintf("%s is an address of node %s itself", x, c.node.Name)
	case slices.Contains(c.node.Gateway.NextHops, x):
		return fmt.Sprintf("%s is the default gateway of node %s", x, c.node.Name)
	}
	return ""
}

// broadcast is the last address of an IPv4 network that has one.
func broadcast(p netip.Prefix) netip.Addr {
	if !p.Addr().Is4() || p.Bits() >= 31 {
		return netip.Addr{}
	}
	b := p.Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}

// keep takes over what an EgressIP has and may keep, on nodes of a state.
func (a *assigner) keep(e *cluster.EgressIP, had []cluster.Assignment, is func(*egressNode) bool) {
	for _, x := range had {
		c := a.nodes[x.Node]
		if c != nil && is(c) && a.wanted(e, x.Address) && a.serves(c, x.Address) && a.free(e, c, x.Address, true) {
			a.give(e, c, x.Address)
		}
	}
}

// wanted reports whether an EgressIP can have an address at all.
func (a *assigner) wanted(e *cluster.EgressIP, x netip.Addr) bool {
	_, never := a.never(e, x)
	return !never && slices.Contains(e.Addresses, x)
}

// fit returns the nodes of a state that can carry an address.
func (a *assigner) fit(x netip.Addr, is func(*egressNode) bool) (list []*egressNode) {
	for _, c := range a.list {
		if is(c) && a.serves(c, x) {
			list = append(list, c)
		}
	}
	return list
}

// free reports whether an EgressIP can have an address there, for all that others have: on a node
// where it has none, or, when it may share, none of the same family. Two of one family on a node
// would be one too many: a packet gets one of them.
func (a *assigner) free(e *cluster.EgressIP, c *egressNode, x netip.Addr, share bool) bool {
	return a.taken[x] == nil && !slices.ContainsFunc(a.items[e], func(y cluster.Assignment) bool {
		return y.Node == c.node.Name && (!share || y.Address.Is4() == x.Is4())
	})
}

func (a *assigner) give(e *cluster.EgressIP, c *egressNode, x netip.Addr) {
	a.taken[x] = e
	a.items[e] = append(a.items[e], cluster.Assignment{Address: x, Node: c.node.Name})
	c.load++
}

// place finds nodes for the addresses of an EgressIP that have none: first for those that fit few
// nodes.
func (a *assigner) place(e *cluster.EgressIP) {
	type want struct {
		address netip.Addr
		nodes   []*egressNode
	}
	var wants []want
	for _, x := range e.Addresses {
		if _, never := a.never(e, x); !never && a.taken[x] == nil {
			wants = append(wants, want{x, a.fit(x, (*egressNode).stays)})
		}
	}
	slices.SortStableFunc(wants, func(v, w want) int { return cmp.Compare(len(v.nodes), len(w.nodes)) })
	for _, share := range []bool{false, true} {
		for _, w := range wants {
			a.least(e, w.address, w.nodes, share)
		}
	}
	if len(a.items[e]) == len(e.Addresses) {
		return
	}
	// Nowhere else: on a node that leaves it still works, where it is or elsewhere.
	a.keep(e, e.Assigned, (*egressNode).leaves)
	for _, w := range wants {
		a.least(e, w.address, a.fit(w.address, (*egressNode).leaves), true)
	}
	a.hold(e)
}

// hold leaves the addresses of a family on nodes that do not answer, if the EgressIP has no other
// one; or gives them to such a node, when they must leave theirs. Kubernetes has the last word: a
// node that is not Ready has none.
func (a *assigner) hold(e *cluster.EgressIP) {
	var had []cluster.Assignment
	for _, x := range e.Assigned {
		if !slices.ContainsFunc(a.items[e],
			func(y cluster.Assignment) bool { return y.Address.Is4() == x.Address.Is4() }) {
			had = append(had, x)
		}
	}
	a.keep(e, had, (*egressNode).silent)
	for _, x := range had {
		if a.wanted(e, x.Address) {
			a.least(e, x.Address, a.fit(x.Address, (*egressNode).silent), true)
		}
	}
}

// least gives the address to the node that carries least, if it has none yet.
func (a *assigner) least(e *cluster.EgressIP, x netip.Addr, nodes []*egressNode, share bool) {
	var best *egressNode
	for _, c := range nodes {
		if a.free(e, c, x, share) && (best == nil || c.load < best.load) {
			best = c
		}
	}
	if best != nil {
		a.give(e, best, x)
	}
}

// never says why no node can have an address. An assigned address does not become a node's because
// the node claims it.
func (a *assigner) never(e *cluster.EgressIP, x netip.Addr) (string, bool) {
	if i := slices.IndexFunc(e.Claimed, func(c cluster.Claim) bool { return c.Address == x }); i >= 0 {
		return fmt.Sprintf("%s is an address of %s, which is older", x, e.Claimed[i].By), true
	}
	carried := slices.ContainsFunc(e.Assigned, func(y cluster.Assignment) bool { return y.Address == x })
	if n, is := a.hosts[x]; is && !carried {
		return fmt.Sprintf("%s is an address of node %s itself", x, n), true
	}
	if slices.Contains(a.hops, x) {
		return fmt.Sprintf("%s is the default gateway ([gateway] next-hop)", x), true
	}
	return "", false
}

// outcome tells what was decided for an EgressIP.
func (a *assigner) outcome(e *cluster.EgressIP) Decision {
	out := Decision{EgressIP: e, Items: a.items[e]}
	slices.SortFunc(out.Items, cluster.Assignment.Compare)
	for _, x := range e.Addresses {
		if a.taken[x] != e {
			why := a.refusal
			if e.Service != nil {
				why = a.hostless
			}
			out.Refused = append(out.Refused, why(e, x))
		}
	}
	for _, x := range out.Items {
		if why := a.whys[x.Node]; why != "" {
			out.Refused = append(out.Refused, Refusal{x.Address, ReasonNoNode,
				fmt.Sprintf("%s is on node %s, which %s: no other node is eligible", x.Address, x.Node, why)})
		}
	}
	return out
}

// refusal says why an address has no node, as precisely as it is known.
func (a *assigner) refusal(e *cluster.EgressIP, x netip.Addr) Refusal {
	if why, never := a.never(e, x); never {
		return Refusal{x, ReasonUnsupported, why}
	}
	if other := a.taken[x]; other != nil {
		return Refusal{x, ReasonUnsupported, fmt.Sprintf("%s is already assigned to %s", x, other.Owner)}
	}
	if len(a.list) == 0 {
		return Refusal{x, ReasonNoNode, fmt.Sprintf("no node has the label %s", cluster.LabelEgressAssignable)}
	}
	var down, full, edge string
	for _, c := range a.list {
		n, ok := cluster.NetworkOf(c.networks, x)
		switch {
		case !ok:
		case c.has(x) != "":
			edge = cmp.Or(edge, c.has(x))
		case x == n.Prefix.Addr() || x == broadcast(n.Prefix):
			edge = cmp.Or(edge, fmt.Sprintf("%s is the network's or the broadcast address of %s on node %s", x,
				n.Prefix, c.node.Name))
		case c.why != "":
			down = cmp.Or(down, fmt.Sprintf("%s fits node %s, which %s", x, c.node.Name, c.why))
		default:
			full = fmt.Sprintf("every node that %s fits has another address of %s", x, e.Owner)
		}
	}
	switch {
	case edge != "":
		return Refusal{x, ReasonUnsupported, edge}
	case full != "":
		return Refusal{x, ReasonTooFewNodes, full}
	case down != "":
		return Refusal{x, ReasonNoNode, down}
	}
	return Refusal{x, ReasonNoNode, fmt.Sprintf("%s fits no network of a node with the label %s", x,
		cluster.LabelEgressAssignable)}
}
