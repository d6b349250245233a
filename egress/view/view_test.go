package view

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/egress/wire"
)

// carrierNode can carry egress addresses of 172.18.0.0/16.
func carrierNode(name string, id int) *cluster.Node {
	p := netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 18, 0, byte(id + 2)}), 16)
	return &cluster.Node{
		Name: name, ID: id, Addresses: []netip.Addr{p.Addr()}, HostAddresses: []netip.Prefix{p},
		Gateway: cluster.Gateway{Mode: cluster.ModeShared, Bridge: "br-ex", Uplink: "eth0",
			MAC: cluster.MAC{2, 0, 0, 0, 0, byte(id)}, Addresses: []netip.Prefix{p}},
		Egress: cluster.NodeEgress{Assignable: true, Ready: true},
	}
}

// decidedBy makes a Snapshot with one EgressIP, whose status is "ADDRESS NODE".
func decidedBy(items ...string) *cluster.Snapshot {
	e := &cluster.EgressIP{Owner: cluster.Owner{Kind: "EgressIP", Name: "e"}}
	for _, i := range items {
		address, node, _ := strings.Cut(i, " ")
		a := netip.MustParseAddr(address)
		e.Addresses = append(e.Addresses, a)
		if node != "" {
			e.Assigned = append(e.Assigned, cluster.Assignment{Address: a, Node: node})
		}
	}
	return &cluster.Snapshot{Config: cluster.DefaultConfig(),
		Nodes:     []*cluster.Node{carrierNode("a", 1), carrierNode("b", 2), carrierNode("c", 3)},
		EgressIPs: []*cluster.EgressIP{e}}
}

// seen is a View in simulated time.
type seen struct {
	t *testing.T
	*View
	now   time.Time
	asks  []string // requests to the API, by claimer
	API   bool
	again time.Duration
	nodes *others
}

// others are the other nodes, as a test determines.
type others struct {
	standing, lost map[string]bool
	disturbed      time.Time
}

func (o *others) SetTargets(map[string]netip.Addr) {}
func (o *others) Unreachable() map[string]bool     { return o.lost }
func (o *others) Replies(node string) bool         { return o.standing[node] }
func (o *others) Off() bool                        { return false }
func (o *others) Disturbed() time.Time             { return o.disturbed }

func newSeen(t *testing.T, node string) *seen {
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	s := &seen{t: t, now: time.Unix(1000, 0), API: true, nodes: &others{}}
	s.View = New(node, s.nodes, func() bool { return s.API }, false, log)
	s.Verify = func(_ *cluster.EgressIP, a netip.Addr, claimer string) {
		s.asks = append(s.asks, a.String()+" "+claimer)
	}
	s.probed("a", true, "b", true, "c", true)
	return s
}

// probed sets which nodes reply.
func (s *seen) probed(list ...any) {
	standing, lost := map[string]bool{}, map[string]bool{}
	for i := 0; i < len(list); i += 2 {
		standing[list[i].(string)] = list[i+1].(bool)
	}
	s.nodes.standing, s.nodes.lost = standing, lost
}

func (s *seen) lose(names ...string) {
	lost := map[string]bool{}
	for _, n := range names {
		lost[n] = true
	}
	s.nodes.lost = lost
}

// is calls Correct after a time, and compares.
func (s *seen) is(after time.Duration, snapshot *cluster.Snapshot, want string) {
	s.t.Helper()
	s.now = s.now.Add(after)
	var out *cluster.Snapshot
	out, s.again = s.Correct(s.now, snapshot)
	if again, _ := s.Correct(s.now, snapshot); again != out {
		s.t.Error("the same, and another pointer")
	}
	var words []string
	for _, a := range out.EgressIPs[0].Assigned {
		words = append(words, fmt.Sprint(a.Address, " ", a.Node))
	}
	for _, m := range out.EgressIPs[0].Moving {
		word := fmt.Sprintf("%s %s>%s", m.Address, m.From, m.To)
		if m.Early {
			word += " early"
		}
		if m.Lost {
			word += " lost"
		}
		words = append(words, word)
	}
	if got := strings.Join(words, ", "); got != want {
		s.t.Errorf("seen as %q, not %q", got, want)
	}
}

