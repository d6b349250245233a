// Package statemap describes the maps of a datapath.State, each once: how it is compared, split,
// counted, merged and replaced follows from the description.
package statemap

import (
	"fmt"
	"maps"

	"hairpin/cluster"
	"hairpin/delta"
)

// Map is one map of a state S, and its part of a difference D.
type Map[S, D any] interface {
	// Diff adds the changes that turn have into want.
	Diff(to *D, want, have *S)
	// Split divides the changes into those that add and change, and those that remove.
	Split(d, grow, shrink *D)
	// Count returns the number of keys that differ.
	Count(d *D) int
	// Merge merges the maps of a list into out. The first value of a key has precedence.
	Merge(c *Conflicts, out *S, list []*S)
	// Replace removes the keys of gone and adds those of come. It returns false if a key of gone is
	// missing or a key of come exists. The former map is not changed.
	Replace(s, gone, come *S) bool
}

// Diff returns the changes of all maps that turn have into want.
func Diff[S, D any](all []Map[S, D], want, have *S) (d D) {
	for _, f := range all {
		f.Diff(&d, want, have)
	}
	return d
}

// Grow returns the part of d that adds and changes.
func Grow[S, D any](all []Map[S, D], d *D) (grow D) {
	var shrink D
	for _, f := range all {
		f.Split(d, &grow, &shrink)
	}
	return grow
}

// Shrink returns the part of d that removes.
func Shrink[S, D any](all []Map[S, D], d *D) (shrink D) {
	var grow D
	for _, f := range all {
		f.Split(d, &grow, &shrink)
	}
	return shrink
}

// Count returns the number of keys that differ.
func Count[S, D any](all []Map[S, D], d *D) (n int) {
	for _, f := range all {
		n += f.Count(d)
	}
	return n
}

// Conflict is one key for which two owners want different values.
type Conflict struct {
	Key        string // in the syntax of the real tool
	Kept, Lost cluster.Owner
}

// Error returns the owners that want the same key, and which one wins.
func (c Conflict) Error() string {
	return fmt.Sprintf("%s: %s is already wanted by %s", c.Lost, c.Key, c.Kept)
}

// Conflicts collects conflicts.
type Conflicts struct{ List []Conflict }

// Values describes the values of a map. Same is for Merge, Fits for Diff; Replace compares with
// Same and the owner.
type Values[K comparable, V any] struct {
	Same  func(a, b V) bool       // they are equal, whatever their owners are
	Fits  func(want, have V) bool // apply would not change it; nil: Same
	Owner func(V) cluster.Owner   // nil: they have none
	Name  func(K) string          // of a key, in the syntax of the real tool
}

func (x *Values[K, V]) owner(v V) (o cluster.Owner) {
	if x.Owner != nil {
		o = x.Owner(v)
	}
	return o
}

func (x *Values[K, V]) equal(a, b V) bool { return x.owner(a) == x.owner(b) && x.Same(a, b) }

func (x *Values[K, V]) fits(want, have V) bool {
	if x.Fits != nil {
		return x.Fits(want, have)
	}
	return x.Same(want, have)
}

// merge merges maps. If only one is not empty, that map is the result.
func (x *Values[K, V]) merge(c *Conflicts, list []map[K]V) map[K]V {
	big, filled := 0, 0
	for i, m := range list {
		if len(m) > 0 {
			filled++
		}
		if len(m) > len(list[big]) {
			big = i
		}
	}
	switch {
	case len(list) == 0:
		return nil
	case filled <= 1:
		return list[big]
	}
	before := map[K]V{} // of the maps before the big one; their values take precedence
	for _, m := range list[:big] {
		x.addTo(c, before, m, false)
	}
	out := maps.Clone(list[big])
	x.addTo(c, out, before, true)
	for _, m := range list[big+1:] {
		x.addTo(c, out, m, false)
	}
	return out
}

// addTo adds the entries of m to out. If out has another value for a key, the value of m replaces
// it only if wins is true.
func (x *Values[K, V]) addTo(c *Conflicts, out, m map[K]V, wins bool) {
	for k, v := range m {
		old, taken := out[k]
		if !taken || wins {
			out[k] = v
		}
		if taken && !x.Same(old, v) {
			kept, lost := old, v
			if wins {
				kept, lost = v, old
			}
			c.List = append(c.List, Conflict{x.Name(k), x.owner(kept), x.owner(lost)})
		}
	}
}

