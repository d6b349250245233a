package retry

import "time"

// Pauses of a Throttle.
const (
	freeRuns   = 3 // runs without a pause
	maxPause   = 500 * time.Millisecond
	longPause  = 5 * time.Second // of expensive work
	costFactor = 200             // a pause is at least this many times what the last run cost
)

// Throttle limits the rate of repeated work: three runs at once, then growing pauses, reset after a
// second of quiet. Expensive work has longer pauses: it uses half a percent of a core. The zero
// value is ready to use.
type Throttle struct {
	times int
	last  time.Time
	cost  time.Duration
}

// Pause announces the next run, and returns how long to wait before it.
func (t *Throttle) Pause(now time.Time) time.Duration {
	if now.Sub(t.last) > 2*maxPause {
		t.times = 0
	}
	if t.times++; t.times <= freeRuns {
		return 0
	}
	grown := min(time.Millisecond<<min(t.times, 20), maxPause)
	return max(grown, min(costFactor*t.cost, longPause))
}

// Done records the end of a run, and the processor time that it took.
func (t *Throttle) Done(now time.Time, cost time.Duration) { t.last, t.cost = now, cost }