const first, second = "172.18.0.33", "172.18.0.44"

// TestEgressAhead: the addresses of a dead node are where the controller will move them. A node is
// alive if the controller leaves them there.
func TestEgressAhead(t *testing.T) {
	s := newSeen(t, "c")
	base := decidedBy(first+" a", second+" b")
	s.is(0, base, first+" a, "+second+" b")
	s.lose("a")
	s.is(time.Second, base, first+" c, "+second+" b, "+first+" a>c")
	if s.again == 0 || s.again > aheadFor {
		t.Error(s.again)
	}
	// as the controller says
	s.is(time.Second, decidedBy(first+" c", second+" b"), first+" c, "+second+" b, "+first+" a>c")
	s.is(time.Hour, base, first+" c, "+second+" b, "+first+" a>c")
	s.API = false
	s.is(aheadFor, base, first+" c, "+second+" b, "+first+" a>c") // no contradiction
	if s.again == 0 || s.again > time.Second {
		t.Errorf("whether the API replies is examined again after %v", s.again)
	}
	s.API = true
	// it releases the address, and keeps connections
	s.is(time.Second, base, first+" a, "+second+" b, "+first+" c>a")
	s.is(time.Hour, base, first+" a, "+second+" b")
	s.lose()
	s.is(0, base, first+" a, "+second+" b")
	s.lose("a")
	s.is(0, base, first+" c, "+second+" b, "+first+" a>c")
	// it claims the address: it is alive
	if s.OnClaim(s.now, wire.Claim{Address: netip.MustParseAddr(first), MAC: base.Nodes[0].Gateway.MAC}) {
		t.Error("a dead node's address is defended")
	}
	s.is(0, base, first+" a, "+second+" b, "+first+" c>a")

	s.lose("b", "c")
	// a has one of the family: the other is nowhere, without pods
	s.is(0, base, first+" a, "+first+" c>a")
	s.lose("a", "b", "c")
	// no node can have it: it is nowhere, and pods do not use the node's own address
	s.is(time.Hour, decidedBy(first+" a"), first+" a")
}

// TestEgressClaims: a node that receives a claim of another node requests the decision of the API.
// It releases the address if the API does not confirm its own. A foreign machine is reported.
func TestEgressClaims(t *testing.T) {
	s := newSeen(t, "c")
	base := decidedBy(first + " c")
	s.is(0, base, first+" c")
	a, b := netip.MustParseAddr(first), base.Nodes[1].Gateway.MAC
	if s.OnClaim(s.now, wire.Claim{Address: netip.MustParseAddr(second), MAC: b}) ||
		s.OnClaim(s.now, wire.Claim{Address: a, MAC: b}) || len(s.asks) != 1 || s.asks[0] != first+" b" {
		t.Fatal(s.asks)
	}
	if !s.OnVerdict(s.now, Verdict{a, "b", "c"}) {
		t.Error("it is ours, and not defended")
	}
	s.is(0, base, first+" c")
	if s.OnVerdict(s.now, Verdict{a, "b", ""}) { // no decision
		t.Error("defended, in doubt")
	}
	s.is(0, base, first+" b, "+first+" c>b") // released, in steps
	s.is(recheckReleased, base, first+" b, "+first+" c>b")
	if len(s.asks) != 2 {
		t.Error("not asked again", s.asks)
	}
	s.OnVerdict(s.now, Verdict{a, "b", "c"})
	s.is(0, base, first+" c")
	s.OnVerdict(s.now, Verdict{a, "b", "b"})
	s.is(0, base, first+" b, "+first+" c>b")
	s.is(0, decidedBy(first+" b"), first+" b, "+first+" c>b")
	s.is(0, decidedBy(first+" c"), first+" b, "+first+" b>c early") // assigned again: a planned move

	s = newSeen(t, "c")
	s.is(0, base, first+" c")
	s.OnClaim(s.now, wire.Claim{Address: a, MAC: cluster.MAC{6}, Solicited: true})
	if len(s.Conflicts()) > 0 {
		t.Error("proxy ARP is a conflict")
	}
	if !s.OnClaim(s.now, wire.Claim{Address: a, MAC: cluster.MAC{6}}) || len(s.Conflicts()) != 1 ||
		!strings.Contains(s.Conflicts()[0].Message, "06:00:00:00:00:00") {
		t.Error(s.Conflicts())
	}
	s.is(conflictFor+time.Second, base, first+" c")
	if len(s.Conflicts()) > 0 {
		t.Error(s.Conflicts())
	}

	s.OnClaim(s.now, wire.Claim{Address: a, MAC: cluster.MAC{6}})
	none := decidedBy()
	none.EgressIPs = nil
	again := time.Duration(1)
	for end := s.now.Add(2 * conflictFor); again > 0 && s.now.Before(end); s.now = s.now.Add(again) {
		_, again = s.Correct(s.now, none)
	}
	if again != 0 || len(s.Conflicts()) > 0 {
		t.Error("the last EgressIP is deleted, and its conflict stays:", again, s.Conflicts())
	}
}

