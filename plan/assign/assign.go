// Package assign decides for the whole cluster which node has which node ID, which node has which
// egress address or announces which load balancer address, which Service gets which address of a
// pool, and which EgressIP has the pods that several select. It is pure, like package plan.
package assign

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/cluster/trust"
)

// Observed is what probes found, the input of Addresses besides the Snapshot.
type Observed struct {
	// Unreachable has the nodes that reply to no probe.
	Unreachable map[string]bool
}

// Decision is what Addresses decided for one EgressIP.
type Decision struct {
	EgressIP *cluster.EgressIP
	Items    []cluster.Assignment // sorted
	Refused  []Refusal            // the other addresses, in the order of the spec, and those on unreachable nodes
}

// Reasons of Refusals and of Events on EgressIPs, the same strings as in OVN-Kubernetes.
const (
	ReasonNoNode      = "NoMatchingNodeFound" // no node may have it now
	ReasonUnsupported = "UnsupportedRequest"  // no node can have it with this configuration
	ReasonTooFewNodes = "UnassignedRequest"   // the nodes that could have another address of the same EgressIP
)

// Refusal is the reason why an address has no node.
type Refusal struct {
	Address netip.Addr
	Reason  string // one of the constants
	Message string
}

// Addresses decides which node has which egress address, in the order of s.EgressIPs. It is a
// function of the Snapshot and observed. Earlier decisions are in the Snapshot as Assigned, and
// stay while they are valid:
//   - An unassigned address gets the node with the fewest addresses.
//   - A node that is leaving loses its addresses as soon as another node can have them.
//   - An unreachable node keeps an address while the EgressIP has no other of the family, unless
//     the EgressIP releases it. Else its pods would leave with another source.
func Addresses(s *cluster.Snapshot, observed Observed) []Decision {
	a := newAssigner(s, observed)
	for _, e := range a.byAge {
		if e.Service != nil {
			// Of announced addresses first those that stay, so that they count as load for the
			// others.
			a.assignHost(e, e.OnlyAnnounced())
		}
	}
	for _, e := range a.byAge {
		if e.OnlyAnnounced() && len(a.items[e]) == 0 {
			a.assignHost(e, false)
		}
	}
	for _, e := range a.byAge {
		if e.Service == nil {
			a.keep(e, e.Assigned, (*egressNode).usable)
		}
	}
	for _, e := range a.byAge {
		if e.Service == nil {
			a.assignNew(e)
		}
	}
	out := make([]Decision, len(s.EgressIPs))
	for i, e := range s.EgressIPs {
		out[i] = a.decision(e)
	}
	return out
}

// Successors returns the node that each address has if a node does not answer.
func Successors(s *cluster.Snapshot, node string) map[netip.Addr]string {
	to := map[netip.Addr]string{}
	for _, d := range Addresses(s, Observed{Unreachable: map[string]bool{node: true}}) {
		for _, x := range d.Items {
			to[x.Address] = x.Node
		}
	}
	return to
}

// assigner is the working state of Addresses.
type assigner struct {
	byAge       []*cluster.EgressIP
	nodes       map[string]*egressNode
	list        []*egressNode         // nodes that may have an address of some EgressIP, by name
	internalIPs map[netip.Addr]string // of all nodes, and the node of each
	hops        []netip.Addr          // default gateways that the administrator configured
	taken       map[netip.Addr]*cluster.EgressIP
	items       map[*cluster.EgressIP][]cluster.Assignment

	networked map[netip.Addr]bool // whether a node has a network of the address
}

// egressNode is a node that has egress addresses or could.
type egressNode struct {
	node     *cluster.Node
	networks []cluster.Network // longest prefix first
	unusable string            // why it cannot have addresses now; empty if it can
	load     int
}

