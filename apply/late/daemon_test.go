package late_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"hairpin/apply/late"
)

// TestWatch: a daemon counts as unresponsive when it has hung, or was gone, for longer than a
// restart takes, and responds again at once. One late response does not count.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		responds, gone, changes := make(chan struct{}), false, 0
		close(responds)
		daemon := &late.Daemon{Name: "a daemon", Ask: func(ctx context.Context) error {
			if gone {
				return errors.New("it does not run")
			}
			select {
			case <-responds:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}
		done := make(chan struct{})
		go func() {
			late.Watch(ctx, []*late.Daemon{daemon}, func() { changes++ })
			close(done)
		}()
		is := func(what string, unresponsive bool, since time.Time, changed int) {
			t.Helper()
			synctest.Wait()
			err := late.Unresponsive([]*late.Daemon{daemon})
			w := (*late.Waits)(nil)
			if errors.As(err, &w) != unresponsive || changes != changed ||
				w != nil && (w.For != "a daemon" || w.Since.Sub(since).Abs() > time.Second) {
				t.Errorf("%s: %v after %d changes", what, err, changes)
			}
		}
		hang := func(d time.Duration) (began time.Time) {
			responds, began = make(chan struct{}), time.Now()
			time.Sleep(d)
			return began
		}
		time.Sleep(10 * time.Second)
		is("at rest", false, time.Time{}, 0)
		hang(2 * time.Second)
		close(responds)
		time.Sleep(10 * time.Second)
		is("late", false, time.Time{}, 0)
		is("hangs", true, hang(5*time.Second), 1)
		close(responds)
		is("responds", false, time.Time{}, 2)
		gone = true
		time.Sleep(2 * time.Second)
		gone = false
		time.Sleep(10 * time.Second)
		is("restarted", false, time.Time{}, 2)
		began := time.Now()
		gone = true
		time.Sleep(5 * time.Second)
		is("gone", true, began, 3)
		gone = false
		time.Sleep(200 * time.Millisecond)
		is("runs again", false, time.Time{}, 4)
		stop()
		<-done
	})
}
