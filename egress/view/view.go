// Package view computes an agent's view of EgressIPs: their status, corrected by what the agent
// itself knows of dead nodes, moving addresses and conflicts.
//
// The EgressIPs of a Snapshot include EgressServices and load balancer addresses. A load balancer
// address is only announced (EgressIP.OnlyAnnounced), and moves in another way: no pods are routed
// to its node, but nodes that had it forward packets of its open connections to each other.
package view

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"hairpin/cluster"
	"hairpin/egress/probe"
	"hairpin/kube"
	"hairpin/plan/assign"
	"hairpin/retry"
)

const (
	// aheadFor limits how long an agent may be ahead of the controller. If the controller has not
	// moved a node's addresses by then, the controller is right. A controller may have died
	// together with the node: its Lease must expire first.
	aheadFor = kube.LeaseDuration + 5*time.Second
	// doubtFor is how long a node that seems dead may be alive. For so long, packets of open
	// connections to its load balancer addresses are forwarded to it, unless the controller has
	// moved them. Clients of connections that are lost get a reset that much later.
	doubtFor = 5 * time.Second
	// recheckReleased is the interval at which a node checks whether a released address is its own.
	recheckReleased = 2 * time.Second
	// conflictFor is how long a foreign machine with an egress address is reported.
	conflictFor = time.Minute
)

// View is an agent's view of EgressIPs: their status, with three exceptions. The addresses of a
// node that this agent itself considers dead are where the controller will move them: the rule is a
// pure function, and every node knows it. An address that turns out to be another node's is on that
// node. An address that moves between two live nodes is on both for a time (moves.go).
type View struct {
	node       string
	log        *slog.Logger
	prober     Nodes
	apiReplies func() bool // whether the API replies
	alone      bool        // there is no API, and no controller to be ahead of
	Verify     verifyFunc

	Base          *cluster.Snapshot    // the last one from the API
	out           *cluster.Snapshot    // Base with this agent's view
	lost, dead    map[string]bool      // the unreachable nodes of out; dead: for doubtFor at least
	lostSince     map[string]time.Time // when nodes became unreachable
	ahead         map[string]time.Time // since when the addresses of a lost node are elsewhere in out
	alive         map[string]bool      // nodes that count as alive while they are unreachable, see treatAsAlive
	released      map[netip.Addr]releasedAddress
	foreignClaims map[netip.Addr]foreignClaim
	moves         map[netip.Addr]*movement
	corrected     map[cluster.Owner]correctedEgressIP
	stale         bool // out must be made again
	nextTargets   time.Time
	nextSolicit   time.Time
	lastSolicited netip.Addr // the last address that Solicit returned
}

// Nodes reports which nodes are alive, like a prober.
type Nodes interface {
	SetTargets(nodes map[string]netip.Addr) // sets the nodes to probe
	Unreachable() map[string]bool
	Replies(node string) bool // whether it replied to the last probes
	Off() bool                // probing is disabled
	// Disturbed returns when a probed node last did not reply, or probing itself had stalled.
	Disturbed() time.Time
}

// releasedAddress is an address that another node claims, without contradiction by the API.
type releasedAddress struct {
	to      string
	items   []cluster.Assignment // of the EgressIP at that time
	check   time.Time
	claimed time.Time // when another node last claimed it
}

// foreignClaim is a claim of a machine that is no node.
type foreignClaim struct {
	mac   cluster.MAC
	last  time.Time
	owner cluster.Owner
}

// correctedEgressIP has an EgressIP of the API, and out, its copy with this agent's view. The
// pointer out changes only when the view does.
type correctedEgressIP struct{ base, out *cluster.EgressIP }

func New(node string, p Nodes, apiReplies func() bool, alone bool, log *slog.Logger) *View {
	return &View{
		node: node, log: log, prober: p, apiReplies: apiReplies, alone: alone, ahead: map[string]time.Time{},
		alive: map[string]bool{}, lostSince: map[string]time.Time{},
		released: map[netip.Addr]releasedAddress{}, foreignClaims: map[netip.Addr]foreignClaim{},
		moves: map[netip.Addr]*movement{}, corrected: map[cluster.Owner]correctedEgressIP{},
	}
}