func newAssigner(s *cluster.Snapshot, observed Observed) *assigner {
	a := &assigner{
		byAge: slices.SortedFunc(slices.Values(s.EgressIPs), (*cluster.EgressIP).ComparePrecedence),
		nodes: map[string]*egressNode{}, internalIPs: map[netip.Addr]string{}, hops: s.Config.Gateway.NextHops,
		taken: map[netip.Addr]*cluster.EgressIP{}, items: map[*cluster.EgressIP][]cluster.Assignment{},
		networked: map[netip.Addr]bool{},
	}
	vetted := trust.Vet(s.Nodes, "", &s.Config)
	withoutLabel := slices.ContainsFunc(a.byAge,
		func(e *cluster.EgressIP) bool { return e.Service != nil || e.Nodes != nil })
	for _, n := range s.Nodes {
		for _, p := range n.Addresses {
			a.internalIPs[p] = n.Name
		}
		if !n.Egress.Assignable && !withoutLabel {
			continue
		}
		c := &egressNode{node: n, networks: n.Networks(&s.Config), unusable: unusable(n, observed, vetted)}
		a.nodes[n.Name] = c
		a.list = append(a.list, c)
	}
	return a
}

// unusable returns why a node cannot have addresses now, or "".
func unusable(n *cluster.Node, observed Observed, vetted *trust.Vetted) string {
	switch {
	case len(vetted.Rejected[n.Name]) > 0:
		return "claims what is another node's"
	case n.ID == 0:
		return "has no node ID yet"
	case !n.Egress.Ready:
		return "is not ready"
	case observed.Unreachable[n.Name]:
		return notReachable
	}
	return ""
}

// notReachable may be wrong: if no other node can have them, such a node keeps its addresses.
const notReachable = "is not reachable"

// usable, draining and unreachable are the states in which a node can have an address, the best
// first.
func (c *egressNode) usable() bool      { return c.unusable == "" && !c.node.Egress.Leaving }
func (c *egressNode) draining() bool    { return c.unusable == "" && c.node.Egress.Leaving }
func (c *egressNode) unreachable() bool { return c.unusable == notReachable }

// network returns a node's network for an address of an EgressIP. A network that does not contain
// the address counts only if no node has one that does.
func (a *assigner) network(c *egressNode, e *cluster.EgressIP, x netip.Addr) (cluster.Network, bool) {
	n, ok := e.NetworkFor(c.node, c.networks, x)
	return n, ok && (n.Prefix.Contains(x) || !a.onNetwork(x))
}

// serves reports whether the node can have the address at all, ready or not.
func (a *assigner) serves(c *egressNode, e *cluster.EgressIP, x netip.Addr) bool {
	n, ok := a.network(c, e, x)
	return ok && x != n.Prefix.Addr() && x != broadcast(n.Prefix) && c.ownUse(x) == ""
}

// ownUse returns how the node itself uses the address, as it reports, or "". The report may be
// wrong: it must not take the address from other nodes.
func (c *egressNode) ownUse(x netip.Addr) string {
	switch {
	case c.node.HasAddress(x):
		return fmt.Sprintf("%s is an address of node %s itself", x, c.node.Name)
	case slices.Contains(c.node.Gateway.NextHops, x):
		return fmt.Sprintf("%s is the default gateway of node %s", x, c.node.Name)
	}
	return ""
}

// broadcast returns the broadcast address of an IPv4 network, if it has one.
func broadcast(p netip.Prefix) netip.Addr {
	if !p.Addr().Is4() || p.Bits() >= 31 {
		return netip.Addr{}
	}
	return cluster.RangeOf(p).Last
}

// keep keeps an EgressIP's earlier assignments to nodes of a state, if they are still valid.
func (a *assigner) keep(e *cluster.EgressIP, had []cluster.Assignment, state func(*egressNode) bool) {
	for _, x := range had {
		c := a.nodes[x.Node]
		if c != nil && state(c) && e.MayBeOn(c.node) && a.wanted(e, x.Address) && a.serves(c, e, x.Address) &&
			a.free(e, c, x.Address, true) {
			a.assign(e, c, x.Address)
		}
	}
}

