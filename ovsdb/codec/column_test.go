package codec

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"hairpin/ovsdb/jsontext"
)

// TestToggle holds toggle against its definition.
func TestToggle(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		count := map[int]int{}
		pick := func() (list []int) {
			for i := range 30 {
				if rnd.IntN(3) == 0 {
					list = append(list, i)
					count[i]++
				}
			}
			return list
		}
		have, diff := pick(), pick()
		maps.DeleteFunc(count, func(_, n int) bool { return n == 2 })
		before := slices.Clone(have)
		if got := toggle(have, diff, cmp.Compare); !slices.Equal(got, slices.Sorted(maps.Keys(count))) ||
			!slices.Equal(have, before) {
			t.Fatalf("%v, %v: %v", before, diff, got)
		}
	}
}

// TestPatch: the differences of update2, as ovsdb-server(7) defines them, for each kind of column.
func TestPatch(t *testing.T) {
	for _, test := range []struct {
		have any
		diff string
		want any
	}{
		{"a", `"b"`, "b"},
		{new("a"), `["set",[]]`, (*string)(nil)},
		{(*string)(nil), `"b"`, new("b")},
		{new(1), `["set",[2]]`, new(2)},
		{[]int{1, 3}, `["set",[2,3]]`, []int{1, 2}},
		{[]int{1}, `1`, []int(nil)},
		{[]UUID(nil), `["uuid","11111111-2222-3333-4444-555555555555"]`,
			[]UUID{"11111111-2222-3333-4444-555555555555"}},
		{map[string]string{"a": "1", "b": "2", "c": "3"}, `["map",[["a","1"],["b","4"],["d","5"]]]`,
			map[string]string{"b": "4", "c": "3", "d": "5"}},
		{map[string]int{"a": 1}, `["map",[["a",1]]]`, map[string]int(nil)},
		{map[string]int(nil), `["map",[["a",1]]]`, map[string]int{"a": 1}},
	} {
		got := reflect.New(reflect.TypeOf(test.have)).Elem()
		got.Set(reflect.ValueOf(test.have))
		p := jsontext.NewParser([]byte(test.diff))
		columnOf(got.Type()).patch(p, got)
		if p.End() != nil || !reflect.DeepEqual(got.Interface(), test.want) {
			t.Errorf("%v and %s: %v %v, want %v", test.have, test.diff, got, p.Err(), test.want)
		}
	}
}
