package redirect

import (
	"hairpin/cluster"
	"hairpin/datapath/statemap"
	"hairpin/delta"
)

// Maps describes the maps of a State.
var Maps = []statemap.Map[State, Delta]{
	&statemap.Plain[State, Delta, string, Program]{
		In:      func(s *State) *map[string]Program { return &s.Programs },
		InDelta: func(d *Delta) *delta.Delta[string, Program] { return &d.Programs },
		Values: statemap.Values[string, Program]{
			Same:  func(a, b Program) bool { a.Owner = b.Owner; return a == b },
			Owner: func(p Program) cluster.Owner { return p.Owner },
			Name:  func(k string) string { return "program of " + k },
		}},
	&statemap.Plain[State, Delta, Service, Path]{
		In:      func(s *State) *map[Service]Path { return &s.Services },
		InDelta: func(d *Delta) *delta.Delta[Service, Path] { return &d.Services },
		Values: statemap.Values[Service, Path]{
			Same:  func(a, b Path) bool { return a.Tracked == b.Tracked },
			Owner: func(w Path) cluster.Owner { return w.Owner },
			Name:  Service.String,
		}},
}
