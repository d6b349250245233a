package conn

import (
	"net/netip"

	"hairpin/cluster"
	"hairpin/datapath/statemap"
)

// Maps describes the maps of a State. Diff compares them in another way.
var Maps = []statemap.Map[State, Delta]{
	&statemap.Plain[State, Delta, netip.AddrPort, Targets]{
		In: func(s *State) *map[netip.AddrPort]Targets { return &s.UDP },
		Values: statemap.Values[netip.AddrPort, Targets]{
			Same:  func(a, b Targets) bool { a.Owner = b.Owner; return a.Equal(b) },
			Owner: func(t Targets) cluster.Owner { return t.Owner },
			Name:  func(k netip.AddrPort) string { return "connections to " + k.String() },
		}},
	&statemap.Plain[State, Delta, netip.Addr, Egress]{
		In: func(s *State) *map[netip.Addr]Egress { return &s.Egress },
		Values: statemap.Values[netip.Addr, Egress]{
			Same:  func(a, b Egress) bool { a.Owner = b.Owner; return a == b },
			Owner: func(e Egress) cluster.Owner { return e.Owner },
			Name:  func(k netip.Addr) string { return "connections from " + k.String() },
		}},
	&statemap.Plain[State, Delta, netip.Prefix, Way]{
		In: func(s *State) *map[netip.Prefix]Way { return &s.Ways },
		Values: statemap.Values[netip.Prefix, Way]{
			Same:  func(a, b Way) bool { a.Owner = b.Owner; return a == b },
			Owner: func(w Way) cluster.Owner { return w.Owner },
			Name:  func(k netip.Prefix) string { return "connections to " + k.String() },
		}},
}