// TestEgressMoves: from a live node, an address moves in steps. An unrequested move does not wait
// for a node whose reply is late, and a requested one does not wait for a dead node. Nodes that
// seem dead get packets of their connections.
func TestEgressMoves(t *testing.T) {
	before, after := decidedBy(first+" a"), decidedBy(first+" b")
	drained := decidedBy(first + " b")
	drained.Nodes[0].Egress.Assignable = false
	const first2 = first + " b, " + first + " a>b" // pods are rerouted
	for _, node := range []string{"a", "b", "c"} {
		for _, after := range []*cluster.Snapshot{after, drained} {
			s := newSeen(t, node)
			s.is(0, before, first+" a")
			s.is(time.Hour, after, first+" a, "+first+" a>b early")
			s.is(moveEarly, after, first+" a, "+first+" a>b")
			s.is(moveReroutes-moveEarly, after, first2)
			s.is(moveEnds-moveReroutes, after, first+" b")
			if len(s.moves) > 0 || s.again != 0 {
				t.Error(s.moves, s.again)
			}
		}
	}
	s := newSeen(t, "c")
	s.is(0, before, first+" a")
	s.probed("a", false, "b", true)
	s.is(0, after, first2)
	s.is(moveEnds, after, first+" b")
	s = newSeen(t, "c")
	s.is(0, before, first+" a")
	s.is(0, after, first+" a, "+first+" a>b early")
	s.probed("a", false, "b", true) // it dies now
	s.is(time.Millisecond, after, first2)
	s = newSeen(t, "c")
	s.is(0, before, first+" a")
	s.probed("a", false, "b", true) // its reply is late
	s.is(0, drained, first+" a, "+first+" a>b early")
	s.lose("a")
	s.is(time.Millisecond, drained, first2)
	s.lose("b")
	s.is(time.Millisecond, drained, first+" c, "+first+" b>c")
	drained.Nodes[2].Egress.Assignable = false // b alone may have it
	for _, node := range []string{"a", "c"} {  // the new one seems dead: the old one continues
		s = newSeen(t, node)
		s.is(0, before, first+" a")
		s.is(0, drained, first+" a, "+first+" a>b early")
		s.lose("b")
		s.is(moveReroutes, drained, first+" a, "+first+" a>b")
		s.lose()
		s.is(0, drained, first2)
	}
	s = newSeen(t, "c")
	s.is(0, before, first+" a")
	s.is(0, after, first+" a, "+first+" a>b early")
	s.is(0, decidedBy(first+" c"), first+" b, "+first+" b>c early") // and continues
	s.is(moveEnds, decidedBy(first), first+" c>")
	s.is(moveEnds, decidedBy(first), "")
}

// announcedOn is decidedBy for load balancer addresses.
func announcedOn(items ...string) *cluster.Snapshot {
	s := decidedBy(items...)
	s.EgressIPs[0].Owner.Kind = "Service"
	s.EgressIPs[0].Service = &cluster.EgressService{Announced: &cluster.Announcement{}}
	return s
}

