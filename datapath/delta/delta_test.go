package delta

import (
	"maps"
	"testing"

	"pgregory.net/rapid"
)

func TestOfTurnsHaveIntoWant(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := rapid.MapOf(rapid.IntRange(0, 20), rapid.IntRange(0, 3))
		want, have := m.Draw(t, "want"), m.Draw(t, "have")
		d := OfComparable(want, have)
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
		odd, even := d.Part(func(k int) bool { return k%2 != 0 }), d.Part(func(k int) bool { return k%2 == 0 })
		if got := odd.ApplyTo(even.ApplyTo(have)); !maps.Equal(got, want) || odd.Count()+even.Count() != d.Count() {
			t.Fatalf("the parts of %v by keys, %v and %v, give %v, want %v", d, odd, even, got, want)
		}
	})
}

func TestEmptyDeltaHasNilMaps(t *testing.T) {
	m := map[string]int{"a": 1, "b": 2}
	if d := OfComparable(m, maps.Clone(m)); d.Add != nil || d.Change != nil || d.Delete != nil || !d.Empty() {
		t.Fatalf("equal maps differ: %v", d)
	}
}

func TestSortedKeys(t *testing.T) {
	got := Keys(map[string]bool{"b": true, "a": true, "c": false})
	if len(got) != 3 || got[0] != "a" || got[1] != "b" || got[2] != "c" {
		t.Fatalf("keys are %v", got)
	}
}
