// Package late runs calls that may hang in a goroutine. The caller waits for a limited time and
// then proceeds without the result.
package late

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// brief is the wait for a call after one that exceeded its patience.
const brief = 50 * time.Millisecond

// Result is the result of a call.
type Result[T any] struct {
	Value T
	Err   error
}

// Task runs one call at a time, in its own goroutine. Its methods may be called at any time, Do and
// Take by one goroutine at a time.
type Task[T any] struct {
	wake func() // when a call ended after its caller stopped waiting

	mu     sync.Mutex
	now    *call[T]
	slow   bool      // the last call exceeded its patience
	since  time.Time // begin of the first call that exceeded its patience, with no success since
	daemon string    // the last daemon waited for
}

// call is a running call, or one whose result was not taken yet.
type call[T any] struct {
	begun     time.Time
	patience  time.Duration
	daemon    atomic.Pointer[string]
	done      chan struct{}
	result    Result[T]
	abandoned bool // the caller stopped waiting
}

// NewTask returns an idle Task. It calls wake, from any goroutine, when there is a result for Take.
func NewTask[T any](wake func()) *Task[T] { return &Task[T]{wake: wake} }

// Do runs f, whose context ends after limit, and returns its result. If f exceeds patience, the
// error is a *Waits, and Take returns the result later. After a call that exceeded its patience,
// the wait is brief. While a call is running, Do starts none.
func (t *Task[T]) Do(ctx context.Context, patience, limit time.Duration,
	f func(context.Context) (T, error)) (*Result[T], error) {
	c := &call[T]{begun: time.Now(), patience: patience, done: make(chan struct{})}
	t.mu.Lock()
	if t.now != nil {
		defer t.mu.Unlock()
		return nil, t.waits()
	}
	t.now = c
	if t.slow {
		patience = min(patience, brief)
	}
	t.mu.Unlock()
	go func() {
		ctx, cancel := context.WithTimeout(context.WithValue(ctx, key{}, &c.daemon), limit)
		defer cancel()
		c.result.Value, c.result.Err = f(ctx)
		t.end(c)
	}()
	wait := time.NewTimer(patience)
	defer wait.Stop()
	select {
	case <-c.done:
	case <-wait.C:
	}
	return t.Take()
}

// end records the end of a call.
func (t *Task[T]) end(c *call[T]) {
	t.mu.Lock()
	t.slow = time.Since(c.begun) > c.patience
	if p := c.daemon.Load(); p != nil {
		t.daemon = *p
	}
	if c.result.Err == nil || !t.slow {
		t.since = time.Time{}
	}
	close(c.done)
	abandoned := c.abandoned
	t.mu.Unlock()
	if abandoned {
		t.wake()
	}
}

// Take returns the result of a finished call, once. While the call is running, the error is a
// *Waits. Both are nil when there is no call.
func (t *Task[T]) Take() (*Result[T], error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.now
	if c == nil {
		return nil, nil
	}
	select {
	case <-c.done:
		t.now = nil
		return &c.result, nil
	default:
	}
	c.abandoned, t.slow = true, true
	if t.since.IsZero() {
		t.since = c.begun
	}
	return nil, t.waits()
}

// Waits returns a *Waits while the Task runs a call after its caller stopped waiting, and after a
// call that exceeded its patience and failed; otherwise nil.
func (t *Task[T]) Waits() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.since.IsZero() {
		return nil
	}
	return t.waits()
}

func (t *Task[T]) waits() error {
	w := &Waits{For: t.daemon, Since: t.since}
	if t.now != nil {
		if p := t.now.daemon.Load(); p != nil {
			w.For = *p
		}
		if t.since.IsZero() {
			w.Since = t.now.begun
		}
	}
	return w
}

// Busy reports whether a call is running, or its result waits for Take.
func (t *Task[T]) Busy() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now != nil
}

// Finish waits until no call is running, or ctx ends.
func (t *Task[T]) Finish(ctx context.Context) {
	t.mu.Lock()
	c := t.now
	t.mu.Unlock()
	if c == nil {
		return
	}
	select {
	case <-c.done:
	case <-ctx.Done():
	}
}

// Waits is the error of a caller that proceeds without a result.
type Waits struct {
	For   string    // a daemon, a program; empty = unknown
	Since time.Time // when the wait began
}

// Error names the daemon and the time.
func (w *Waits) Error() string {
	return fmt.Sprintf("waits for %s since %s", cmp.Or(w.For, "an answer"), w.Since.UTC().Format(time.RFC3339))
}

type key struct{}

// For records which daemon the function of a Task waits for next. It ignores other contexts.
func For(ctx context.Context, daemon string) {
	if p, ok := ctx.Value(key{}).(*atomic.Pointer[string]); ok {
		p.Store(&daemon)
	}
}
