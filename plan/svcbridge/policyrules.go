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
	type clause struct {
		netpolicy.Place
		flow.Match
	}
	clauses, owners := map[clause][]uint32{}, map[clause]cluster.Owner{}
	for i := range p.Rules {
		r := &p.Rules[i]
		w.owner = r.Policy
		do, table, any := resubmit(t.permitted), t.tier(r.Tier), priority(r.Place)
		switch {
		case r.Action == cluster.Deny:
			do = resubmit(pipeline.SvcPolicyDrop)
		case r.Action == cluster.Pass:
			do = resubmit(t.nextTable(r.Tier, p))
		case r.Tier == cluster.TierNetworkPolicy:
			any = prioAny
		}
		for j := range w.Stacks {
			f := w.Stacks[j].Family
			if r.Family != 0 && r.Family != f {
				continue
			}
			for _, m := range w.portMatches(f, r) {
				m.Profile = p.ID
				if r.Set == 0 {
					w.add(table, any, m, do)
				} else {
					k := clause{r.Place, m}
					if clauses[k] = append(clauses[k], r.Set); len(clauses[k]) == 1 {
						owners[k] = r.Policy
					}
				}
			}
		}
		if r.Set != 0 {
			w.add(table, priority(r.Place), flow.Match{Profile: p.ID, ConjID: r.Set}, do)
		}
	}
	for k, sets := range clauses {
		w.owner = owners[k]
		w.clause(t, k.Place, k.Match, sets, 2)
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
// fragment has no port. A later one passes with the peer alone: without its first fragment it is no
// datagram. A rule that denies some ports denies all fragments of their protocols.
func (w *serviceBridge) portMatches(f cluster.Family, r *netpolicy.Rule) (list []flow.Match) {
	v := node.Vocab(f)
	if r.Ports == nil {
		return []flow.Match{{Protocol: v.IP}}
	}
	denied := map[flow.Protocol]bool{}
	for _, r := range r.Ports {
		l4 := v.L4[r.Protocol]
		if r.All() {
			list = append(list, flow.Match{Protocol: l4})
			continue
		}
		denied[l4] = true
		for _, x := range r.Masks() {
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
		for l4 := range denied {
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
