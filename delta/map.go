package delta

import (
	"hash/maphash"
	"iter"
	"maps"
	"slices"
)

// parts is the number of maps in a Map. A changed pod has some 30 flows, in at most 30 of the 256
// parts: about a tenth of all flows are copied and compared. 10 000 groups are 40 in each part.
const parts = 256

// Map is a map whose copies share unchanged parts with the original. So the cost of copying and
// comparing depends on the differences, not on the size, which grows with the number of Services.
// The zero Map is empty. Only the creator of a Map may call Put, Insert and Delete; once passed on,
// a Map is read-only, as its copies share it.
type Map[K comparable, V any] struct {
	// by part; a part without entries is nil, and so is the pointer of an empty Map: equal Maps are
	// deeply equal
	parts *[parts]map[K]V
}

// seed decides which part a key is in. It has no other effect.
var seed = maphash.MakeSeed()

func partOf[K comparable](k K) int { return int(maphash.Comparable(seed, k) % parts) }

// MapOf returns a Map with the entries of a plain map.
func MapOf[K comparable, V any](entries map[K]V) (m Map[K, V]) {
	m.Insert(maps.All(entries))
	return m
}

// Combine makes a Map from others, part by part, because a key is in the same part of all Maps. It
// calls combine for each part. combine gets the entries that the Maps have there by calling
// entriesOf for each Map, and returns those of the new Map, which may be one of these maps itself.
func Combine[K comparable, V any](combine func(entriesOf func(Map[K, V]) map[K]V) map[K]V) (m Map[K, V]) {
	for i := range parts {
		if entries := combine(func(of Map[K, V]) map[K]V { return of.part(i) }); len(entries) > 0 {
			m.writable()[i] = entries
		}
	}
	return m
}

// At returns the value of a key, or the zero value.
func (m Map[K, V]) At(k K) V {
	v, _ := m.Get(k)
	return v
}

// Get returns the value of a key, and whether there is one.
func (m Map[K, V]) Get(k K) (v V, found bool) {
	if m.parts != nil {
		v, found = m.parts[partOf(k)][k]
	}
	return v, found
}

// All yields the entries, in no order.
func (m Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for i := range parts {
			for k, v := range m.part(i) {
				if !yield(k, v) {
					return
				}
			}
		}
	}
}

// Sorted returns the keys in the order of compare, like the function Sorted.
func (m Map[K, V]) Sorted(compare func(a, b K) int) []K {
	keys := make([]K, 0, m.Len())
	for k := range m.All() {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, compare)
	return keys
}

// Len returns the number of entries.
func (m Map[K, V]) Len() (n int) {
	for i := range parts {
		n += len(m.part(i))
	}
	return n
}

// Put adds an entry, or replaces one.
func (m *Map[K, V]) Put(k K, v V) { put(&m.writable()[partOf(k)], k, v) }

// Insert adds entries, or replaces those with the same key.
func (m *Map[K, V]) Insert(entries iter.Seq2[K, V]) {
	for k, v := range entries {
		m.Put(k, v)
	}
}

// Delete removes an entry, if there is one.
func (m *Map[K, V]) Delete(k K) {
	if m.parts == nil {
		return
	}
	i := partOf(k)
	delete(m.parts[i], k)
	if len(m.parts[i]) > 0 {
		return
	}
	if m.parts[i] = nil; m.Len() == 0 {
		m.parts = nil
	}
}

// Clone returns a copy that shares nothing.
func (m Map[K, V]) Clone() Map[K, V] {
	return Combine(func(part func(Map[K, V]) map[K]V) map[K]V { return maps.Clone(part(m)) })
}

// AnyMap is a *Map, for code that accesses values by reflection.
type AnyMap interface {
	Plain() any // a map[K]V of the entries
	SetPlain(entries any)
}

// Plain implements AnyMap. A Map has it, too, not only its pointer.
func (m Map[K, V]) Plain() any { return maps.Collect(m.All()) }

// SetPlain implements AnyMap.
func (m *Map[K, V]) SetPlain(entries any) { *m = MapOf(entries.(map[K]V)) }

// Same reports whether both share all parts: they are copies of one Map, or both are empty.
func (m Map[K, V]) Same(n Map[K, V]) bool { return m.parts == n.parts }

func (m Map[K, V]) part(i int) map[K]V {
	if m.parts == nil {
		return nil
	}
	return m.parts[i]
}

// writable returns the parts, which it makes for an empty Map.
func (m *Map[K, V]) writable() *[parts]map[K]V {
	if m.parts == nil {
		m.parts = new([parts]map[K]V)
	}
	return m.parts
}

// OfMaps is Of for Maps: it compares only the parts that they do not share.
func OfMaps[K comparable, V any](want, have Map[K, V], equal func(want, have V) bool) (d Delta[K, V]) {
	if want.Same(have) {
		return d
	}
	for i := range parts {
		d.compare(want.part(i), have.part(i), equal)
	}
	return d
}

// ApplyToMap is ApplyTo for a Map. The copy shares the parts without changes.
func (d Delta[K, V]) ApplyToMap(have Map[K, V]) Map[K, V] {
	if d.Empty() {
		return have
	}
	by := [3]Map[K, V]{MapOf(d.Add), MapOf(d.Change), MapOf(d.Delete)}
	return Combine(func(part func(Map[K, V]) map[K]V) map[K]V {
		own := Delta[K, V]{part(by[0]), part(by[1]), part(by[2])}
		if own.Empty() {
			return part(have)
		}
		return own.ApplyTo(part(have))
	})
}
