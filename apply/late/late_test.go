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

func TestTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var woken atomic.Int32
		task := late.NewTask[int](func() { woken.Add(1) })
		takes := func(d time.Duration, err error) func(context.Context) (int, error) {
			return func(ctx context.Context) (int, error) {
				late.For(ctx, "a daemon")
				time.Sleep(d)
				return 7, err
			}
		}
		do := func(f func(context.Context) (int, error)) (*late.Result[int], error) {
			return task.Do(t.Context(), time.Second, time.Minute, f)
		}
		if r, err := do(takes(900*time.Millisecond, nil)); r == nil || r.Value != 7 || err != nil ||
			task.Waits() != nil {
			t.Fatal(r, err, task.Waits())
		}
		began, failed := time.Now(), errors.New("failed")
		waits := func(err error) {
			t.Helper()
			if w := (*late.Waits)(nil); !errors.As(err, &w) || w.For != "a daemon" || !w.Since.Equal(began) {
				t.Fatal(err)
			}
		}
		r, err := do(takes(5*time.Second, failed))
		if waits(err); r != nil || time.Since(began) != time.Second {
			t.Fatal(r, time.Since(began))
		}
		_, err = do(takes(0, nil)) // no second call starts meanwhile
		waits(err)
		time.Sleep(10 * time.Second)
		if woken.Load() != 1 {
			t.Errorf("woken %d times", woken.Load())
		}
		waits(task.Waits()) // the call exceeded its patience, and failed
		if r, err := task.Take(); r == nil || r.Err != failed || err != nil {
			t.Fatal(r, err)
		}
		if r, err := task.Take(); r != nil || err != nil {
			t.Fatal(r, err)
		}
		second := time.Now() // the wait is brief now, and Since is the first call's begin
		r, err = do(takes(500*time.Millisecond, nil))
		if waits(err); r != nil || time.Since(second) > 100*time.Millisecond {
			t.Fatal(r, time.Since(second))
		}
		time.Sleep(time.Second)
		if task.Waits() != nil || woken.Load() != 2 {
			t.Error(task.Waits(), woken.Load())
		}
		if r, err := task.Take(); r == nil || r.Value != 7 || err != nil {
			t.Fatal(r, err)
		}
		if r, _ := do(takes(900*time.Millisecond, nil)); r == nil {
			t.Error("the wait is still brief")
		}
		// The context of a call ends after limit.
		r, err = do(func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() })
		if r != nil {
			t.Fatal(r, err)
		}
		task.Finish(t.Context())
		if r, _ := task.Take(); r == nil || !errors.Is(r.Err, context.DeadlineExceeded) {
			t.Fatal(r)
		}
	})
}
