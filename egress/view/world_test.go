package view

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/egress/wire"
	"hairpin/plan/assign"
)

// world simulates agents with their Views, in simulated time: what their nodes answer for, the
// network between them, and an API server and a controller on the first node. Frames, probes and
// requests to the API pass if the switches of both nodes run and the network between them works.
type world struct {
	now     time.Time
	agents  []*worldAgent
	blocked map[[2]int]bool // from → to
	api     bool            // the API server and the controller run
	status  *cluster.Snapshot
	watched *worldProber                 // the controller's
	shared  map[netip.Addr]time.Duration // for how long two nodes have answered
	split   map[netip.Addr]time.Duration // the same of nodes that do not reach each other
	history []string
}

// worldAgent is an agent and its node.
type worldAgent struct {
	*View
	id       int
	prober   *worldProber
	running  bool // its process runs; a stopped process keeps its state
	exists   bool // its process exists
	forwards bool // ovs-vswitchd runs
	port     bool // the management port exists
	received *cluster.Snapshot
	// stale is until when its connections to the API wait for a retransmission.
	stale   time.Time
	cut     time.Time // since when the API is not reachable; zero: it is
	carries map[netip.Addr]bool
	claims  []wire.Claim
	answers []Verdict
	sent    map[netip.Addr]worldAnnounced
}

type worldAnnounced struct {
	times int
	next  time.Time
}

// worldProber has the decisions of egress/probe for nodes that always reply at once or never.
type worldProber struct {
	lost      map[string]bool
	silent    map[string]time.Time // since when a node has not replied
	returning map[string]time.Time // since when a lost node replies again
	disturbed time.Time
	last      time.Time
}

func (p *worldProber) SetTargets(map[string]netip.Addr) {}
func (p *worldProber) Unreachable() map[string]bool     { return p.lost }
func (p *worldProber) Replies(node string) bool         { return !p.lost[node] && p.silent[node].IsZero() }
func (p *worldProber) Off() bool                        { return false }
func (p *worldProber) Disturbed() time.Time             { return p.disturbed }

const (
	worldStep    = 50 * time.Millisecond
	worldSilence = 500 * time.Millisecond
)

func newWorldProber(now time.Time) *worldProber {
	return &worldProber{lost: map[string]bool{}, silent: map[string]time.Time{}, returning: map[string]time.Time{},
		disturbed: now, last: now}
}

// probe updates the nodes that are lost.
func (p *worldProber) probe(now time.Time, replies map[string]bool) {
	if gap := now.Sub(p.last); gap > 2*worldStep { // the process was stopped
		p.disturbed, p.silent = now, map[string]time.Time{}
	}
	p.last = now
	silent, alive := 0, 0
	for _, n := range slices.Sorted(maps.Keys(replies)) {
		switch {
		case replies[n]:
			delete(p.silent, n)
			if p.returning[n].IsZero() {
				p.returning[n] = now
			}
			if p.lost[n] && now.Sub(p.returning[n]) >= time.Second {
				p.lost = maps.Clone(p.lost)
				delete(p.lost, n)
			}
		default:
			delete(p.returning, n)
			if p.silent[n].IsZero() {
				p.silent[n] = now
			}
		}
		switch {
		case p.lost[n]:
		case replies[n]:
			alive++
		default:
			silent++
		}
		if !replies[n] || p.lost[n] {
			p.disturbed = now
		}
	}
	if silent > max(alive, 1) {
		return // isolated
	}
	for n, since := range p.silent {
		if !p.lost[n] && now.Sub(since) >= worldSilence {
			p.lost = maps.Clone(p.lost)
			p.lost[n] = true
		}
	}
}

var worldNames = []string{"a", "b", "c"}

// newWorld returns a world with two egress addresses, or with two load balancer addresses.
func newWorld(announced bool) *world {
	w := &world{now: time.Unix(1000, 0), blocked: map[[2]int]bool{}, api: true,
		shared: map[netip.Addr]time.Duration{}, split: map[netip.Addr]time.Duration{}}
	w.watched = newWorldProber(w.now)
	w.status = decidedBy(first+" b", second+" c")
	second := *w.status.EgressIPs[0]
	w.status.EgressIPs[0].Addresses, w.status.EgressIPs[0].Assigned = second.Addresses[:1], second.Assigned[:1]
	second.Owner.Name, second.Addresses, second.Assigned = "f", second.Addresses[1:], second.Assigned[1:]
	w.status.EgressIPs = append(w.status.EgressIPs, &second)
	if announced {
		for _, e := range w.status.EgressIPs {
			e.Owner.Kind, e.Service = "Service", &cluster.EgressService{Announced: &cluster.Announcement{}}
		}
	}
	for i := range worldNames {
		a := &worldAgent{id: i, forwards: true, port: true, carries: map[netip.Addr]bool{}}
		w.agents = append(w.agents, a)
		w.start(a)
	}
	return w
}

