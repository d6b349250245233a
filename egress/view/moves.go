package view

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"hairpin/cluster"
	"hairpin/plan/egress"
	"hairpin/retry"
)

// An address that moves between two live nodes is on both for a time, so that every connection is
// on one of them. The new node translates at once, and sends packets of unknown connections to the
// old one. Pods are rerouted later, when the new node is ready, also on a busy machine. The old
// node stops translating last. All these times begin when an agent receives the new status. A node
// also keeps an unassigned address until moveEnds: other nodes may get the status later, and still
// send pods' packets there.
const (
	moveEarly = 1 * time.Second // until the new node passes incoming packets to OVN
	// moveReroutes is the time until pods are rerouted to the new node, and packets of open
	// connections to a load balancer address are forwarded to it.
	moveReroutes = 2 * time.Second
	moveEnds     = 5 * time.Second // until the old node releases it
)

// movement is an address that moves, or that this node gives up.
type movement struct {
	cluster.Move
	egressIP  *cluster.EgressIP // if the address is unassigned: a copy without addresses
	begun     time.Time
	requested bool // by a drain or new labels of the old node, so the move does not suggest that it died
	rerouted  bool // pods are routed to the new node; true for a load balancer address, which has no pods
	back      bool // made by moveBack: the status did not change
}

// ends returns how long the move lasts.
func (m *movement) ends() time.Duration {
	if m.egressIP.OnlyAnnounced() {
		return cluster.ForwardTime // the old node can serve its connections for as long as it runs
	}
	return moveEnds
}

// watchMoves records what has moved from the previous Snapshot to this one.
func (v *View) watchMoves(now time.Time, s *cluster.Snapshot, lost map[string]bool) time.Duration {
	before := map[netip.Addr]string{}
	unassigned := map[netip.Addr]*cluster.EgressIP{} // of this node, with their former EgressIPs
	if v.Base != nil {
		for _, e := range v.Base.EgressIPs {
			for _, a := range e.Assigned {
				before[a.Address] = a.Node
				if a.Node == v.node && !e.OnlyAnnounced() {
					unassigned[a.Address] = e
				}
			}
		}
	}
	for _, e := range s.EgressIPs {
		for _, a := range e.Assigned {
			from, last := before[a.Address], v.moves[a.Address]
			delete(unassigned, a.Address)
			if last != nil && last.To != a.Node {
				delete(v.moves, a.Address)
			}
			if from == "" || from == a.Node || v.released[a.Address].to != "" || lost[a.Node] ||
				!egress.CanShare(s, e, from, a.Node, a.Address) {
				continue
			}
			m := &movement{Move: cluster.Move{Address: a.Address, From: from, To: a.Node}, egressIP: e, begun: now,
				requested: drained(s, e, from)}
			m.rerouted = e.OnlyAnnounced() || v.seemsDead(m, lost)
			m.Early = e.OnlyAnnounced() && (last == nil || last.From != a.Node) && !v.hadBefore(a)
			v.moves[a.Address] = m
		}
	}
	v.keepUnassigned(now, unassigned)
	return v.ageMoves(now, lost)
}

// keepUnassigned starts a move to no node for each of these addresses of this node.
func (v *View) keepUnassigned(now time.Time, unassigned map[netip.Addr]*cluster.EgressIP) {
	copies := map[cluster.Owner]*cluster.EgressIP{}
	for a, e := range unassigned {
		if v.released[a].to != "" {
			continue
		}
		if copies[e.Owner] == nil {
			was := *e
			was.Assigned, was.Addresses = nil, nil
			// newest, in the year 6325: another EgressIP that selects the same pods has precedence
			was.Created = time.Unix(1<<37, 0).UTC()
			if e.Service != nil {
				service := *e.Service
				service.Ended, was.Service = true, &service
			}
			copies[e.Owner] = &was
		}
		v.moves[a] = &movement{Move: cluster.Move{Address: a, From: v.node}, egressIP: copies[e.Owner], begun: now,
			rerouted: true}
	}
}

