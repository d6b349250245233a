package demo

import "testing"

// countsPasses requires the datapath's counts of each path to equal the costs of the walk.
func countsPasses(t *testing.T, d *Demo) {
	t.Helper()
	for _, six := range []bool{false, true} {
		list, err := d.Passes(t.Context(), six)
		if err != nil {
			t.Error(err)
		}
		for _, p := range list {
			if p.Walk != p.Counted {
				t.Errorf("%s: the walk says %+v, counted were %+v", p.Way, p.Walk, p.Counted)
			}
		}
	}
}
