package nb

import (
	"hairpin/datapath/statemap"
)

// Maps describes a State, which is one map.
var Maps = []statemap.Map[State, Delta]{
	&statemap.Plain[State, Delta, Key, Row]{
		In:      func(s *State) *map[Key]Row { return (*map[Key]Row)(s) },
		InDelta: func(d *Delta) *Delta { return d },
		Values: statemap.Values[Key, Row]{
			Same:  func(a, b Row) bool { return a == b || SameContent(a, b) },
			Fits:  Equal,
			Owner: OwnerOf,
			Name:  Key.String,
		}},
}
