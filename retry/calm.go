package retry

import "time"

// Pauses of a calm.
const (
	freely    = 3 // times without a pause
	mostPause = 500 * time.Millisecond
)

// Calm slows down what happens again and again: after the first few times there are pauses that grow, until it has rested.
type Calm struct {
	times int
	last  time.Time
}

// Pause is how long to wait before the next time.
func (c *Calm) Pause(now time.Time) time.Duration {
	if now.Sub(c.last) > 2*mostPause {
		c.times = 0
	}
	if c.times++; c.times <= freely {
		return 0
	}
	return min(time.Millisecond<<min(c.times, 20), mostPause)
}

func (c *Calm) Done(now time.Time) { c.last = now }
