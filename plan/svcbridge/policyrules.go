package svcbridge

import (
	"slices"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/pipeline"
	"hairpin/plan/netpolicy"
	"hairpin/plan/node"
)

// profile adds the flows of a Profile. A rule for a set of peers is a conjunction: its first clause
// is the peer, its second the Profile and the port.
func (w *serviceBridge) profile(p *netpolicy.Profile) {
	t := &policyTables[p.Direction]
	w.tiers(t, p)
	type placedMatch struct {
		netpolicy.Place
		flow.Match
	}
	sets, owners := map[placedMatch][]uint32{}, map[placedMatch]cluster.Owner{}
	for i := range p.Rules {
		r := &p.Rules[i]
		w.owner = r.Policy
		do, table, toAll := resubmit(t.permitted), t.tier(r.Tier), priority(r.Place)
		switch r.Action {
		case cluster.Deny:
			do = resubmit(pipeline.SvcPolicyDrop)
		case cluster.Pass:
			do = resubmit(t.nextTable(r.Tier, p))
		}
		if r.Tier == cluster.TierNetworkPolicy {
			toAll = prioAny
		}
		for j := range w.Stacks {
			f := w.Stacks[j].Family
			if r.Family != 0 && r.Family != f {
				continue
			}
			for _, m := range w.portMatches(f, r) {
				m.Profile = p.ID
				if r.Set == 0 {
					w.add(table, toAll, m, do)
				} else {
					k := placedMatch{r.Place, m}
					if sets[k] = append(sets[k], r.Set); len(sets[k]) == 1 {
						owners[k] = r.Policy
					}
				}
			}
		}
		if r.Set != 0 {
			w.add(table, priority(r.Place), flow.Match{Profile: p.ID, ConjID: r.Set}, do)
		}
	}
	for k, ids := range sets {
		w.owner = owners[k]
		w.clause(t, k.Place, k.Match, ids, 2)
	}
}

// tiers sends packets of a Profile from tier to tier. Profiles with rules of NetworkPolicies only
// need no flow for that, and their packets are compared with no rule of another tier.
func (w *serviceBridge) tiers(t *direction, p *netpolicy.Profile) {
	w.owner = cluster.NodeOwner(w.Node.Name)
	if first := t.nextTable(0, p); first != t.rules {
		w.add(t.conntrack, prioFrom, flow.Match{Profile: p.ID}, resubmit(first))
	}
	for _, tier := range []cluster.PolicyTier{cluster.TierAdmin, cluster.TierBaseline} {
		if len(p.In(tier)) > 0 {
			w.add(t.tier(tier), prioNext, flow.Match{Profile: p.ID}, resubmit(t.nextTable(tier, p)))
		}
	}
}

// clause adds a flow that is an alternative in a clause of each set's conjunction. If there are too
// many sets, it omits some, which accept nothing; in the tiers of ClusterNetworkPolicies, where a
// rule that is missing may let a packet pass, it drops instead.
func (w *serviceBridge) clause(t *direction, p netpolicy.Place, m flow.Match, sets []uint32, clause uint8) {
	list := []flow.Action{resubmit(pipeline.SvcPolicyDrop)}
	if p.Tier == cluster.TierNetworkPolicy || len(sets) <= flow.MaxConjunctions {
		list = conjunctions(sets, clause)
	}
	w.add(t.tier(p.Tier), priority(p), m, list...)
}

// portMatches returns the matches of packets to the ports of a rule. On the userspace datapath a
// fragment has no port. A rule that accepts some ports accepts all later fragments from its peers:
// without the first fragment, they are no datagram. A rule that denies some ports denies all
// fragments of their protocols.
func (w *serviceBridge) portMatches(f cluster.Family, r *netpolicy.Rule) (list []flow.Match) {
	v := node.Vocab(f)
	if r.Ports == nil {
		return []flow.Match{{Protocol: v.IP}}
	}
	partial := map[flow.Protocol]bool{} // protocols of which the rule has some ports
	for _, ports := range r.Ports {
		l4 := v.L4[ports.Protocol]
		if ports.All() {
			list = append(list, flow.Match{Protocol: l4})
			continue
		}
		partial[l4] = true
		for _, x := range ports.Masks() {
			m := flow.Match{Protocol: l4, DstPort: x.Value, DstMask: x.Mask}
			if x.Mask == 1<<16-1 {
				m.DstMask = 0
			}
			list = append(list, m)
		}
	}
	switch {
	case !w.Node.Gateway.Userspace:
	case r.Action == cluster.Accept:
		list = append(list, flow.Match{Protocol: v.IP, Fragment: "later"})
	case r.Action == cluster.Deny:
		for l4 := range partial {
			list = append(list, flow.Match{Protocol: l4, Fragment: "yes"})
		}
	}
	return list
}

// member adds the flow of an address in its sets.
func (w *serviceBridge) member(m netpolicy.Member) {
	s := w.Stack(cluster.FamilyOf(m.Prefix.Addr()))
	if s == nil {
		return
	}
	w.owner = cluster.NodeOwner(w.Node.Name)
	t := &policyTables[m.Direction]
	x := flow.Match{Protocol: node.Vocab(s.Family).IP}
	if m.Prefix.Bits() > 0 {
		*t.peer(&x) = m.Prefix
	}
	w.clause(t, m.Place, x, m.Sets, 1)
}

// conjunctions makes a flow an alternative in a clause of each set's conjunction.
func conjunctions(sets []uint32, clause uint8) (list []flow.Action) {
	sets = slices.Sorted(slices.Values(sets))
	for _, id := range sets[:min(len(sets), flow.MaxConjunctions)] {
		list = append(list, flow.Conjunction{ID: id, Clause: clause, Of: 2})
	}
	return list
}