// Plain is an ordinary map.
type Plain[S, D any, K comparable, V any] struct {
	In      func(*S) *map[K]V           // the map
	InDelta func(*D) *delta.Delta[K, V] // its difference; nil: differences are found in another way
	Values[K, V]
}

// Diff implements Map.
func (f *Plain[S, D, K, V]) Diff(to *D, want, have *S) {
	*f.InDelta(to) = delta.Of(*f.In(want), *f.In(have), f.fits)
}

// Split implements Map.
func (f *Plain[S, D, K, V]) Split(d, grow, shrink *D) {
	*f.InDelta(grow), *f.InDelta(shrink) = f.InDelta(d).Split()
}

// Count implements Map.
func (f *Plain[S, D, K, V]) Count(d *D) int { return f.InDelta(d).Count() }

// Merge implements Map.
func (f *Plain[S, D, K, V]) Merge(c *Conflicts, out *S, list []*S) {
	all := make([]map[K]V, len(list))
	for i, s := range list {
		all[i] = *f.In(s)
	}
	*f.In(out) = f.merge(c, all)
}

// Replace implements Map. If nothing changes, the map stays the same.
func (f *Plain[S, D, K, V]) Replace(s, gone, come *S) bool {
	m := f.In(s)
	d := delta.Of(*f.In(come), *f.In(gone), f.equal) // the changes that turn gone into come
	if d.Empty() {
		return true
	}
	ok := possible(d, func(k K) bool { _, there := (*m)[k]; return there })
	*m = d.ApplyTo(*m)
	return ok
}

// Shared is a map with copies that share unchanged parts.
type Shared[S, D any, K comparable, V any] struct {
	In      func(*S) *delta.Map[K, V]
	InDelta func(*D) *delta.Delta[K, V] // its difference; nil: differences are found in another way
	Values[K, V]
}

// Diff implements Map.
func (f *Shared[S, D, K, V]) Diff(to *D, want, have *S) {
	*f.InDelta(to) = delta.OfMaps(*f.In(want), *f.In(have), f.fits)
}

// Split implements Map.
func (f *Shared[S, D, K, V]) Split(d, grow, shrink *D) {
	*f.InDelta(grow), *f.InDelta(shrink) = f.InDelta(d).Split()
}

// Count implements Map.
func (f *Shared[S, D, K, V]) Count(d *D) int { return f.InDelta(d).Count() }

// Merge implements Map. The result shares equal parts.
func (f *Shared[S, D, K, V]) Merge(c *Conflicts, out *S, list []*S) {
	var filled []delta.Map[K, V]
	for _, s := range list {
		if m := *f.In(s); !m.Same(delta.Map[K, V]{}) {
			filled = append(filled, m)
		}
	}
	if len(filled) == 1 {
		*f.In(out) = filled[0]
		return
	}
	*f.In(out) = delta.Combine(func(part func(delta.Map[K, V]) map[K]V) map[K]V {
		all := make([]map[K]V, len(filled))
		for i, m := range filled {
			all[i] = part(m)
		}
		return f.merge(c, all)
	})
}

// Replace implements Map.
func (f *Shared[S, D, K, V]) Replace(s, gone, come *S) bool {
	m := f.In(s)
	d := delta.OfMaps(*f.In(come), *f.In(gone), f.equal) // the changes that turn gone into come
	if d.Empty() {
		return true
	}
	ok := possible(d, func(k K) bool { _, there := m.Get(k); return there })
	*m = d.ApplyToMap(*m)
	return ok
}

// possible reports whether all added keys are missing, and all others exist.
func possible[K comparable, V any](d delta.Delta[K, V], there func(K) bool) bool {
	for k := range d.Add {
		if there(k) {
			return false
		}
	}
	for _, had := range []map[K]V{d.Change, d.Delete} {
		for k := range had {
			if !there(k) {
				return false
			}
		}
	}
	return true
}