// hadBefore reports whether, by the last status or view, the node of an assignment had the address
// before, or took it over.
func (v *View) hadBefore(a cluster.Assignment) bool {
	return slices.ContainsFunc(v.Base.EgressIPs,
		func(e *cluster.EgressIP) bool { return slices.Contains(e.Previous, a) }) ||
		slices.ContainsFunc(v.out.EgressIPs,
			func(e *cluster.EgressIP) bool { return e.NodeOf(a.Address) == a.Node })
}

// drained reports whether a node must give up its addresses of an EgressIP: it is drained, or its
// labels changed.
func drained(s *cluster.Snapshot, e *cluster.EgressIP, node string) bool {
	n := s.Node(node)
	return n != nil && (!e.MayBeOn(n) || n.Egress.Leaving)
}

// seemsDead reports whether the old node seems dead: pods are then rerouted at once. In a requested
// move, only an unreachable node seems dead. Otherwise, a node that is not probed, or that replies
// late, does too.
func (v *View) seemsDead(m *movement, lost map[string]bool) bool {
	switch {
	case lost[m.From]:
		return true
	case m.requested || m.From == v.node || v.prober.Off():
		return false
	}
	return !v.prober.Replies(m.From)
}

// ageMoves advances moves, and returns when the next step is due. A move continues if one of the
// nodes seems dead, because the node may be alive: then the old node has connections that the new
// one does not know.
func (v *View) ageMoves(now time.Time, lost map[string]bool) (again time.Duration) {
	for a, m := range v.moves {
		age := now.Sub(m.begun)
		switch {
		case age >= m.ends():
			delete(v.moves, a)
			v.stale = true
		case m.rerouted || age >= moveReroutes && !lost[m.To] || v.seemsDead(m, lost):
			v.stale = v.stale || !m.rerouted
			m.rerouted = true
			again = retry.Sooner(again, m.ends()-age)
		default:
			again = retry.Sooner(again, moveReroutes/20) // the old node may die meanwhile
		}
		early := m.early(age)
		if early {
			again = retry.Sooner(again, moveReroutes-age)
		}
		if m.Early != early {
			m.Early, v.stale = early, true
		}
	}
	return again
}

// early returns Early of a move that has lasted for age, see cluster.Move.
func (m *movement) early(age time.Duration) bool {
	if m.egressIP.OnlyAnnounced() {
		return m.Early && age < moveReroutes // watchMoves decides whether it is early at all
	}
	return age < moveEarly && !m.rerouted
}

// takenOverFrom returns the addresses that live nodes took over from nodes that seem dead. If a
// node is not dead, it has connections that the new one does not know.
func takenOverFrom(had, items []cluster.Assignment, lost map[string]bool) (moving []cluster.Move) {
	for _, a := range had {
		if !lost[a.Node] {
			continue
		}
		for _, b := range items {
			if b.Address == a.Address && b.Node != a.Node {
				moving = append(moving, cluster.Move{Address: a.Address, From: a.Node, To: b.Node})
			}
		}
	}
	return moving
}

// startMovesAway starts a move of each address that this node has in its last view and not in the
// new one: it has connections of it. An example is an address that it had taken over.
func (v *View) startMovesAway(now time.Time, s *cluster.Snapshot, e *cluster.EgressIP, items []cluster.Assignment) {
	if v.out == nil {
		return
	}
	seen := find(v.out.EgressIPs, e.Owner)
	for _, a := range items {
		if seen != nil && seen.NodeOf(a.Address) == v.node && a.Node != v.node && v.moves[a.Address] == nil &&
			egress.CanShare(s, e, v.node, a.Node, a.Address) {
			v.moves[a.Address] = &movement{Move: cluster.Move{Address: a.Address, From: v.node, To: a.Node},
				egressIP: e, begun: now, rerouted: true}
		}
	}
}

