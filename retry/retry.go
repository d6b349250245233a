// Package retry decides when to try again what failed (Backoff) and limits the rate of work that is
// requested again and again (Throttle).
package retry

import (
	"context"
	"time"
)

// Sleep waits for d, at most until ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// Sooner returns the shorter of two times to wait; 0 means forever.
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