// TestAnnouncedMoves: the new node of a load balancer address announces it at once. For minutes, it
// knows which node has the earlier connections, and whether that node seems dead. For two seconds,
// nothing is forwarded to a new node, which may not have the status yet.
func TestAnnouncedMoves(t *testing.T) {
	on := announcedOn
	before, after := on(first+" a"), on(first+" b")
	const moving = first + " b, " + first + " a>b"
	for _, node := range []string{"a", "b", "c"} {
		s := newSeen(t, node)
		s.is(0, before, first+" a")
		s.is(0, after, moving+" early")
		if s.again != moveReroutes {
			t.Error(s.again)
		}
		s.is(moveReroutes-1, after, moving+" early")
		s.is(1, after, moving)
		s.is(cluster.ForwardTime-moveReroutes-1, after, moving)
		s.is(1, after, first+" b")
		s.is(0, before, first+" a, "+first+" b>a early")
		s.is(time.Second, after, moving) // and back, within a short time
		s.is(time.Second, on(first+" c"), first+" c, "+first+" b>c early")
		s.is(time.Second, on(), "")
		if s.again > cluster.ForwardTime {
			t.Error(s.again)
		}
	}
	s := newSeen(t, "c")
	s.is(0, before, first+" a")
	s.is(0, after, moving+" early")
	s.lose("a")
	s.is(time.Second, after, moving+" early lost")
	s.lose()
	s.is(time.Second, after, moving) // it was not dead
	s = newSeen(t, "c")              // a takeover
	s.is(0, before, first+" a")
	s.lose("a")
	s.is(time.Second, before, moving) // it may be alive
	s.is(time.Second, after, moving+" lost")
	s.lose()
	s.is(time.Second, after, moving)
}

// TestAnnouncedPrevious: an agent that has just started knows from the status which nodes may have
// open connections to a load balancer address.
func TestAnnouncedPrevious(t *testing.T) {
	base := announcedOn(first+" c", second+" b")
	for _, n := range []string{"a", "b"} {
		base.EgressIPs[0].Previous = append(base.EgressIPs[0].Previous,
			cluster.Assignment{Address: netip.MustParseAddr(first), Node: n})
	}
	for _, node := range []string{"a", "b", "c"} {
		s := newSeen(t, node)
		s.is(0, base, first+" c, "+second+" b, "+first+" a>c, "+first+" b>c")
		if s.again != 0 {
			t.Error("the status does not expire here", s.again)
		}
		for _, why := range []string{"a,b", "b"} {
			if r := Report(s.out, s.Base); r[0].Why != "its open connections continue on "+why {
				t.Error(r)
			}
			s.lose("a")
			s.is(time.Hour, base, first+" c, "+second+" b, "+first+" a>c lost, "+first+" b>c")
		}
		s.lose("c")
		s.is(0, base, first+" b, "+second+" b, "+first+" a>b, "+first+" c>b")
	}
}

// TestAnnouncedFalseTakeover: a node considers another one dead that is alive, and announces its
// load balancer address for a time. Then each of them knows that the other one has connections.
func TestAnnouncedFalseTakeover(t *testing.T) {
	base := announcedOn(first + " a")
	a, claim := netip.MustParseAddr(first), wire.Claim{Address: netip.MustParseAddr(first),
		MAC: base.Nodes[1].Gateway.MAC}
	taken, alive := newSeen(t, "b"), newSeen(t, "a")
	taken.is(0, base, first+" a")
	taken.lose("a")
	taken.is(0, base, first+" b, "+first+" a>b")
	taken.is(doubtFor-1, base, first+" b, "+first+" a>b")
	taken.is(1, base, first+" b, "+first+" a>b lost")
	alive.is(0, base, first+" a")
	alive.OnClaim(alive.now, claim)
	alive.is(0, base, first+" a") // another machine may claim it, with the MAC of a node
	if !alive.OnVerdict(alive.now, Verdict{a, "b", "a"}) {
		t.Error("it is not announced again")
	}
	claim.MAC = base.Nodes[0].Gateway.MAC
	if taken.OnClaim(taken.now, claim) {
		t.Error("it is defended")
	}
	for _, s := range []*seen{taken, alive} {
		s.is(0, base, first+" a, "+first+" b>a")
		s.is(cluster.ForwardTime-1, base, first+" a, "+first+" b>a")
		s.is(1, base, first+" a")
	}
	alive.OnVerdict(alive.now, Verdict{a, "b", ""}) // the API does not answer
	alive.is(0, base, first+" b, "+first+" a>b")
	alive.OnVerdict(alive.now, Verdict{a, "b", "a"})
	alive.is(0, base, first+" a, "+first+" b>a")
	alive.is(0, announcedOn(first+" c"), first+" c, "+first+" a>c early") // a planned move
}