// withMoves returns, for an EgressIP, the nodes to which pods are routed, and the moves.
func (v *View) withMoves(e *cluster.EgressIP, items []cluster.Assignment,
	lost map[string]bool) (list []cluster.Assignment, moving []cluster.Move) {
	if e.OnlyAnnounced() {
		for _, a := range items {
			moving = append(moving, v.movesTo(e, a, lost)...)
		}
		return items, moving
	}
	fromLost := takenOverFrom(e.Assigned, items, lost)
	if len(v.moves) == 0 {
		return items, fromLost
	}
	list = slices.Clone(items)
	for i, a := range list {
		m := v.moves[a.Address]
		if m == nil || m.egressIP.Owner != e.Owner || a.Node == m.From {
			continue
		}
		switch {
		case a.Node == m.To:
			moving = append(moving, m.Move)
			if !m.rerouted {
				list[i].Node = m.From
			}
		case m.From == v.node: // the new node has died, and a third node has the address
			moving = append(moving, cluster.Move{Address: a.Address, From: m.From, To: a.Node})
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(v.moves), netip.Addr.Compare) {
		if m := v.moves[a]; m.To == "" && m.egressIP.Owner == e.Owner {
			moving = append(moving, m.Move)
		}
	}
	return list, append(moving, fromLost...)
}

// movesTo returns the moves of a load balancer address to its node from all others that may have
// open connections to it: the node by the status, the previous ones, and those of a move that this
// agent knows. Nothing is forwarded to one that seems dead: its clients should get a reset soon.
// But the node by the status may be alive (doubtFor).
func (v *View) movesTo(e *cluster.EgressIP, at cluster.Assignment, lost map[string]bool) (moving []cluster.Move) {
	status := e.NodeOf(at.Address)
	nodes, early := []string{status}, false
	for _, p := range e.Previous {
		if p.Address == at.Address {
			nodes = append(nodes, p.Node)
		}
	}
	if m := v.moves[at.Address]; m != nil && m.egressIP.Owner == e.Owner {
		nodes, early = append(nodes, m.From, m.To), m.Early && m.To == at.Node
	}
	slices.Sort(nodes)
	for _, n := range slices.Compact(nodes) {
		if n != at.Node && n != "" {
			moving = append(moving, cluster.Move{Address: at.Address, From: n, To: at.Node, Early: early,
				Lost: lost[n] && (n != status || v.dead[n])})
		}
	}
	return moving
}

// moveBack starts a move of a load balancer address of this node from another node, which had taken
// it over for a time, and so has connections of it.
func (v *View) moveBack(now time.Time, a netip.Addr, other string) {
	for _, e := range v.Base.EgressIPs {
		if e.OnlyAnnounced() && e.NodeOf(a) == v.node {
			v.moves[a] = &movement{Move: cluster.Move{Address: a, From: other, To: v.node}, egressIP: e, begun: now,
				rerouted: true, back: true}
			v.stale = true
		}
	}
}

// ended returns the deleted EgressIPs of which this node still has an address.
func (v *View) ended(s *cluster.Snapshot) (list []*cluster.EgressIP) {
	for _, a := range slices.SortedFunc(maps.Keys(v.moves), netip.Addr.Compare) {
		m := v.moves[a]
		same := func(e *cluster.EgressIP) bool { return e.Owner == m.egressIP.Owner }
		if m.To == "" && find(s.EgressIPs, m.egressIP.Owner) == nil && !slices.ContainsFunc(list, same) {
			list = append(list, m.egressIP)
		}
	}
	return list
}

// find returns an EgressIP by name; nil if there is none.
func find(sorted []*cluster.EgressIP, o cluster.Owner) *cluster.EgressIP {
	i, found := slices.BinarySearchFunc(sorted, o,
		func(e *cluster.EgressIP, o cluster.Owner) int { return e.Owner.Compare(o) })
	if !found {
		return nil
	}
	return sorted[i]
}