// start starts the process of an agent.
func (w *world) start(a *worldAgent) {
	a.exists, a.running, a.received, a.stale = true, true, nil, time.Time{} // it opens new connections
	a.prober = newWorldProber(w.now)
	a.claims, a.answers, a.sent = nil, nil, map[netip.Addr]worldAnnounced{}
	a.View = New(worldNames[a.id], a.prober, func() bool { return w.reached(a) }, false,
		slog.New(slog.NewTextHandler(io.Discard, nil)))
	a.Verify = func(e *cluster.EgressIP, x netip.Addr, claimer string) {
		v := Verdict{Address: x, claimer: claimer}
		if w.reached(a) {
			v.node = "nobody"
			if n := find(w.status.EgressIPs, e.Owner).NodeOf(x); n != "" {
				v.node = n
			}
		}
		a.answers = append(a.answers, v)
	}
}

// passes reports whether a frame gets from one node to another.
func (w *world) passes(from, to int) bool {
	return w.agents[from].forwards && w.agents[to].forwards && !w.blocked[[2]int{from, to}]
}

// connected reports whether an agent can reach the API server now.
func (w *world) connected(a *worldAgent) bool {
	return w.api && (a.id == 0 || w.passes(a.id, 0) && w.passes(0, a.id))
}

// reached reports whether an agent's requests are answered.
func (w *world) reached(a *worldAgent) bool { return w.connected(a) && !w.now.Before(a.stale) }

// replies returns which nodes reply to probes from a node.
func (w *world) replies(from int) map[string]bool {
	list := map[string]bool{}
	for _, b := range w.agents {
		if b.id != from {
			list[worldNames[b.id]] = b.port && w.agents[from].port && w.passes(from, b.id) && w.passes(b.id, from)
		}
	}
	return list
}

// control decides like the controller.
func (w *world) control() {
	if !w.api {
		return
	}
	replies := w.replies(0)
	w.watched.probe(w.now, replies)
	decided, changed := *w.status, false
	decided.EgressIPs = nil
	for _, d := range assign.Addresses(w.status, assign.Observed{Unreachable: w.watched.lost}) {
		e := *d.EgressIP
		if !slices.Equal(e.Assigned, d.Items) && len(d.Items) == len(e.Addresses) {
			e.Assigned, changed = d.Items, true
		}
		decided.EgressIPs = append(decided.EgressIPs, &e)
	}
	if changed {
		w.status = &decided
	}
}

// step advances the world.
func (w *world) step() {
	w.now = w.now.Add(worldStep)
	w.control()
	for _, a := range w.agents {
		switch connected := w.connected(a); {
		case connected && !a.cut.IsZero(): // TCP sends again after as long as the time until now
			a.stale, a.cut = w.now.Add(min(w.now.Sub(a.cut), 20*time.Second)), time.Time{}
		case !connected && a.cut.IsZero():
			a.cut = w.now
		}
	}
	for _, a := range w.agents {
		if a.running {
			w.round(a)
		}
	}
	w.judge()
}

// round is a round of an agent's loop.
func (w *world) round(a *worldAgent) {
	a.prober.probe(w.now, w.replies(a.id))
	if w.reached(a) {
		a.received = w.status
	}
	claims, answers := a.claims, a.answers
	a.claims, a.answers = nil, nil
	for _, c := range claims {
		if a.OnClaim(w.now, c) {
			w.defend(a, c.Address)
		}
	}
	for _, v := range answers {
		if a.OnVerdict(w.now, v) {
			w.defend(a, v.Address)
		}
	}
	s, _ := a.Correct(w.now, a.received)
	if s == nil {
		return // it has no Snapshot: the node stays as it is
	}
	if a.forwards {
		a.carries = map[netip.Addr]bool{}
		for _, e := range s.EgressIPs {
			for _, x := range e.Addresses {
				if e.CarriedBy(a.node, x) {
					a.carries[x] = true
				}
			}
		}
	}
	for x := range a.sent {
		if !a.carries[x] {
			delete(a.sent, x)
		}
	}
	for x := range a.carries {
		if n := a.sent[x]; n.times < 5 && !n.next.After(w.now) {
			a.sent[x] = worldAnnounced{n.times + 1, w.now.Add(250 * time.Millisecond << n.times)}
			for _, b := range w.agents {
				w.deliver(b, a, x)
			}
		}
	}
	list, _ := a.Solicit(w.now)
	for _, x := range list {
		for _, b := range w.agents {
			if b != a && b.carries[x] && w.passes(a.id, b.id) {
				w.deliver(a, b, x)
			}
		}
	}
}