// Correct returns the Snapshot with this agent's view, and when to call it again.
func (v *View) Correct(now time.Time, s *cluster.Snapshot) (*cluster.Snapshot, time.Duration) {
	if s == nil || v.idle(s) {
		v.prober.SetTargets(nil)
		v.Base, v.out = s, s
		return s, 0
	}
	lost, again := v.lostNodes(now, s)
	fresh := s != v.Base
	if fresh {
		again = retry.Sooner(again, v.watchMoves(now, s, lost))
	} else {
		again = retry.Sooner(again, v.ageMoves(now, lost))
	}
	dead, wait := v.ageLost(now, lost)
	again = retry.Sooner(again, wait, v.ageClaims(now, s))
	if fresh || v.stale || !maps.Equal(lost, v.lost) || !maps.Equal(dead, v.dead) {
		v.Base, v.lost, v.dead, v.stale = s, lost, dead, false
		v.out = v.overlay(now, s, lost)
		again = retry.Sooner(again, v.ageMoves(now, lost)) // moves that startMovesAway started
		v.nextTargets = time.Time{}
	}
	if !v.nextTargets.After(now) {
		v.nextTargets = now.Add(10 * time.Second) // the management port may exist now
		v.prober.SetTargets(v.targets(s))
	}
	return v.out, again
}

// idle reports whether there are no EgressIPs, and nothing of deleted ones remains.
func (v *View) idle(s *cluster.Snapshot) bool {
	return len(s.EgressIPs) == 0 && (v.Base == nil || len(v.Base.EgressIPs) == 0) &&
		len(v.moves) == 0 && len(v.foreignClaims) == 0
}

// targets returns the nodes that carry addresses, if they concern this node: it may have to carry
// the addresses, or has pods that use them.
func (v *View) targets(s *cluster.Snapshot) map[string]netip.Addr {
	own := s.Node(v.node)
	if own == nil || !s.MayCarry(own) && !selectsOn(s, v.node) {
		return nil
	}
	carriers := map[string]bool{}
	for _, list := range [][]*cluster.EgressIP{s.EgressIPs, v.out.EgressIPs} {
		for _, e := range list {
			for _, a := range e.Assigned {
				carriers[a.Node] = true
			}
			for _, m := range e.Moving {
				carriers[m.From] = true
			}
		}
	}
	return probe.Targets(s, func(n *cluster.Node) bool { return carriers[n.Name] })
}

// selectsOn reports whether an EgressIP selects a pod of a node.
func selectsOn(s *cluster.Snapshot, node string) bool {
	spaces := map[string]*cluster.Namespace{}
	for _, n := range s.Namespaces {
		spaces[n.Name] = n
	}
	for _, p := range s.Pods {
		n := spaces[p.Owner.Namespace]
		if p.Node != node || n == nil {
			continue
		}
		for _, e := range s.EgressIPs {
			if e.Selects(p, n.Labels) {
				return true
			}
		}
	}
	return false
}

// lostNodes returns the nodes that seem dead. After aheadFor, a node is alive if the controller
// leaves addresses there, and the API can be reached.
func (v *View) lostNodes(now time.Time, s *cluster.Snapshot) (map[string]bool, time.Duration) {
	lost := maps.Clone(v.prober.Unreachable())
	var again time.Duration
	maps.DeleteFunc(v.ahead, func(n string, _ time.Time) bool { return !lost[n] })
	for n := range v.alive {
		if !lost[n] {
			delete(v.alive, n)
		}
		delete(lost, n)
	}
	for n := range lost {
		if v.alone || !anyOn(s, map[string]bool{n: true}) {
			delete(v.ahead, n)
			continue
		}
		since, is := v.ahead[n]
		if !is {
			since = now
			v.ahead[n] = now
			v.log.Info("taking over a dead node's egress addresses before the controller decides", "target", n)
		}
		switch wait := since.Add(aheadFor).Sub(now); {
		case wait > 0:
			again = retry.Sooner(again, wait)
		case v.apiReplies():
			v.treatAsAlive(n)
			delete(lost, n)
		default:
			again = retry.Sooner(again, retry.Last) // until the API replies
		}
	}
	return lost, again
}

// ageLost returns the nodes that have seemed dead for doubtFor, and when there may be another one.
func (v *View) ageLost(now time.Time, lost map[string]bool) (dead map[string]bool, again time.Duration) {
	maps.DeleteFunc(v.lostSince, func(n string, _ time.Time) bool { return !lost[n] })
	dead = map[string]bool{}
	for n := range lost {
		if _, is := v.lostSince[n]; !is {
			v.lostSince[n] = now
		}
		if wait := v.lostSince[n].Add(doubtFor).Sub(now); wait > 0 {
			again = retry.Sooner(again, wait)
		} else {
			dead[n] = true
		}
	}
	return dead, again
}

