package run

import (
	"net/netip"
	"slices"
	"time"

	"hairpin/cluster"
	"hairpin/plan"
)

// An address that moves between two living nodes is with both for a time, so that no connection finds neither: the new one
// translates at once, and sends back to the old one what it does not know; pods are led to it a little later, when it is
// sure to be ready; the old one ends last. All these times begin when an agent sees the new status.
const (
	moveLeads = time.Second     // until pods are led to the new node
	moveEnds  = 3 * time.Second // until the old one lets go
)

// movement is one such address.
type movement struct {
	cluster.Move
	owner cluster.Owner
	begun time.Time
	led   bool
}

// watchMoves notes what has moved from the Snapshot of before to this one. A node that does not answer, or is not asked,
// is not waited for.
func (v *egressView) watchMoves(now time.Time, s *cluster.Snapshot, lost map[string]bool) time.Duration {
	if v.base != nil {
		had := map[netip.Addr]string{}
		for _, e := range v.base.EgressIPs {
			for _, a := range e.Assigned {
				had[a.Address] = a.Node
			}
		}
		for _, e := range s.EgressIPs {
			for _, a := range e.Assigned {
				from := had[a.Address]
				if m := v.moves[a.Address]; m != nil && m.To != a.Node {
					delete(v.moves, a.Address)
				}
				if from == "" || from == a.Node || v.yielded[a.Address].to != "" || lost[a.Node] || !v.alive(from, lost) ||
					!bridged(s, from, a.Address) || !bridged(s, a.Node, a.Address) {
					continue
				}
				v.moves[a.Address] = &movement{Move: cluster.Move{Address: a.Address, From: from, To: a.Node}, owner: e.Owner, begun: now}
			}
		}
	}
	return v.ageMoves(now, lost)
}

// alive tells whether a node surely lives.
func (v *egressView) alive(node string, lost map[string]bool) bool {
	return !lost[node] && (node == v.node || v.prober.egress.Timeout == 0 || v.prober.answers(node))
}

// bridged tells whether an address belongs to the network of a node's gateway bridge. Those of other networks move at once.
func bridged(s *cluster.Snapshot, node string, a netip.Addr) bool {
	n := s.Node(node)
	return n != nil && plan.OnBridge(n, a)
}

// ageMoves brings moves on, and tells when the next step is due.
func (v *egressView) ageMoves(now time.Time, lost map[string]bool) (again time.Duration) {
	for a, m := range v.moves {
		age := now.Sub(m.begun)
		switch {
		case age >= moveEnds || lost[m.From] || lost[m.To] || m.From != v.node && !m.led && v.prober.silent(m.From):
			delete(v.moves, a)
			v.stale = true
		case age >= moveLeads:
			v.stale = v.stale || !m.led
			m.led = true
			again = sooner(again, moveEnds-age)
		default:
			again = sooner(again, min(moveLeads-age, moveLeads/10)) // the old one may die meanwhile
		}
	}
	return again
}

// withMoves gives where pods are to be led, and what moves, of an EgressIP.
func (v *egressView) withMoves(e *cluster.EgressIP, items []cluster.Assignment) ([]cluster.Assignment, []cluster.Move) {
	if len(v.moves) == 0 {
		return items, nil
	}
	list, moving := slices.Clone(items), []cluster.Move(nil)
	for i, a := range list {
		m := v.moves[a.Address]
		if m == nil || m.owner != e.Owner || m.To != a.Node {
			continue
		}
		moving = append(moving, m.Move)
		if !m.led {
			list[i].Node = m.From
		}
	}
	return list, moving
}
