package late

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"hairpin/retry"
)

// Times of Watch.
const (
	// silence is how long a daemon may take to respond or to restart. Daemons of OVN respond to
	// nothing while they compute.
	silence  = 3 * time.Second
	askAgain = time.Second            // between requests
	askSoon  = 100 * time.Millisecond // after a request that failed
)

// Daemon is a process that a target needs, even while it has nothing to read or to change.
type Daemon struct {
	Name string
	Ask  func(context.Context) error // fails if the daemon does not respond

	waits atomic.Pointer[Waits] // nil while it responds
}

// Unresponsive returns a *Waits while the daemon does not respond.
func (d *Daemon) Unresponsive() error {
	if w := d.waits.Load(); w != nil {
		return w
	}
	return nil
}

// Unresponsive joins the errors of daemons that do not respond.
func Unresponsive(daemons []*Daemon) error {
	errs := make([]error, len(daemons))
	for i, d := range daemons {
		errs[i] = d.Unresponsive()
	}
	return errors.Join(errs...)
}

// Watch sends requests to daemons until ctx ends, to notice a daemon that hangs while no target
// needs it. It calls changed, from any goroutine, when a daemon stops responding or responds again.
func Watch(ctx context.Context, daemons []*Daemon, changed func()) {
	var tasks sync.WaitGroup
	for _, d := range daemons {
		tasks.Go(func() { d.watch(ctx, changed) })
	}
	tasks.Wait()
}

// watch requires two failed requests in a row: the first one may fail because this process was
// stopped.
func (d *Daemon) watch(ctx context.Context, changed func()) {
	var failed int      // requests in a row
	var since time.Time // when the first of them began
	for ctx.Err() == nil {
		begin := time.Now()
		limited, cancel := context.WithTimeout(ctx, silence/2)
		err := d.Ask(limited)
		cancel()
		if err == nil {
			failed = 0
			if d.waits.Swap(nil) != nil {
				changed()
			}
			retry.Sleep(ctx, askAgain)
			continue
		}
		if failed == 0 {
			since = begin
		}
		failed++
		if failed > 1 && time.Since(since) >= silence && d.waits.Load() == nil && ctx.Err() == nil {
			d.waits.Store(&Waits{For: d.Name, Since: since})
			changed()
		}
		retry.Sleep(ctx, askSoon)
	}
}
