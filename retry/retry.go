// Package retry decides when to try again what failed (Backoff), logs its errors once (LastError),
// and limits the rate of work that is requested again and again (Throttle).
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

// Sooner returns the shortest of some times to wait; 0 means forever.
func Sooner(waits ...time.Duration) (soonest time.Duration) {
	for _, w := range waits {
		if soonest == 0 || w != 0 && w < soonest {
			soonest = w
		}
	}
	return soonest
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
