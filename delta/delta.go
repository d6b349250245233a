// Package delta computes the difference of two maps: what to add, change and delete to turn one
// into the other.
package delta

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
)

// Delta turns a "have" into a "want". Its maps are nil if there is nothing to do. They are
// read-only.
type Delta[K comparable, V any] struct {
	Add    map[K]V // wanted, not found
	Change map[K]V // found with another value; has the wanted value
	Delete map[K]V // found, not wanted; has the found value
}

// Of compares two maps. equal may assume that both values have the same key.
func Of[M ~map[K]V, K comparable, V any](want, have M, equal func(want, have V) bool) Delta[K, V] {
	var d Delta[K, V]
	d.compare(want, have, equal)
	return d
}

// compare adds the changes that turn one part of a map into another.
func (d *Delta[K, V]) compare(want, have map[K]V, equal func(want, have V) bool) {
	if Same(want, have) {
		return
	}
	shared := 0
	for k, w := range want {
		h, found := have[k]
		switch {
		case !found:
			put(&d.Add, k, w)
		case !equal(w, h):
			put(&d.Change, k, w)
			shared++
		default:
			shared++
		}
	}
	if shared == len(have) {
		return
	}
	for k, h := range have {
		if _, wanted := want[k]; !wanted {
			put(&d.Delete, k, h)
		}
	}
}

// Same reports whether both are the same map. plan keeps the maps that a change does not affect,
// and some have an element for each Service.
func Same[M ~map[K]V, K comparable, V any](a, b M) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}

// Empty reports whether there is nothing to do.
func (d Delta[K, V]) Empty() bool { return d.Count() == 0 }

// Count returns the number of keys that differ.
func (d Delta[K, V]) Count() int { return len(d.Add) + len(d.Change) + len(d.Delete) }

// Split returns the part that adds and changes, and the part that removes. Apply grow first, shrink
// later.
func (d Delta[K, V]) Split() (grow, shrink Delta[K, V]) {
	return d.Grow(), d.Shrink()
}

// Grow returns the part that adds and changes.
func (d Delta[K, V]) Grow() Delta[K, V] { return Delta[K, V]{Add: d.Add, Change: d.Change} }

// Shrink returns the part that removes.
func (d Delta[K, V]) Shrink() Delta[K, V] { return Delta[K, V]{Delete: d.Delete} }

// Filter returns the changes of the keys for which keep returns true.
func (d Delta[K, V]) Filter(keep func(K) bool) Delta[K, V] {
	return Delta[K, V]{filter(d.Add, keep), filter(d.Change, keep), filter(d.Delete, keep)}
}

func filter[K comparable, V any](all map[K]V, keep func(K) bool) (some map[K]V) {
	for k, v := range all {
		if keep(k) {
			put(&some, k, v)
		}
	}
	return some
}

// ApplyTo returns a copy of have with the changes.
func (d Delta[K, V]) ApplyTo(have map[K]V) map[K]V {
	out := maps.Clone(have) // does not hash keys
	if out == nil {
		out = map[K]V{}
	}
	for k := range d.Delete {
		delete(out, k)
	}
	maps.Copy(out, d.Add)
	maps.Copy(out, d.Change)
	return out
}

// Sorted returns the keys of a map in the order of compare, for reproducible text and transactions.
func Sorted[M ~map[K]V, K comparable, V any](m M, compare func(a, b K) int) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, compare)
	return keys
}

// Keys returns the sorted keys of a map whose keys are ordered.
func Keys[M ~map[K]V, K cmp.Ordered, V any](m M) []K { return Sorted(m, cmp.Compare[K]) }

func put[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = make(map[K]V)
	}
	(*m)[k] = v
}
