// Package late runs calls that may hang in a goroutine; the caller waits for a limited time and
// then goes on without them.
package late

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// brief is how long to wait for what was too slow the last time.
const brief = 50 * time.Millisecond

// Result is how something ended.
type Result[T any] struct {
	Value T
	Err   error
}

// Task does one thing at a time, in a goroutine of its own. Its methods may be called at any time,
// Do and Take by one goroutine at a time.
type Task[T any] struct {
	wake func() // when a call ended after its caller stopped waiting

	mu    sync.Mutex
	now   *call[T]
	slow  bool      // the last one took longer than its patience
	since time.Time // when the first one began of those that were too slow, with no success after it
	whom  string    // the last of those waited for
}

// call is one in progress, or its result that has not been taken yet.
type call[T any] struct {
	begun    time.Time
	patience time.Duration
	whom     atomic.Pointer[string]
	done     chan struct{}
	result   Result[T]
	left     bool // the caller stopped waiting
}

// NewTask makes a Task that is idle. It calls wake, from any goroutine, when there is something for
// Take.
func NewTask[T any](wake func()) *Task[T] { return &Task[T]{wake: wake} }

// Do begins f, whose context ends after limit, and gives its result. When that does not come within
// patience, the error is a *Waits, and the result is for Take. When the last one was too slow, the
// wait is brief. While something is under way, nothing is begun.
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
		ctx, cancel := context.WithTimeout(context.WithValue(ctx, key{}, &c.whom), limit)
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

// end notes that a call has ended.
func (t *Task[T]) end(c *call[T]) {
	t.mu.Lock()
	t.slow = time.Since(c.begun) > c.patience
	if p := c.whom.Load(); p != nil {
		t.whom = *p
	}
	if c.result.Err == nil || !t.slow {
		t.since = time.Time{}
	}
	close(c.done)
	left := c.left
	t.mu.Unlock()
	if left {
		t.wake()
	}
}

// Take returns the result of what has ended, once. While it goes on, the error is a *Waits; both
// are nil when there is nothing.
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
	c.left, t.slow = true, true
	if t.since.IsZero() {
		t.since = c.begun
	}
	return nil, t.waits()
}

// Waits is a *Waits if the Task runs a call whose caller stopped waiting, or that failed to finish
// in time; otherwise nil.
func (t *Task[T]) Waits() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.since.IsZero() {
		return nil
	}
	return t.waits()
}

func (t *Task[T]) waits() error {
	w := &Waits{For: t.whom, Since: t.since}
	if t.now != nil {
		if p := t.now.whom.Load(); p != nil {
			w.For = *p
		}
		if t.since.IsZero() {
			w.Since = t.now.begun
		}
	}
	return w
}

// Busy reports whether something is under way, or its result waits for Take.
func (t *Task[T]) Busy() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now != nil
}

// Finish waits until nothing is under way, or ctx ends.
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

// Waits is the error of a caller that goes on without a result.
type Waits struct {
	For   string    // a daemon, a program; empty = unknown
	Since time.Time // when it began
}

// Error says for whom, and since when.
func (w *Waits) Error() string {
	for_ := w.For
	if for_ == "" {
		for_ = "an answer"
	}
	return fmt.Sprintf("waits for %s since %s", for_, w.Since.UTC().Format(time.RFC3339))
}

type key struct{}

// For notes whom the function of a Task asks next. With any other context it does nothing.
func For(ctx context.Context, whom string) {
	if p, ok := ctx.Value(key{}).(*atomic.Pointer[string]); ok {
		p.Store(&whom)
	}
}
