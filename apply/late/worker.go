package late

import (
	"context"
	"time"
)

// Worker runs calls of one loop that may hang in a separate goroutine, one at a time, so that the
// loop does not wait for them.
type Worker struct{ *Task[func()] }

// NewWorker makes a worker that calls wake when there is something to collect.
func NewWorker(wake func()) Worker { return Worker{NewTask[func()](wake)} }

// Do runs f, unless a call is in progress, and passes its error to done. If f ends within a moment,
// Do calls done and returns true; otherwise the first Collect after the end of f calls it.
func (w Worker) Do(ctx context.Context, f func(context.Context) error, done func(error)) bool {
	const moment, limit = 50 * time.Millisecond, 5 * time.Second
	r, err := w.Task.Do(ctx, moment, limit, func(ctx context.Context) (func(), error) {
		err := f(ctx)
		return func() { done(err) }, nil
	})
	if err != nil {
		return false
	}
	r.Value()
	return true
}

// Collect runs the result of a call that has ended since the last round.
func (w Worker) Collect() {
	if r, _ := w.Take(); r != nil {
		r.Value()
	}
}
