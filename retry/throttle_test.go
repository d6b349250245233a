package retry_test

import (
	"testing"
	"time"

	"hairpin/retry"
)

// TestThrottle: work that is requested a hundred times a second runs twice a second, and costs half
// a percent of the time at most. The first few runs are at once.
func TestThrottle(t *testing.T) {
	for _, took := range []time.Duration{time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond} {
		var c retry.Throttle
		now := time.Unix(1000, 0)
		for i := range 3 {
			if p := c.Pause(now); p > 0 {
				t.Errorf("%v: pause %v before time %d", took, p, i)
			}
			c.Done(now.Add(took), took)
			now = now.Add(took + 10*time.Millisecond)
		}
		var busy time.Duration
		begin := now
		for now.Sub(begin) < time.Minute {
			now = now.Add(c.Pause(now))
			c.Done(now.Add(took), took)
			now = now.Add(took + 10*time.Millisecond)
			busy += took
		}
		if is := busy.Seconds() / now.Sub(begin).Seconds(); is > 0.0055 {
			t.Errorf("%v costs %.1f %% of the time", took, 100*is)
		}
		if p := c.Pause(now.Add(10 * time.Second)); p > 0 {
			t.Errorf("%v: pause %v after a rest", took, p)
		}
	}
}
