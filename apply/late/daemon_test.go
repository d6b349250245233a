package late_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"hairpin/apply/late"
)

// TestWatch: a daemon counts as unresponsive when it has hung, or was gone, for longer than a
// restart takes, and responds again at once. One late response does not count.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const responds, hangs, gone = 0, 1, 2
		ctx, stop := context.WithCancel(t.Context())
		var state, changes atomic.Int32
		daemon := &late.Daemon{Name: "a daemon", Ask: func(ctx context.Context) error {
			for state.Load() == hangs && ctx.Err() == nil {
				time.Sleep(10 * time.Millisecond)
			}
			if state.Load() == gone {
				return errors.New("it does not run")
			}
			return ctx.Err()
		}}
		done := make(chan struct{})
		go func() {
			late.Watch(ctx, []*late.Daemon{daemon}, func() { changes.Add(1) })
			close(done)
		}()
		// after sets the state, waits, and checks what is reported then.
		after := func(next int32, d time.Duration, unresponsive bool, changed int32) {
			t.Helper()
			began := time.Now()
			state.Store(next)
			time.Sleep(d)
			err := late.Unresponsive([]*late.Daemon{daemon})
			w := (*late.Waits)(nil)
			if errors.As(err, &w) != unresponsive || changes.Load() != changed ||
				w != nil && (w.For != "a daemon" || w.Since.Sub(began) > time.Second) {
				t.Errorf("state %d for %v: %v after %d changes", next, d, err, changes.Load())
			}
		}
		after(responds, 10*time.Second, false, 0)
		after(hangs, 2*time.Second, false, 0)
		after(responds, 10*time.Second, false, 0)
		after(hangs, 5*time.Second, true, 1)
		after(responds, 200*time.Millisecond, false, 2)
		after(gone, 2*time.Second, false, 2) // a restart
		after(responds, 10*time.Second, false, 2)
		after(gone, 5*time.Second, true, 3)
		after(responds, 200*time.Millisecond, false, 4)
		stop()
		<-done
	})
}
