package conn_test

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/datapath/conn"
)

func list(texts ...string) []netip.AddrPort {
	var out []netip.AddrPort
	for _, t := range texts {
		out = append(out, netip.MustParseAddrPort(t))
	}
	return out
}

const (
	vip  = "10.96.0.10:53"
	port = "172.18.0.3:30053"
	a    = "10.244.1.3:53"
	b    = "10.244.2.3:53"
)

// udp is the part of a State about Services.
type udp map[netip.AddrPort]conn.Targets

func (u udp) state() conn.State { return conn.State{UDP: u} }

// Diff deletes connections from an egress address that is elsewhere. Connections from addresses of
// the node, which are not in the wanted State, stay.
func TestDiffEgress(t *testing.T) {
	here, there, node := netip.MustParseAddr("10.10.10.33"), netip.MustParseAddr("10.10.10.34"),
		netip.MustParseAddr("10.10.10.4")
	want := conn.State{Egress: map[netip.Addr]conn.Egress{here: {}, there: {Elsewhere: true}}}
	for name, c := range map[string]struct {
		have map[netip.Addr]conn.Egress
		left []netip.Addr
	}{
		"found":                 {map[netip.Addr]conn.Egress{here: {}, there: {}, node: {}}, []netip.Addr{there}},
		"it was here until now": {map[netip.Addr]conn.Egress{there: {}}, []netip.Addr{there}},
		"it was not here":       {want.Egress, nil},
		"nothing is known":      {nil, nil},
	} {
		d := conn.Diff(want, conn.State{Egress: c.have})
		if !slices.Equal(d.LeftEgress, c.left) || d.Count() != len(c.left) || !d.Grow().Empty() {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// Leave adds an address once if this node no longer translates to it, or never knew it, whatever
// was found.
func TestLeave(t *testing.T) {
	here, there := netip.MustParseAddr("10.10.10.33"), netip.MustParseAddr("10.10.10.34")
	removed, other := netip.MustParseAddr("10.10.10.35"), netip.MustParseAddr("10.10.10.36")
	want := conn.State{Egress: map[netip.Addr]conn.Egress{here: {}, there: {Elsewhere: true}}}
	for name, c := range map[string]struct {
		before, found conn.State
		left          []netip.Addr
	}{
		"the agent started": {left: []netip.Addr{there}},
		"it is found, too": {found: conn.State{Egress: map[netip.Addr]conn.Egress{there: {}}},
			left: []netip.Addr{there}},
		"it was here until now": {before: conn.State{Egress: map[netip.Addr]conn.Egress{there: {}}},
			left: []netip.Addr{there}},
		"it has been left since": {before: want},
		"no EgressIP has it any more": {before: conn.State{Egress: map[netip.Addr]conn.Egress{
			there: {Elsewhere: true}, removed: {}, other: {Elsewhere: true}}}, left: []netip.Addr{removed}},
	} {
		if d := conn.Diff(want, c.found).AddLeftEgress(c.before, want); !slices.Equal(d.LeftEgress, c.left) {
			t.Errorf("%s: %v", name, d.LeftEgress)
		}
	}
}

// Diff deletes entries to endpoints that do not serve, also if no endpoint is left.
func TestDiff(t *testing.T) {
	at := netip.MustParseAddrPort
	for _, c := range []struct {
		name       string
		want, have conn.Targets
		dead       []netip.AddrPort
		back       bool
	}{
		{"nothing changed", conn.Targets{Live: list(a, b)}, conn.Targets{Live: list(a, b)}, nil, false},
		{"one is gone", conn.Targets{Live: list(b)}, conn.Targets{Live: list(a, b)}, list(a), false},
		{"the last is gone", conn.Targets{}, conn.Targets{Live: list(a, b)}, list(a, b), false},
		{"there was none", conn.Targets{}, conn.Targets{}, nil, false},
		{"none is left, no step stays", conn.Targets{Steps: list(vip)}, conn.Targets{Live: list(a, vip)}, list(vip, a),
			false},
		{"the first comes", conn.Targets{Live: list(b)}, conn.Targets{}, nil, true},
		{"a way is gone", conn.Targets{Live: list(b)}, conn.Targets{Live: list(b), Steps: list(vip)}, list(vip), false},
		{"a step on the way", conn.Targets{Live: list(b), Steps: list(vip)}, conn.Targets{Live: list(vip)}, nil, false},
	} {
		d := conn.Diff(udp{at(port): c.want}.state(),
			udp{at(port): c.have, at("192.0.2.1:53"): {Live: list(a)}}.state())
		var dead []netip.AddrPort
		for _, p := range d.Dead {
			if p.VIP != at(port) {
				t.Errorf("%s: %v is no address of ours", c.name, p)
			}
			dead = append(dead, p.To)
		}
		if !slices.Equal(dead, c.dead) || (len(d.Revived) == 1) != c.back ||
			d.Empty() != (len(c.dead) == 0 && !c.back) || !d.Grow().Empty() {
			t.Errorf("%s: %+v", c.name, d)
		}
	}
}

// An intermediate address that new connections do not use stays valid for old ones, as long as it
// leads to an endpoint that serves.
func TestFormerStep(t *testing.T) {
	at := netip.MustParseAddrPort
	want := udp{at(port): {Live: list(b), Steps: list(vip)}}.state()
	for end, dead := range map[string]int{b: 0, a: 2} {
		have := udp{at(port): {Live: list(vip)}, at(vip): {Live: list(end)}}.state()
		if d := conn.Diff(want, have); len(d.Dead) != dead {
			t.Errorf("by a former step to %s: %+v", end, d)
		}
	}
}

func TestPrint(t *testing.T) {
	at := netip.MustParseAddrPort
	s := udp{
		at(vip): {Live: list(a, b), Steps: list(port),
			Owner: cluster.Owner{Kind: "Service", Namespace: "default", Name: "dns"}},
		at(port): {Live: list(a)},
	}.state()
	s.Egress = map[netip.Addr]conn.Egress{
		netip.MustParseAddr("10.10.10.34"): {},
		netip.MustParseAddr("10.10.10.33"): {Elsewhere: true, Owner: cluster.Owner{Kind: "EgressIP", Name: "blue"}},
	}
	s.Ways = map[netip.Prefix]conn.Way{netip.MustParsePrefix("10.96.0.0/16"): {
		Source: netip.MustParseAddr("10.244.1.2"), Owner: cluster.Owner{Kind: "Node", Name: "a"},
	}}
	const want = `udp 10.96.0.10:53 10.244.1.3:53 10.244.2.3:53 by 172.18.0.3:30053 # Service/default/dns
udp 172.18.0.3:30053 10.244.1.3:53
egress 10.10.10.33 elsewhere # EgressIP/blue
egress 10.10.10.34
udp to 10.96.0.0/16 as 10.244.1.2 # Node/a
`
	if got := conn.Print(s); got != want {
		t.Errorf("printed\n%swant\n%s", got, want)
	}
}

// Turn adds a range once, when its source address changed, or after the agent started.
func TestTurn(t *testing.T) {
	services, was, is := netip.MustParsePrefix("10.96.0.0/16"), netip.MustParseAddr("10.244.1.2"),
		netip.MustParseAddr("10.244.9.2")
	ways := func(source netip.Addr) conn.State {
		return conn.State{Ways: map[netip.Prefix]conn.Way{services: {Source: source}}}
	}
	for name, c := range map[string]struct {
		before conn.State
		want   int
	}{"the agent started": {conn.State{}, 1}, "another way": {ways(was), 1}, "as before": {ways(is), 0}} {
		d := conn.Delta{}.AddWrongSource(c.before, ways(is))
		if d.Count() != c.want || c.want > 0 && d.WrongSource[services] != is {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// A Service that did not exist may have existed earlier: its connections are examined.
func TestSince(t *testing.T) {
	at := netip.MustParseAddrPort
	before := udp{at(port): {Live: list(a)}}.state()
	want := udp{at(port): {Live: list(a)}, at(vip): {Live: list(b)}, at("10.96.0.11:53"): {}}.state()
	d := conn.Diff(want, before).AddRevived(before, want)
	back := map[netip.AddrPort]conn.Targets{at(vip): {Live: list(b)}, at("10.96.0.11:53"): {}}
	if len(d.Dead) != 0 || !reflect.DeepEqual(d.Revived, back) {
		t.Errorf("%+v", d)
	}
	if !conn.Diff(want, want).AddRevived(want, want).Empty() {
		t.Error("what was there is looked at")
	}
}

// Without a change, Diff deletes nothing, whether it compares one map or two.
func TestDiffOfEqual(t *testing.T) {
	place := rapid.SampledFrom(list(vip, port, a, b))
	rapid.Check(t, func(t *rapid.T) {
		targets := rapid.Custom(func(t *rapid.T) conn.Targets {
			return conn.Targets{Live: rapid.SliceOf(place).Draw(t, "live"),
				Steps: rapid.SliceOf(place).Draw(t, "steps")}
		})
		s := udp(rapid.MapOf(place, targets).Draw(t, "state"))
		for _, have := range []udp{s, maps.Clone(s)} {
			if d := conn.Diff(s.state(), have.state()).AddRevived(have.state(), s.state()); !d.Empty() {
				t.Fatalf("%v: %+v", s, d)
			}
		}
	})
}

// A VIP that loses its last endpoint is listed in Unserved, even if its connections were not found.
func TestUnserved(t *testing.T) {
	at := netip.MustParseAddrPort
	before := udp{at(vip): {Live: list(a, b)}, at(port): {Live: list(a), Steps: list(vip)}}.state()
	want := udp{at(vip): {}, at(port): {Live: list(b), Steps: list(vip)}}.state()
	for name, have := range map[string]conn.State{"nothing found": {}, "found": before} {
		d := conn.Diff(want, have).AddEnded(before, want)
		if !slices.Equal(d.Unserved, list(vip)) || len(d.Dead) != 3 || d.Count() != 3 {
			t.Errorf("%s: %+v", name, d)
		}
	}
	steps := udp{at(port): {Live: list(a), Steps: list(vip)}}.state()
	if d := conn.Diff(udp{at(port): {Steps: list(vip)}}.state(), steps); len(d.Dead) != 2 ||
		!slices.Equal(d.Unserved, list(port)) {
		t.Errorf("a step stays: %+v", d)
	}
	if d := conn.Diff(want, udp{at(port): {Live: list(vip)}}.state()).AddEnded(want, want); !d.Empty() {
		t.Errorf("nothing changed: %+v", d)
	}
}

// End deletes what was wanted before and is not wanted now, even if it was not found, and only
// once.
func TestEnd(t *testing.T) {
	at := netip.MustParseAddrPort
	before := udp{at(vip): {Live: list(a, b)}}.state()
	want := udp{at(vip): {Live: list(b)}}.state()
	dead := []conn.Pair{{VIP: at(vip), To: at(a)}}
	for name, have := range map[string]conn.State{"nothing found": {}, "found": before} {
		if d := conn.Diff(want, have).AddEnded(before, want); !reflect.DeepEqual(d.Dead, dead) {
			t.Errorf("%s: %+v", name, d)
		}
	}
	if d := conn.Diff(want, want).AddEnded(want, want); !d.Empty() {
		t.Errorf("nothing changed: %+v", d)
	}
}
