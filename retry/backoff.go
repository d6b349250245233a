package retry

import "time"

// Backoff is the pause between tries of something expensive that fails: it doubles from a second up to a minute. The zero value has
// no failure.
type Backoff struct {
	pause time.Duration
	until time.Time // of the next try
}

// Pauses of a Backoff.
const (
	firstBackoff = time.Second
	lastBackoff  = time.Minute
)

// Failed notes a try that failed.
func (b *Backoff) Failed(now time.Time) {
	b.pause = min(max(2*b.pause, firstBackoff), lastBackoff)
	b.until = now.Add(b.pause)
}

// Done notes one that did not.
func (b *Backoff) Done() { *b = Backoff{} }

// Due reports whether it is time for the next try.
func (b *Backoff) Due(now time.Time) bool { return !now.Before(b.until) }

// Wait returns how long to wait before the next try; 0 without a failure.
func (b *Backoff) Wait(now time.Time) time.Duration {
	if b.pause == 0 {
		return 0
	}
	return max(b.until.Sub(now), time.Millisecond)
}
