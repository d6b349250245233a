package agent

import (
	"context"
	"time"

	"hairpin/apply/late"
)

// worker runs calls that may hang in a separate goroutine, one at a time, so that the loop does not
// wait for them.
type worker struct{ *late.Task[func()] }

// newWorker makes a worker that calls wake when there is something to collect.
func newWorker(wake func()) worker { return worker{late.NewTask[func()](wake)} }

// do runs f, unless a call is in progress. The loop calls then with the error of f: at once if f
// ends within a moment, and do then returns true; otherwise in the round after the end of f.
func (w worker) do(ctx context.Context, f func(context.Context) error, then func(error)) bool {
	const moment, limit = 50 * time.Millisecond, 5 * time.Second
	r, err := w.Do(ctx, moment, limit, func(ctx context.Context) (func(), error) {
		err := f(ctx)
		return func() { then(err) }, nil
	})
	if err != nil {
		return false
	}
	r.Value()
	return true
}

// briefly is do with a timeout, for a call to Open vSwitch.
func (w worker) briefly(ctx context.Context, f func(context.Context) error, then func(error)) bool {
	return w.do(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, answerLimit)
		defer cancel()
		return f(ctx)
	}, then)
}

// collect runs the result of a call that has ended since the last round.
func (w worker) collect() {
	if r, _ := w.Take(); r != nil {
		r.Value()
	}
}