// wanted reports whether an EgressIP can have an address at all.
func (a *assigner) wanted(e *cluster.EgressIP, x netip.Addr) bool {
	_, never := a.rejects(e, x)
	return !never && slices.Contains(e.Addresses, x)
}

// eligible returns the nodes of a state that can have an address of an EgressIP.
func (a *assigner) eligible(e *cluster.EgressIP, x netip.Addr, state func(*egressNode) bool) (list []*egressNode) {
	for _, c := range a.list {
		if state(c) && e.MayBeOn(c.node) && a.serves(c, e, x) {
			list = append(list, c)
		}
	}
	return list
}

// free reports whether an address is unassigned, and the EgressIP has no other address on the node
// or, with share, none of the same family there: a packet gets only one of them.
func (a *assigner) free(e *cluster.EgressIP, c *egressNode, x netip.Addr, share bool) bool {
	return a.taken[x] == nil && !slices.ContainsFunc(a.items[e], func(y cluster.Assignment) bool {
		return y.Node == c.node.Name && (!share || y.Address.Is4() == x.Is4())
	})
}

func (a *assigner) assign(e *cluster.EgressIP, c *egressNode, x netip.Addr) {
	a.taken[x] = e
	a.items[e] = append(a.items[e], cluster.Assignment{Address: x, Node: c.node.Name})
	c.load++
}

// assignNew assigns the unassigned addresses of an EgressIP, first those that fit the fewest nodes.
func (a *assigner) assignNew(e *cluster.EgressIP) {
	type want struct {
		address netip.Addr
		nodes   []*egressNode
	}
	var wants []want
	for _, x := range e.Addresses {
		if _, never := a.rejects(e, x); !never && a.taken[x] == nil {
			wants = append(wants, want{x, a.eligible(e, x, (*egressNode).usable)})
		}
	}
	slices.SortStableFunc(wants, func(v, w want) int { return cmp.Compare(len(v.nodes), len(w.nodes)) })
	for _, share := range []bool{false, true} {
		for _, w := range wants {
			a.assignLeastLoaded(e, w.address, w.nodes, share)
		}
	}
	if len(a.items[e]) == len(e.Addresses) {
		return
	}
	// No other node is left: an address on a leaving node still works, whether it was there or not.
	a.keep(e, e.Assigned, (*egressNode).draining)
	for _, w := range wants {
		a.assignLeastLoaded(e, w.address, a.eligible(e, w.address, (*egressNode).draining), true)
	}
	if !e.Releases {
		a.keepUnreachable(e)
	}
}

// keepUnreachable keeps a family's addresses on unreachable nodes if the EgressIP has no other
// address of the family. If an address cannot stay on its node, it moves to another unreachable
// node. Kubernetes has precedence over probes: a node that is not Ready has no addresses.
func (a *assigner) keepUnreachable(e *cluster.EgressIP) {
	var had []cluster.Assignment
	for _, x := range e.Assigned {
		if !slices.ContainsFunc(a.items[e],
			func(y cluster.Assignment) bool { return y.Address.Is4() == x.Address.Is4() }) {
			had = append(had, x)
		}
	}
	a.keep(e, had, (*egressNode).unreachable)
	for _, x := range had {
		if a.wanted(e, x.Address) {
			a.assignLeastLoaded(e, x.Address, a.eligible(e, x.Address, (*egressNode).unreachable), true)
		}
	}
}

// assignLeastLoaded assigns the address, if it is unassigned, to the node with the fewest
// addresses.
func (a *assigner) assignLeastLoaded(e *cluster.EgressIP, x netip.Addr, nodes []*egressNode, share bool) {
	var best *egressNode
	for _, c := range nodes {
		if a.free(e, c, x, share) && (best == nil || c.load < best.load) {
			best = c
		}
	}
	if best != nil {
		a.assign(e, best, x)
	}
}

