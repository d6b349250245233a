package delta

import (
	"maps"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

func ofComparable[M ~map[K]V, K, V comparable](want, have M) Delta[K, V] {
	return Of(want, have, func(a, b V) bool { return a == b })
}

func TestOfTurnsHaveIntoWant(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := rapid.MapOf(rapid.IntRange(0, 20), rapid.IntRange(0, 3))
		want, have := m.Draw(t, "want"), m.Draw(t, "have")
		d := ofComparable(want, have)
		if got := d.ApplyTo(have); !maps.Equal(got, want) {
			t.Fatalf("%v of %v gives %v, want %v", d, have, got, want)
		}
		if d.Empty() != maps.Equal(want, have) {
			t.Fatalf("Empty is %v for want %v, have %v", d.Empty(), want, have)
		}
		for k := range d.Add {
			if _, there := have[k]; there {
				t.Fatalf("%d is added and there", k)
			}
		}
		grow, shrink := d.Split()
		if got := shrink.ApplyTo(grow.ApplyTo(have)); !maps.Equal(got, want) {
			t.Fatalf("grow and shrink give %v, want %v", got, want)
		}
		if grow.Count()+shrink.Count() != d.Count() {
			t.Fatalf("the parts of %v have another count", d)
		}
		odd, even := d.Filter(func(k int) bool { return k%2 != 0 }), d.Filter(func(k int) bool { return k%2 == 0 })
		if got := odd.ApplyTo(even.ApplyTo(have)); !maps.Equal(got, want) || odd.Count()+even.Count() != d.Count() {
			t.Fatalf("the parts of %v by keys, %v and %v, give %v, want %v", d, odd, even, got, want)
		}
	})
}

func TestEmptyDeltaHasNilMaps(t *testing.T) {
	m := map[string]int{"a": 1, "b": 2}
	if d := ofComparable(m, maps.Clone(m)); d.Add != nil || d.Change != nil || d.Delete != nil || !d.Empty() {
		t.Fatalf("equal maps differ: %v", d)
	}
}

func TestSortedKeys(t *testing.T) {
	got := Keys(map[string]bool{"b": true, "a": true, "c": false})
	if len(got) != 3 || got[0] != "a" || got[1] != "b" || got[2] != "c" {
		t.Fatalf("keys are %v", got)
	}
}

// A Map behaves as a plain map, whatever was derived from it meanwhile. Parts without a change are
// shared, and Same finds that.
func TestMapIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := rapid.MapOf(rapid.IntRange(0, 500), rapid.IntRange(0, 3))
		plain, wanted := m.Draw(t, "have"), m.Draw(t, "want")
		have, before := MapOf(plain), maps.Clone(plain)
		d := OfMaps(MapOf(wanted), have, func(a, b int) bool { return a == b })
		if !reflect.DeepEqual(d, ofComparable(wanted, plain)) {
			t.Fatalf("%v, not %v", d, ofComparable(wanted, plain))
		}
		got := d.ApplyToMap(have)
		if !reflect.DeepEqual(got, MapOf(wanted)) || !maps.Equal(maps.Collect(got.All()), wanted) ||
			got.Len() != len(wanted) {
			t.Fatalf("%v of %v gives %v, want %v", d, plain, maps.Collect(got.All()), wanted)
		}
		if !OfMaps(got, MapOf(wanted), func(a, b int) bool { return a == b }).Empty() {
			t.Fatal("two Maps with the same entries differ")
		}
		// a separate copy shares nothing with the original
		own := have.Clone()
		for k := range plain {
			own.Put(k, 7)
			if k%2 == 0 {
				own.Delete(k)
			}
			if v, found := own.Get(k); found != (k%2 == 1) || found && v != 7 {
				t.Fatalf("%d is %d (%v)", k, v, found)
			}
		}
		if !maps.Equal(maps.Collect(have.All()), before) {
			t.Fatalf("%v became %v", before, maps.Collect(have.All()))
		}
		for k := range plain {
			own.Delete(k)
		}
		if own.Delete(501); !reflect.DeepEqual(own, Map[int, int]{}) {
			t.Fatal("a Map without entries is not the empty one")
		}
	})
}

// One change among many entries affects only a part of them.
func TestMapSharesTheRest(t *testing.T) {
	var m Map[int, int]
	for k := range 10000 {
		m.Put(k, k)
	}
	one := Delta[int, int]{Change: map[int]int{7: 0}}.ApplyToMap(m)
	looks := 0
	d := OfMaps(one, m, func(a, b int) bool { looks++; return a == b })
	if looks > 500 || !maps.Equal(d.Change, map[int]int{7: 0}) || d.Count() != 1 || m.At(7) != 7 || one.Same(m) {
		t.Errorf("%d looks, %v", looks, d)
	}
}