// deliver delivers an ARP packet of one node with the address to the agent of another.
func (w *world) deliver(a, from *worldAgent, x netip.Addr) {
	if a != from && a.exists && w.passes(from.id, a.id) && (a.carries[x] || slices.Contains(a.Released(), x)) {
		a.claims = append(a.claims, wire.Claim{Address: x, MAC: w.status.Nodes[from.id].Gateway.MAC})
	}
}

func (w *world) defend(a *worldAgent, x netip.Addr) {
	n := a.sent[x]
	a.sent[x] = worldAnnounced{min(n.times, 3), w.now}
}

// judge measures for how long two nodes answer for an address. What no agent can release does not
// count, because it does not run or has not reached the API server since its start.
func (w *world) judge() {
	for _, x := range []netip.Addr{netip.MustParseAddr(first), netip.MustParseAddr(second)} {
		var list []*worldAgent
		for _, a := range w.agents {
			if a.carries[x] && a.forwards {
				list = append(list, a)
			}
		}
		counts := len(list) > 1
		split, reached := false, true
		for _, a := range list {
			counts = counts && a.running && a.received != nil
			reached = reached && w.reached(a)
			for _, b := range list {
				split = split || w.blocked[[2]int{a.id, b.id}]
			}
		}
		if w.shared[x] += worldStep; !counts || split {
			w.shared[x] = 0
		}
		if w.split[x] += worldStep; !counts || !split || !reached {
			w.split[x] = 0
		}
	}
}

func (w *world) String() string {
	var b strings.Builder
	for _, h := range w.history {
		fmt.Fprintln(&b, h)
	}
	for _, a := range w.agents {
		fmt.Fprintf(&b, "%s: running %t forwards %t carries %v lost %v released %v\n", a.node, a.running, a.forwards,
			a.carries, a.prober.lost, a.released)
	}
	fmt.Fprintf(&b, "status: %v %v\n", w.status.EgressIPs[0].Assigned, w.status.EgressIPs[1].Assigned)
	return b.String()
}

func (w *world) note(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf("%6.2f s  %s", w.now.Sub(time.Unix(1000, 0)).Seconds(),
		fmt.Sprintf(format, args...)))
}

// longestShared is how long two nodes may answer for an address.
const longestShared = 2 * time.Second

// TestNoAddressTwice: with any combination of faults, no two nodes with a running agent that reach
// each other answer for an address for longer than two seconds. Two nodes that do not reach each
// other, but the API, do so for longer by the time of a takeover. In the end the node of the status
// has the address.
func TestNoAddressTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.Bool().Draw(t, "announced"))
		run := func(d time.Duration) {
			for end := w.now.Add(d); w.now.Before(end); {
				w.step()
				for x := range w.shared {
					if w.shared[x] > longestShared || w.split[x] > aheadFor+longestShared {
						t.Fatalf("%s is on two nodes at %.2f s\n%s", x, w.now.Sub(time.Unix(1000, 0)).Seconds(), w)
					}
				}
			}
		}
		run(12 * time.Second)
		for range rapid.IntRange(1, 8).Draw(t, "faults") {
			a := w.agents[rapid.IntRange(0, 2).Draw(t, "node")]
			b := w.agents[rapid.IntRange(0, 2).Draw(t, "peer")]
			kinds := []string{"switch", "stop", "kill", "start", "port", "block", "api"}
			what := rapid.SampledFrom(kinds).Draw(t, "kind")
			w.note("%s %s %s", what, worldNames[a.id], worldNames[b.id])
			switch what {
			case "switch": // ovs-vswitchd is stopped or continues
				a.forwards = !a.forwards
			case "stop": // the agent's process is stopped or continues
				a.running = a.exists && !a.running
			case "kill":
				a.exists, a.running = false, false
			case "start":
				if !a.exists {
					w.start(a)
				}
			case "port":
				a.port = !a.port
			case "block":
				w.blocked[[2]int{a.id, b.id}] = !w.blocked[[2]int{a.id, b.id}]
			case "api":
				w.api = !w.api
			}
			tenths := rapid.IntRange(0, 25).Draw(t, "tenths") * rapid.SampledFrom([]int{1, 10}).Draw(t, "scale")
			run(time.Duration(tenths) * 100 * time.Millisecond)
		}
		w.note("everything heals")
		clear(w.blocked)
		w.api = true
		for _, a := range w.agents {
			a.forwards, a.port, a.running = true, true, a.exists
			if !a.exists {
				w.start(a)
			}
		}
		run(60 * time.Second)
		for i, x := range []string{first, second} {
			for _, a := range w.agents {
				want := w.status.EgressIPs[i].NodeOf(netip.MustParseAddr(x)) == a.node
				if a.carries[netip.MustParseAddr(x)] != want {
					t.Fatalf("%s is not on the node of the status\n%s", x, w)
				}
			}
		}
	})
}
