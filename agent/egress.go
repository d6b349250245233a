package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"hairpin/cluster"
	"hairpin/config"
	"hairpin/datapath/host"
	"hairpin/egress/probe"
	"hairpin/egress/view"
	"hairpin/egress/wire"
	"hairpin/kube"
	"hairpin/kubeapi"
	"hairpin/report"
	"hairpin/retry"
)

// reasonConflict is the reason of Events on EgressIPs, and on Services with an announced address,
// if another machine uses the address.
const reasonConflict = "AddressConflict"

// egressReason returns the reason of a problem's Event.
func egressReason(p cluster.Problem) string {
	if p.Owner.Kind == "EgressIP" || p.Field == view.FieldAnnounced {
		return reasonConflict
	}
	return kube.ReasonProblem
}

// egressHandler handles egress addresses: it probes other nodes, detects conflicting claims, and
// announces the node's own addresses.
type egressHandler struct {
	node         string
	log          *slog.Logger
	inbox        *inbox
	countDropped func() // counts a dropped claim
	view         *view.View
	prober       *probe.Prober
	listener     *wire.Listener
	neighbors    *wire.Neighbors
	solicitErr   retry.LastError
	announced    wire.Announced

	observed *cluster.Snapshot // that observe returned last
	// gained is when this node got its egress addresses; nil before the first Snapshot. A time is
	// zero if it is not to be measured, or measured already.
	gained      map[netip.Addr]time.Time
	observeMove func(time.Duration) // measures the time until an address is announced
	carriers    egressCarriers      // of all addresses
	inUse       atomic.Bool         // the node has egress addresses, or still translates for one that it has lost
}

func newEgressHandler(
	node string, p config.EgressProbing, client *kubeapi.Client, api *kube.Reach, b *inbox, m *monitoring,
	log *slog.Logger,
) *egressHandler {
	e := &egressHandler{node: node, log: log, inbox: b, countDropped: m.dropClaim, observeMove: m.addressMoved}
	e.prober = probe.New(p, log, nil)
	e.view = view.New(node, e.prober, api.Answers, client == nil, log)
	e.listener = wire.NewListener(e.enqueueClaims, log, e.countDropped)
	e.neighbors = wire.NewNeighbors(log)
	return e
}

func (e *egressHandler) start(ctx context.Context, client *kubeapi.Client, start func(func())) {
	v := view.NewVerifier(client, func(w view.Verdict) {
		e.inbox.enqueue(func(m *events) { m.verdicts = append(m.verdicts, w) })
	}, e.countDropped)
	e.view.Verify = v.Ask
	start(func() { v.Run(ctx) })
	start(func() { e.prober.Run(ctx) })
	start(func() { follow(ctx, e.inbox, e.prober.Changed.C(), func(m *events, _ struct{}) { m.changed = true }) })
	start(func() { e.listener.Run(ctx) })
	start(func() { e.neighbors.Run(ctx) })
}

// enqueueClaims puts claims into the inbox, and drops those that exceed its limit.
func (e *egressHandler) enqueueClaims(list []wire.Claim) {
	e.inbox.enqueue(func(m *events) {
		accepted := min(len(list), max(0, wire.MaxClaims-len(m.claims)))
		for range list[accepted:] {
			e.countDropped()
		}
		m.claims = append(m.claims, list[:accepted]...)
	})
}

// observe returns the Snapshot with the actual nodes of egress addresses, and when to call it
// again.
func (e *egressHandler) observe(now time.Time, m *events) (*cluster.Snapshot, time.Duration) {
	for _, c := range m.claims {
		if e.view.OnClaim(now, c) {
			e.announced.Defend(now, c.Address)
		}
	}
	for _, w := range m.verdicts {
		if e.view.OnVerdict(now, w) {
			e.announced.Defend(now, w.Address)
		}
	}
	s, again := e.view.Correct(now, m.snapshot)
	if s != e.observed {
		e.observed = s
		e.record(now, s)
	}
	return s, again
}

// egressCarriers has the node of each egress address, and since when. It is not modified.
type egressCarriers map[netip.Addr]egressCarrier

