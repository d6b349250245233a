package scale

import (
	"testing"
	"time"
)

// TestLull checks that idle daemons are at rest within a second, those with constant load after it
// falls no more, and busy ones never.
func TestLull(t *testing.T) {
	falling := func(i, to int) int { return max(900-50*i, to+i%3) } // ms of each window of two nodes
	for name, c := range map[string]struct {
		used func(i int) int
		from int // the first window after which rest is allowed
		to   int // the window by which rest is required; 0: never
	}{
		"quiet":                {func(int) int { return 20 }, 1, 2},
		"quiet after work":     {func(i int) int { return falling(i, 20) }, 16, 19},
		"busy by themselves":   {func(i int) int { return falling(i, 150) }, 35, 40},
		"one quiet in between": {func(i int) int { return 150 - 100*(i%2) }, 20, 25},
		"hard work":            {func(i int) int { return 900 + i%7 }, 0, 0},
	} {
		l := lull{nodes: 2}
		at := 0
		for i := 1; i <= 400 && at == 0; i++ {
			if l.take(time.Duration(c.used(i)) * time.Millisecond) {
				at = i
			}
		}
		if at < c.from || at > c.to {
			t.Errorf("%s: at rest after %d windows, not %d to %d", name, at, c.from, c.to)
		}
	}
}
