package chaos

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestMinimise checks that exactly the faults that are needed remain, in their order.
func TestMinimise(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	for range 500 {
		all := make([]int, 1+r.IntN(40))
		for i := range all {
			all[i] = i
		}
		var needed []int
		for _, i := range all {
			if r.IntN(8) == 0 {
				needed = append(needed, i)
			}
		}
		if len(needed) == 0 {
			needed = all[:1]
		}
		runs := 0
		got, err := Minimise(all, func(part []int) (bool, error) {
			runs++
			return !slices.ContainsFunc(needed, func(n int) bool { return !slices.Contains(part, n) }), nil
		})
		if err != nil || !slices.Equal(got, needed) {
			t.Fatalf("of %d: %v %v, want %v", len(all), got, err, needed)
		}
		if limit := len(all)*len(all) + 3*len(all); runs > limit {
			t.Errorf("%d runs for %d faults", runs, len(all))
		}
	}
}

// TestMinimiseAlternatives checks that nothing can be left out of the result if several parts fail.
func TestMinimiseAlternatives(t *testing.T) {
	fails := func(part []int) bool {
		return slices.Contains(part, 3) && slices.Contains(part, 9) || slices.Contains(part, 5) &&
			slices.Contains(part, 6)
	}
	got, err := Minimise([]int{1, 2, 3, 4, 5, 6, 7, 8, 9}, func(part []int) (bool, error) { return fails(part), nil })
	if err != nil || len(got) != 2 || !fails(got) {
		t.Errorf("%v %v", got, err)
	}
}

// TestMinimiseError checks that a run without a result ends the search: a part does not pass
// because its run could not begin.
func TestMinimiseError(t *testing.T) {
	runs, broken := 0, errors.New("the cluster is broken")
	got, err := Minimise([]int{1, 2, 3, 4}, func([]int) (bool, error) {
		if runs++; runs == 3 {
			return false, broken
		}
		return false, nil
	})
	if runs != 3 || !errors.Is(err, broken) || got != nil {
		t.Errorf("%d runs, %v, %v", runs, got, err)
	}
}
