package host

import (
	"fmt"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath/statemap"
	"hairpin/delta"
)

// Maps describes the maps of a State.
var Maps = []statemap.Map[State, Delta]{
	&statemap.Plain[State, Delta, string, Link]{
		In:      func(s *State) *map[string]Link { return &s.Links },
		InDelta: func(d *Delta) *delta.Delta[string, Link] { return &d.Links },
		Values: statemap.Values[string, Link]{
			Same: func(a, b Link) bool { a.Owner = b.Owner; return a == b },
			Fits: func(w, h Link) bool {
				return (w.MAC == h.MAC || w.MAC == cluster.MAC{}) && (w.MTU == h.MTU || w.MTU == 0) &&
					(h.Checksums || !w.Checksums)
			},
			Owner: func(l Link) cluster.Owner { return l.Owner },
			Name:  func(k string) string { return "link " + k },
		}},
	&statemap.Plain[State, Delta, AddressKey, Address]{
		In:      func(s *State) *map[AddressKey]Address { return &s.Addresses },
		InDelta: func(d *Delta) *delta.Delta[AddressKey, Address] { return &d.Addresses },
		Values: statemap.Values[AddressKey, Address]{
			Same:  func(a, b Address) bool { a.Owner = b.Owner; return a == b },
			Fits:  func(w, h Address) bool { return w.Borrowed || w.Deprecated == h.Deprecated },
			Owner: func(a Address) cluster.Owner { return a.Owner },
			Name:  func(k AddressKey) string { return fmt.Sprintf("address %s dev %s", k.Prefix, k.Link) },
		}},
	&statemap.Plain[State, Delta, RouteKey, Route]{
		In:      func(s *State) *map[RouteKey]Route { return &s.Routes },
		InDelta: func(d *Delta) *delta.Delta[RouteKey, Route] { return &d.Routes },
		Values: statemap.Values[RouteKey, Route]{
			Same: func(a, b Route) bool { a.Owner = b.Owner; return a == b },
			Fits: func(w, h Route) bool {
				h.Owner, h.Borrowed = w.Owner, w.Borrowed
				return w.Borrowed || w == h
			},
			Owner: func(r Route) cluster.Owner { return r.Owner },
			Name:  func(k RouteKey) string { return fmt.Sprintf("route %s table %d", k.Prefix, k.Table) },
		}},
	&statemap.Plain[State, Delta, Rule, cluster.Owner]{
		In:      func(s *State) *map[Rule]cluster.Owner { return &s.Rules },
		InDelta: func(d *Delta) *delta.Delta[Rule, cluster.Owner] { return &d.Rules },
		Values: statemap.Values[Rule, cluster.Owner]{
			Same:  func(a, b cluster.Owner) bool { return true }, // a rule is its own value
			Owner: func(o cluster.Owner) cluster.Owner { return o },
			Name:  func(k Rule) string { return fmt.Sprintf("rule %d", k.Priority) },
		}},
	&statemap.Plain[State, Delta, NeighborKey, Neighbor]{
		In:      func(s *State) *map[NeighborKey]Neighbor { return &s.Neighbors },
		InDelta: func(d *Delta) *delta.Delta[NeighborKey, Neighbor] { return &d.Neighbors },
		Values: statemap.Values[NeighborKey, Neighbor]{
			Same:  func(a, b Neighbor) bool { a.Owner = b.Owner; return a == b },
			Fits:  func(w, h Neighbor) bool { return w.MAC == h.MAC },
			Owner: func(n Neighbor) cluster.Owner { return n.Owner },
			Name:  func(k NeighborKey) string { return fmt.Sprintf("neigh %s dev %s", k.IP, k.Link) },
		}},
	&statemap.Plain[State, Delta, string, Sysctl]{
		In:      func(s *State) *map[string]Sysctl { return &s.Sysctls },
		InDelta: func(d *Delta) *delta.Delta[string, Sysctl] { return &d.Sysctls },
		Values: statemap.Values[string, Sysctl]{
			Same: func(a, b Sysctl) bool { a.Owner = b.Owner; return a == b },
			Fits: func(w, h Sysctl) bool {
				return w.Value == h.Value ||
					strings.Join(strings.Fields(w.Value), " ") == strings.Join(strings.Fields(h.Value), " ")
			},
			Owner: func(s Sysctl) cluster.Owner { return s.Owner },
			Name:  func(k string) string { return "sysctl " + k },
		}},
}
