package assign

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"hairpin/cluster"
)

// assignHost assigns one node to all addresses of an EgressService, or of a Service with announced
// addresses: the one that has them while it can, else the one with the fewest addresses. A
// leaving or unreachable node keeps them while there is no other. With keep, it assigns only the
// node that has them and is neither.
func (a *assigner) assignHost(e *cluster.EgressIP, keep bool) {
	var want []netip.Addr
	for _, x := range e.Addresses {
		if _, never := a.rejects(e, x); !never && a.taken[x] == nil {
			want = append(want, x)
		}
	}
	if len(want) == 0 {
		return
	}
	has := func(c *egressNode) bool {
		return slices.ContainsFunc(e.Assigned, func(x cluster.Assignment) bool { return x.Node == c.node.Name })
	}
	can := func(c *egressNode) bool {
		return e.MayBeOn(c.node) && (c.unusable != notReachable || has(c)) &&
			!slices.ContainsFunc(want, func(x netip.Addr) bool { return a.rejectsHost(c, e, x) != "" })
	}
	var best *egressNode
	for _, state := range []func(*egressNode) bool{
		(*egressNode).usable, (*egressNode).draining, (*egressNode).unreachable} {
		for _, c := range a.list {
			if !state(c) || keep && !has(c) || !can(c) {
				continue
			}
			if best == nil || has(c) && !has(best) || has(c) == has(best) && c.load < best.load {
				best = c
			}
		}
		if best != nil || keep {
			break
		}
	}
	if best == nil {
		return
	}
	for _, x := range want {
		a.assign(e, best, x)
	}
}

// rejectsHost returns why a node, which may be the host of an EgressService, can never have one of
// its addresses, or "".
func (a *assigner) rejectsHost(c *egressNode, e *cluster.EgressIP, x netip.Addr) string {
	n, ok := e.NetworkFor(c.node, c.networks, x)
	switch {
	case !ok, e.OnlyAnnounced() && !n.Prefix.Contains(x) && a.onNetwork(x):
		return fmt.Sprintf("node %s has no network for %s", c.node.Name, x)
	case c.ownUse(x) != "":
		return c.ownUse(x)
	case n.Prefix.Contains(x) && (x == n.Prefix.Addr() || x == broadcast(n.Prefix)):
		return fmt.Sprintf("%s is the network's or the broadcast address of %s on node %s", x, n.Prefix, c.node.Name)
	}
	return ""
}

// onNetwork reports whether a node has a network that contains an address. Then only such a node
// can announce it.
func (a *assigner) onNetwork(x netip.Addr) bool {
	on, known := a.networked[x]
	if !known {
		on = slices.ContainsFunc(a.list, func(c *egressNode) bool {
			_, ok := cluster.NetworkOf(c.networks, x)
			return ok
		})
		a.networked[x] = on
	}
	return on
}

// hostRefusal returns why an address of an EgressService has no host.
func (a *assigner) hostRefusal(e *cluster.EgressIP, x netip.Addr) Refusal {
	if why, never := a.rejects(e, x); never {
		return Refusal{x, ReasonUnsupported, why}
	}
	if other := a.taken[x]; other != nil {
		return Refusal{x, ReasonUnsupported, fmt.Sprintf("%s is already assigned to %s", x, other.Owner)}
	}
	cannot, down := "", ""
	for _, c := range a.list {
		if !e.MayBeOn(c.node) {
			continue
		}
		for _, y := range e.Addresses { // the host must be able to have all of them
			cannot = cmp.Or(cannot, a.rejectsHost(c, e, y))
		}
		if c.unusable != "" {
			down = cmp.Or(down, fmt.Sprintf("%s fits node %s, which %s", x, c.node.Name, c.unusable))
		}
	}
	switch {
	case down != "":
		return Refusal{x, ReasonNoNode, down}
	case cannot != "":
		return Refusal{x, ReasonUnsupported, cannot}
	case e.OnlyAnnounced() && len(e.Service.OnlyOn) == 0 && e.Service.OnlyOn != nil:
		return Refusal{x, ReasonNoNode,
			fmt.Sprintf("no node announces %s: the Service has no ready endpoint (externalTrafficPolicy: Local)", x)}
	case e.OnlyAnnounced() && e.Service.OnlyOn != nil:
		return Refusal{x, ReasonNoNode, fmt.Sprintf("no node announces %s: its pool selects no node with a ready "+
			"endpoint (externalTrafficPolicy: Local)", x)}
	case e.OnlyAnnounced():
		return Refusal{x, ReasonNoNode, fmt.Sprintf("no node announces %s: spec.nodeSelector of its pool selects none",
			x)}
	case e.Service.OnlyOn != nil:
		return Refusal{x, ReasonNoNode,
			fmt.Sprintf("%s fits no node of spec.nodeSelector that has an endpoint (externalTrafficPolicy: Local)", x)}
	}
	return Refusal{x, ReasonNoNode, fmt.Sprintf("%s fits no node: spec.nodeSelector selects none", x)}
}
