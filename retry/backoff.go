package retry

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"
)

// Default pauses of a Backoff.
const (
	First = 10 * time.Millisecond
	Last  = time.Second
)

// Backoff is the pause between tries of something that fails: it doubles with each failure, from
// Min to Max. The zero value is ready to use and has no failure.
type Backoff struct {
	Min, Max time.Duration // 0: First; Last, or Min if that is longer
	// Jitter makes each pause random, at least half its length: for many processes that try the
	// same.
	Jitter bool

	pause time.Duration
	until time.Time // of the next try
}

// Failed records a try that failed.
func (b *Backoff) Failed(now time.Time) {
	b.pause = min(max(2*b.pause, cmp.Or(b.Min, First)), cmp.Or(b.Max, max(b.Min, Last)))
	pause := b.pause
	if b.Jitter {
		pause = pause/2 + rand.N(pause/2+1)
	}
	b.until = now.Add(pause)
}

// Done records a try that succeeded.
func (b *Backoff) Done() { b.pause, b.until = 0, time.Time{} }

// Pause returns the pause after the last failure, without jitter; 0 if the last try succeeded.
func (b *Backoff) Pause() time.Duration { return b.pause }

// Due reports whether it is time for the next try.
func (b *Backoff) Due(now time.Time) bool { return !now.Before(b.until) }

// Wait returns how long to wait before the next try; 0 without a failure.
func (b *Backoff) Wait(now time.Time) time.Duration {
	if b.pause == 0 {
		return 0
	}
	return max(b.until.Sub(now), time.Millisecond)
}

// Sleep records a try that failed, and waits before the next one, at most until ctx ends.
func (b *Backoff) Sleep(ctx context.Context) {
	now := time.Now()
	b.Failed(now)
	Sleep(ctx, b.until.Sub(now))
}