// rejects returns why no node can have an address, and whether that is so. An assigned address does
// not become a node's because the node reports it as its own.
func (a *assigner) rejects(e *cluster.EgressIP, x netip.Addr) (string, bool) {
	if i := slices.IndexFunc(e.Claimed, func(c cluster.Claim) bool { return c.Address == x }); i >= 0 {
		return fmt.Sprintf("%s is an address of %s, which is older", x, e.Claimed[i].By), true
	}
	carried := slices.ContainsFunc(e.Assigned, func(y cluster.Assignment) bool { return y.Address == x })
	if n, is := a.internalIPs[x]; is && !carried {
		return fmt.Sprintf("%s is an address of node %s itself", x, n), true
	}
	if slices.Contains(a.hops, x) {
		return fmt.Sprintf("%s is the default gateway ([gateway] next-hop)", x), true
	}
	return "", false
}

// decision returns what was decided for an EgressIP.
func (a *assigner) decision(e *cluster.EgressIP) Decision {
	out := Decision{EgressIP: e, Items: a.items[e]}
	slices.SortFunc(out.Items, cluster.Assignment.Compare)
	for _, x := range e.Addresses {
		if a.taken[x] != e {
			why := a.refusal
			if e.Service != nil {
				why = a.hostRefusal
			}
			out.Refused = append(out.Refused, why(e, x))
		}
	}
	for _, x := range out.Items {
		if why := a.nodes[x.Node].unusable; why != "" {
			out.Refused = append(out.Refused, Refusal{x.Address, ReasonNoNode,
				fmt.Sprintf("%s is on node %s, which %s: no other node is eligible", x.Address, x.Node, why)})
		}
	}
	return out
}

// refusal returns the most precise known reason why an address has no node.
func (a *assigner) refusal(e *cluster.EgressIP, x netip.Addr) Refusal {
	if why, never := a.rejects(e, x); never {
		return Refusal{x, ReasonUnsupported, why}
	}
	if other := a.taken[x]; other != nil {
		return Refusal{x, ReasonUnsupported, fmt.Sprintf("%s is already assigned to %s", x, other.Owner)}
	}
	var down, full, reserved string
	selected := false
	for _, c := range a.list {
		n, ok := a.network(c, e, x)
		selects := e.MayBeOn(c.node)
		selected = selected || selects
		switch {
		case !selects || !ok:
		case c.ownUse(x) != "":
			reserved = cmp.Or(reserved, c.ownUse(x))
		case x == n.Prefix.Addr() || x == broadcast(n.Prefix):
			reserved = cmp.Or(reserved, fmt.Sprintf("%s is the network's or the broadcast address of %s on node %s", x,
				n.Prefix, c.node.Name))
		case c.unusable != "":
			down = cmp.Or(down, fmt.Sprintf("%s fits node %s, which %s", x, c.node.Name, c.unusable))
		default:
			full = fmt.Sprintf("every node that %s fits has another address of %s", x, e.Owner)
		}
	}
	switch {
	case reserved != "":
		return Refusal{x, ReasonUnsupported, reserved}
	case full != "":
		return Refusal{x, ReasonTooFewNodes, full}
	case down != "":
		return Refusal{x, ReasonNoNode, down}
	case selected && e.Nodes != nil:
		return Refusal{x, ReasonNoNode,
			fmt.Sprintf("%s fits no network of a node that spec.egressNodeSelector selects", x)}
	case selected:
		return Refusal{x, ReasonNoNode, fmt.Sprintf("%s fits no network of a node with the label %s", x,
			cluster.LabelEgressAssignable)}
	case e.Nodes != nil:
		return Refusal{x, ReasonNoNode, "spec.egressNodeSelector selects no node"}
	}
	return Refusal{x, ReasonNoNode, fmt.Sprintf("no node has the label %s", cluster.LabelEgressAssignable)}
}
