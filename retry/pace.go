// Package retry says when to try again what failed, and how to slow down what happens again and again.
package retry

import (
	"context"
	"time"
)

// Pauses between two tries of something that fails.
const (
	First = 10 * time.Millisecond
	Last  = time.Second
)

// Pace tells when to try again what failed: soon at first, then at longer and longer intervals, up to a second. The zero
// value has no failure.
type Pace struct {
	Pause time.Duration // before the next try; 0 = the last one did not fail
}

// Failed notes a try that failed.
func (p *Pace) Failed() {
	p.Pause = min(max(2*p.Pause, First), Last)
}

// Wait notes a try that failed, and waits before the next one.
func (p *Pace) Wait(ctx context.Context) {
	p.Failed()
	Sleep(ctx, p.Pause)
}

// Done notes one that did not.
func (p *Pace) Done() { *p = Pace{} }

// Sleep waits, at most until ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// Sooner returns the shorter of two times to wait, of which 0 is for ever.
func Sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// Every calls f after each interval until ctx ends.
func Every(ctx context.Context, interval time.Duration, f func()) {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			f()
		}
	}
}