// TestEgressEnds: the node of an unassigned address continues for a time, also when the EgressIP is
// deleted; the others stop at once. If another node gets the address meanwhile, it has it.
func TestEgressEnds(t *testing.T) {
	base, none := decidedBy(first+" a", second+" a"), decidedBy()
	none.EgressIPs = nil
	for node, want := range map[string]string{"a": "e [] 172.18.0.33 a>, 172.18.0.44 a>", "b": ""} {
		s := newSeen(t, node)
		s.is(0, base, first+" a, "+second+" a")
		now, _ := s.Correct(s.now, none)
		for range 2 {
			got := ""
			for _, e := range now.EgressIPs {
				got = fmt.Sprint(e.Owner.Name, " ", e.Assigned, " ", e.Moving[0].Address, " ", e.Moving[0].From, ">, ",
					e.Moving[1].Address, " ", e.Moving[1].From, ">")
				if !e.Created.After(s.now) {
					t.Error("what is gone is older than another one")
				}
			}
			if got != want {
				t.Errorf("on %s: %q, not %q", node, got, want)
			}
			if _, err := json.Marshal(now); err != nil {
				t.Error("`hairpin explain` cannot be told:", err)
			}
			if again, _ := s.Correct(s.now.Add(time.Second), none); again != now {
				t.Error("the same, and another pointer")
			}
		}
		if now, again := s.Correct(s.now.Add(moveEnds), none); now != none || again != 0 {
			t.Errorf("on %s, there is something left: %v, %v", node, now.EgressIPs, again)
		}
		if now, _ = s.Correct(s.now.Add(moveEnds), nil); now != nil {
			t.Error("there is nothing, and something is seen")
		}
	}
	s := newSeen(t, "a")
	s.is(0, base, first+" a, "+second+" a")
	_, _ = s.Correct(s.now, none)
	s.is(0, decidedBy(first, second), first+" a>, "+second+" a>") // made again
	s.is(0, decidedBy(first+" b", second), first+" b, "+second+" a>")
	s.is(0, decidedBy(first+" b", second+" a"), first+" b, "+second+" a")
}

// TestEgressServiceAhead: all addresses of an EgressService move together, to a node without the
// label of EgressIPs. The rest of a deleted one comes after every other.
func TestEgressServiceAhead(t *testing.T) {
	s := newSeen(t, "c")
	base := decidedBy(first+" a", second+" a")
	e := base.EgressIPs[0]
	e.Service = &cluster.EgressService{}
	for _, n := range base.Nodes {
		n.Egress.Assignable = false
	}
	s.is(0, base, first+" a, "+second+" a")
	s.lose("a")
	s.is(time.Second, base, first+" b, "+second+" b, "+first+" a>b, "+second+" a>b")
	s = newSeen(t, "a")
	s.is(0, base, first+" a, "+second+" a")
	none := decidedBy()
	none.EgressIPs = nil
	now, _ := s.Correct(s.now, none)
	younger := &cluster.EgressIP{Owner: cluster.Owner{Kind: "EgressIP", Name: "z"}, Created: s.now}
	if len(now.EgressIPs) != 1 || !now.EgressIPs[0].Service.Ended || e.Service.Ended ||
		younger.ComparePrecedence(now.EgressIPs[0]) >= 0 || e.ComparePrecedence(younger) >= 0 {
		t.Errorf("what is left: %+v", now.EgressIPs)
	}
}

// TestEgressReleases: without another node, an address stays on a lost one, unless its EgressIP
// releases it.
func TestEgressReleases(t *testing.T) {
	for _, releases := range []bool{false, true} {
		base := decidedBy(first + " a")
		base.Nodes[1].Egress.Assignable, base.Nodes[2].Egress.Assignable = false, false
		base.EgressIPs[0].Releases = releases
		s := newSeen(t, "c")
		s.is(0, base, first+" a")
		s.lose("a")
		want := first + " a"
		if releases {
			want = ""
		}
		s.is(0, base, want)
	}
}
