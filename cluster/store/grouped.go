package store

import (
	"maps"
	"slices"

	"hairpin/cluster"
)

// grouped is a sorted list of values of many objects, a few each. The list is built on demand and
// shared until the next change; it is never modified in place. It is ordered by owner first, so the
// values of one object are adjacent, and a new list reuses the old one's sections between changed
// objects.
type grouped[T any] struct {
	owner   func(T) cluster.Owner
	same    func(a, b T) bool
	byOwner map[cluster.Owner][]T
	list    []T
	stale   map[cluster.Owner]bool // their values in list are outdated
}

// newGrouped returns a list of values that are the same if they are deeply equal.
func newGrouped[T any](owner func(T) cluster.Owner) grouped[T] {
	return grouped[T]{owner: owner, same: same[T], byOwner: map[cluster.Owner][]T{}, stale: map[cluster.Owner]bool{}}
}

// newGroupedComparable returns a list of values that are the same if they are equal by ==.
func newGroupedComparable[T comparable](owner func(T) cluster.Owner) grouped[T] {
	g := newGrouped(owner)
	g.same = func(a, b T) bool { return a == b }
	return g
}

// put replaces the values of an object, which must be in order. It keeps the old values if they are
// the same.
func (g *grouped[T]) put(o cluster.Owner, values []T) {
	if slices.EqualFunc(g.byOwner[o], values, g.same) {
		return
	}
	g.stale[o] = true
	if len(values) == 0 {
		delete(g.byOwner, o)
		return
	}
	g.byOwner[o] = values
}

func (g *grouped[T]) changed() bool { return len(g.stale) > 0 }

// all returns the list.
func (g *grouped[T]) all() []T {
	if !g.changed() {
		return g.list
	}
	owners := slices.SortedFunc(maps.Keys(g.stale), cluster.Owner.Compare)
	size := len(g.list)
	for _, o := range owners {
		size += len(g.byOwner[o])
	}
	out, rest := make([]T, 0, size), g.list
	for _, o := range owners {
		n, _ := slices.BinarySearchFunc(rest, o, func(v T, o cluster.Owner) int { return g.owner(v).Compare(o) })
		out, rest = append(out, rest[:n]...), rest[n:]
		for len(rest) > 0 && g.owner(rest[0]) == o {
			rest = rest[1:]
		}
		out = append(out, g.byOwner[o]...)
	}
	g.stale = map[cluster.Owner]bool{} // a map that was cleared is as large as before
	if g.list = slices.Clip(append(out, rest...)); len(g.list) == 0 {
		g.list = nil // as initially, so that equal clusters give deeply equal Snapshots
	}
	return g.list
}