type egressCarrier struct {
	node  string
	since time.Time // zero: before the first Snapshot
}

// next returns the carriers of the next Snapshot; c is nil before the first one.
func (c egressCarriers) next(now time.Time, s *cluster.Snapshot) egressCarriers {
	next := egressCarriers{}
	for _, x := range s.EgressIPs {
		for _, a := range x.Assigned {
			was := c[a.Address]
			if was.node != a.Node {
				was = egressCarrier{node: a.Node}
				if c != nil {
					was.since = now
				}
			}
			next[a.Address] = was
		}
	}
	return next
}

// setSince sets Since in reports: when the nodes got the addresses.
func (c egressCarriers) setSince(list []report.Egress) {
	for i := range list {
		if a, err := netip.ParseAddr(list[i].Address); err == nil && c[a].node == list[i].Node {
			list[i].Since = c[a].since
		}
	}
}

// record records which nodes have the egress addresses of a new Snapshot.
func (e *egressHandler) record(now time.Time, s *cluster.Snapshot) {
	if s == nil {
		return
	}
	e.gained, e.carriers = e.nextGained(now, s), e.carriers.next(now, s)
	e.inUse.Store(slices.ContainsFunc(s.EgressIPs, func(x *cluster.EgressIP) bool {
		return slices.ContainsFunc(x.Assigned, func(a cluster.Assignment) bool { return a.Node == e.node }) ||
			slices.ContainsFunc(x.Moving, func(m cluster.Move) bool { return m.From == e.node })
	}))
}

// nextGained returns gained for the next Snapshot.
func (e *egressHandler) nextGained(now time.Time, s *cluster.Snapshot) map[netip.Addr]time.Time {
	next := map[netip.Addr]time.Time{}
	for _, x := range s.EgressIPs {
		for _, a := range x.Assigned {
			if !x.CarriedBy(e.node, a.Address) {
				continue
			}
			t, had := e.gained[a.Address]
			if !had && e.gained != nil {
				t = now
			}
			next[a.Address] = t
		}
	}
	return next
}

// measureMoves measures how long the move of each address took that is announced for the first
// time.
func (e *egressHandler) measureMoves(now time.Time, before map[netip.Addr]bool) {
	for a := range e.announced.Addresses() {
		if t := e.gained[a]; !before[a] && !t.IsZero() {
			e.observeMove(now.Sub(t))
			e.gained[a] = time.Time{}
		}
	}
}

// announce announces new egress addresses of the own Node, and listens for conflicting claims. It
// returns when to call it again.
func (e *egressHandler) announce(
	now time.Time, own *cluster.Node, list []*cluster.EgressIP, planned map[host.AddressKey]host.Address,
) time.Duration {
	g := own.Gateway
	e.neighbors.Expect(g, e.node, list)
	before := e.announced.Addresses()
	wait, err := e.announced.Announce(now, own, list, planned)
	if err != nil {
		e.log.Warn("announce egress addresses", "error", err)
	} else {
		e.measureMoves(time.Now(), before)
	}
	watched := &wire.Watched{Bridge: g.Bridge, MAC: g.MAC, Addresses: e.announced.Addresses()}
	for _, a := range e.view.Released() {
		watched.Addresses[a] = true
	}
	e.listener.Expect(watched)
	return wait
}

// solicit detects other machines that have the node's egress addresses, if the node may have been
// separated from other nodes. It returns when to call it again.
func (e *egressHandler) solicit(now time.Time, g cluster.Gateway) time.Duration {
	list, again := e.view.Solicit(now)
	if len(list) > 0 {
		e.solicitErr.Warn(e.log, "detect conflicts of egress addresses", wire.Solicit(g, list))
	}
	return again
}

// problems reports why this node cannot take part in the probing of nodes for egress addresses.
func (e *egressHandler) problems() []cluster.Problem {
	if err := e.prober.Problem(); err != nil {
		return nodeProblem(e.node, "", "neither probes nodes for egress addresses nor answers probes: %v", err)
	}
	return nil
}