// treatAsAlive ignores that a node is unreachable, until it replies again.
func (v *View) treatAsAlive(node string) {
	v.log.Warn("node is alive after all", "target", node)
	v.alive[node] = true
	v.stale = true
}

// anyOn reports whether one of these nodes has an egress address.
func anyOn(s *cluster.Snapshot, nodes map[string]bool) bool {
	return slices.ContainsFunc(s.EgressIPs, func(e *cluster.EgressIP) bool { return on(e, nodes) })
}

// on reports whether one of these nodes has an address of e.
func on(e *cluster.EgressIP, nodes map[string]bool) bool {
	return slices.ContainsFunc(e.Assigned, func(a cluster.Assignment) bool { return nodes[a.Node] })
}

// overlay makes the Snapshot with the view.
func (v *View) overlay(now time.Time, s *cluster.Snapshot, lost map[string]bool) *cluster.Snapshot {
	var decided []assign.Decision // for each of s.EgressIPs, if an address of them must move
	if anyOn(s, lost) {
		decided = assign.Addresses(s, assign.Observed{Unreachable: lost})
	}
	list, made, same := slices.Concat(s.EgressIPs, v.ended(s)), map[cluster.Owner]correctedEgressIP{}, true
	for i, e := range list {
		items := e.Assigned
		if i < len(decided) {
			items = takenOver(e, decided[i].Items, lost)
		}
		items = v.withoutReleased(items)
		v.startMovesAway(now, s, e, items)
		items, moving := v.withMoves(e, items, lost)
		if slices.Equal(items, e.Assigned) && len(moving) == 0 {
			continue
		}
		m := v.corrected[e.Owner]
		if m.base != e || !slices.Equal(m.out.Assigned, items) || !slices.Equal(m.out.Moving, moving) {
			out := *e
			out.Assigned, out.Moving = items, moving
			m = correctedEgressIP{e, &out}
		}
		made[e.Owner], list[i], same = m, m.out, false
	}
	v.corrected = made
	if same {
		return s
	}
	out := *s
	out.EgressIPs = slices.SortedFunc(slices.Values(list), (*cluster.EgressIP).Compare)
	return &out
}

// takenOver returns the assignments of an EgressIP with the addresses of lost nodes where they were
// decided to be. An address without another node is left out if the EgressIP has another of the
// family, or releases it. Otherwise it stays on the lost node until the controller removes it.
func takenOver(e *cluster.EgressIP, decided []cluster.Assignment, lost map[string]bool) []cluster.Assignment {
	if !on(e, lost) {
		return e.Assigned
	}
	list := slices.Clone(decided)
	for _, a := range e.Assigned {
		if !e.Releases && !slices.ContainsFunc(decided,
			func(d cluster.Assignment) bool { return d.Address.Is4() == a.Address.Is4() }) {
			list = append(list, a)
		}
	}
	slices.SortFunc(list, cluster.Assignment.Compare)
	return list
}

func (v *View) withoutReleased(items []cluster.Assignment) []cluster.Assignment {
	if len(v.released) == 0 {
		return items
	}
	list := slices.Clone(items)
	for i, a := range list {
		if y, is := v.released[a.Address]; is && a.Node == v.node {
			list[i].Node = y.to
		}
	}
	return list
}

// FieldAnnounced is the field of a Service in problems about an announced address that another
// machine uses.
const FieldAnnounced = "status.loadBalancer"

// Conflicts reports foreign machines that have egress addresses.
func (v *View) Conflicts() []cluster.Problem {
	var list []cluster.Problem
	for _, a := range slices.SortedFunc(maps.Keys(v.foreignClaims), netip.Addr.Compare) {
		x, field := v.foreignClaims[a], "spec.egressIPs"
		if x.owner.Kind == "Service" {
			field = FieldAnnounced
		}
		list = append(list, cluster.Problem{Owner: x.owner, Field: field,
			Message: fmt.Sprintf("another machine, %s, has the address %s, too: seen on the network by node %s", x.mac,
				a, v.node)})
	}
	return list
}
