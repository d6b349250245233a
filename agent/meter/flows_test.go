package meter

import (
	"testing"

	"hairpin/datapath/flow"
)

// TestTotals checks that sums do not decrease when a flow is added again, and that a counter that
// no flow has any more is kept or forgotten.
func TestTotals(t *testing.T) {
	var all totals[string]
	a, b := flow.Key{Table: 1}, flow.Key{Table: 2}
	counters := map[flow.Key]string{a: "x", b: "x"}
	for _, c := range []struct {
		counts map[flow.Key]uint64
		want   uint64
	}{
		{map[flow.Key]uint64{a: 3, b: 4}, 7},
		{map[flow.Key]uint64{a: 5, b: 1}, 10}, // b was added again
		{map[flow.Key]uint64{b: 1}, 10},       // a was removed
	} {
		if all.add(counters, c.counts, true); all.sums["x"] != c.want {
			t.Errorf("%v: the sum is %d, not %d", c.counts, all.sums["x"], c.want)
		}
	}
	all.add(map[flow.Key]string{b: "y"}, map[flow.Key]uint64{b: 2}, true)
	if all.sums["x"] != 10 || all.sums["y"] != 1 {
		t.Errorf("kept: %v", all.sums)
	}
	all.add(map[flow.Key]string{b: "y"}, map[flow.Key]uint64{b: 2}, false)
	if _, there := all.sums["x"]; there || all.sums["y"] != 1 {
		t.Errorf("not kept: %v", all.sums)
	}
}
