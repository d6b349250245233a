package retry

import "time"

// Pauses of a calm.
const (
	freely    = 3 // times without a pause
	mostPause = 500 * time.Millisecond
	longPause = 5 * time.Second // of what costs much
	share     = 200             // a pause is at least this many times what the last time cost
)

// Calm slows down what happens again and again: after the first few times there are pauses that grow, until it has rested. What costs
// much has longer ones: it gets half a percent of a core.
type Calm struct {
	times int
	last  time.Time
	cost  time.Duration
}

// Pause is how long to wait before the next time.
func (c *Calm) Pause(now time.Time) time.Duration {
	if now.Sub(c.last) > 2*mostPause {
		c.times = 0
	}
	if c.times++; c.times <= freely {
		return 0
	}
	grown := min(time.Millisecond<<min(c.times, 20), mostPause)
	return max(grown, min(share*c.cost, longPause))
}

// Done notes when it was done, and what it cost: time of a processor.
func (c *Calm) Done(now time.Time, cost time.Duration) { c.last, c.cost = now, cost }
