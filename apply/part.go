package apply

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"hairpin/apply/late"
	"hairpin/datapath"
	"hairpin/retry"
)

// ErrWithheld is the Status.Err of a system whose changes wait for other systems: those that may
// refer to what it removes, or that its additions refer to.
var ErrWithheld = errors.New("changes wait until the other systems are in order")

// Stats counts operations on one system since NewPass.
type Stats struct {
	Reads   uint64 // of the real system
	Applies uint64 // successful transactions
	Written uint64 // changes in them: rows, flows, elements, routes …
	Drift   uint64 // differences that others made after a converged Run, found on a Read
	Errors  uint64 // Reads and Applies that failed
}

// Status is the state of one system.
type Status struct {
	System string
	InSync bool      // equal to the last wanted State, as far as known
	Since  time.Time // when InSync changed last
	Err    error     // why it is not in sync; nil when InSync, and before the first Run
	Stats
}

// part is one system of a Pass.
type part[S any, D Delta[D]] struct {
	datapath.Part[S, D]
	target    Target[S, D]
	pass      *Pass
	task      *late.Task[S] // a Read or an Apply
	extra     *late.Task[S] // a Read for another caller
	extraUser sync.Mutex    // held by that caller

	want        S     // in this Run
	diff        D     // in this Run: the difference of want and have
	have        S     // what the system has
	known       bool  // have was read, with no change or error since
	lastApplied S     // the last State reached
	converged   bool  // lastApplied was reached, with no change since
	read        bool  // in this Run
	applied     bool  // in this Run
	err         error // of this Run
	waits       error // of this Run: a *Waiting, or what an unresponsive daemon delays
	stale       atomic.Bool

	unfinished  bool          // the task runs a call that no Run waits for any more
	changes     int           // of the Apply that the task runs; 0: it runs a Read
	readTook    time.Duration // how long the last Read took
	begun       time.Time     // of the task's call
	limit       time.Duration // of that call, doubled for each of timeouts
	timeouts    int           // how many of the last calls in a row reached the limit
	backoff     retry.Backoff // after failures
	lastFailure error         // a Run returns it without a try, until the backoff ends or the system changes

	mu     sync.Mutex
	status Status
}

// newPart adds a part to p. A part without a target does nothing.
func newPart[S any, D Delta[D]](p *Pass, what datapath.Part[S, D], target Target[S, D]) *part[S, D] {
	made := &part[S, D]{Part: what, target: target, pass: p, status: Status{System: what.System, Since: time.Now()},
		task: late.NewTask[S](p.ended.Notify), extra: late.NewTask[S](func() {})}
	if target != nil {
		p.systems = append(p.systems, made)
	}
	return made
}

// Time limits of a part. A Run waits for the patience, so that a hanging system delays no other. A
// call is cancelled after a multiple of that, the next time after twice as long, because a very
// slow machine only looks like a hanging system.
const (
	patience       = time.Second          // for a Read or an Apply
	perChange      = 5 * time.Millisecond // added for each change: several times what the slowest system needs
	perReading     = 4                    // for a Read, this many times what the last one took is added
	limitFactor    = 10                   // the limit of a call, in times the patience
	doublings      = 5                    // how often the limit may double
	ovnLimit       = 2 * time.Second      // for OVN, before routes change to it
	extraReadLimit = 5 * time.Second      // for a Read of another caller
)

func (p *part[S, D]) changed() <-chan struct{} { return p.target.Changed() }

// reread makes the next Run read the system.
func (p *part[S, D]) reread() { p.stale.Store(true) }

// retry makes the next Run retry what failed.
func (p *part[S, D]) retry() { p.lastFailure = nil }

// drain waits until no call is running, or ctx ends.
func (p *part[S, D]) drain(ctx context.Context) { p.task.Finish(ctx) }

// observe begins a Run: it reads the system when a Read is due, and computes the difference.
func (p *part[S, D]) observe(ctx context.Context, want *datapath.State) {
	p.want = *p.In(want)
	p.err, p.waits, p.read, p.applied = nil, nil, false, false
	select {
	case <-p.target.Changed():
		p.reread()
	default:
	}
	if p.err = p.collect(); p.err != nil {
		return
	}
	if p.lastFailure != nil && !p.stale.Load() && !p.backoff.Due(time.Now()) {
		p.err = p.lastFailure
		return
	}
	if stale := p.stale.Swap(false); stale || !p.known {
		if p.err = p.readNow(ctx); p.err != nil {
			return
		}
	}
	p.diff = p.Diff(p.want, p.have)
}

// grow returns the step that makes the additions and changes of a phase, after the systems that
// they refer to are in order.
func (p *part[S, D]) grow(phase func(D, S) D, after ...system) step {
	return p.change(func(d D, want S) D { return phase(d, want).Grow() }, after...)
}

// shrink returns the step that makes the removals of a phase, after systems that may refer to them
// are in order.
func (p *part[S, D]) shrink(phase func(D, S) D, after ...system) step {
	return p.change(func(d D, want S) D { return phase(d, want).Shrink() }, after...)
}

// change returns the step that applies all of a phase.
func (p *part[S, D]) change(phase func(D, S) D, after ...system) step {
	return step{after: after, do: func(ctx context.Context, waitFor string) {
		if p.err == nil {
			p.do(ctx, phase(p.diff, p.want), waitFor)
		}
	}}
}

// collect takes the result of a Read or Apply that an earlier Run did not wait for.
func (p *part[S, D]) collect() error {
	if !p.unfinished {
		return nil
	}
	r, err := p.task.Take()
	if r == nil {
		return err
	}
	p.unfinished = false
	p.endCall(r.Err)
	if p.changes == 0 {
		return p.readResult(r)
	}
	p.known, p.converged = false, false // its effect must be read
	return p.applyResult(r.Err)
}

// readFor reads the system for another caller, at any time. A timeout is an error.
func (p *part[S, D]) readFor(ctx context.Context, into *datapath.State) error {
	err := p.task.Waits() // the new Read would wait for the same daemon
	if err == nil {
		p.extraUser.Lock()
		defer p.extraUser.Unlock()
		_, _ = p.extra.Take() // left by a caller that did not wait
		var r *late.Result[S]
		if r, err = p.extra.Do(ctx, extraReadLimit, extraReadLimit, p.target.Read); r != nil {
			*p.In(into), err = r.Value, r.Err
		}
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", p.System, err)
	}
	return nil
}

// readNow reads the system.
func (p *part[S, D]) readNow(ctx context.Context) error {
	wait := patience + perReading*p.readTook
	p.changes = 0
	r, err := p.task.Do(ctx, wait, p.beginCall(limitFactor*wait), p.target.Read)
	if r == nil {
		p.unfinished = true
		return err
	}
	p.endCall(r.Err)
	p.readTook = time.Since(p.begun)
	return p.readResult(r)
}

// beginCall records that a Read or Apply begins, and returns its limit. After calls that reached
// theirs, the limit is longer.
func (p *part[S, D]) beginCall(limit time.Duration) time.Duration {
	p.begun, p.limit = time.Now(), limit<<p.timeouts
	return p.limit
}

// endCall records the end of a Read or Apply, and adapts the next limit: it grows after a call that
// reached its own, until one succeeds within the limit without doublings.
func (p *part[S, D]) endCall(err error) {
	switch took := time.Since(p.begun); {
	case err != nil && took >= p.limit:
		p.timeouts = min(p.timeouts+1, doublings)
	case err == nil && took < p.limit>>p.timeouts:
		p.timeouts = 0
	}
}

// readResult stores the result of a Read, and counts drift.
func (p *part[S, D]) readResult(r *late.Result[S]) error {
	if r.Err != nil {
		return p.withDaemon(fmt.Errorf("read %s: %w", p.System, r.Err))
	}
	drift := 0
	if p.converged {
		d := p.Diff(p.lastApplied, r.Value)
		drift = d.Count()
		if drifter, ok := any(d).(Drifter); ok {
			drift = drifter.Drift()
		}
	}
	p.have, p.known, p.read = r.Value, true, true
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status.Reads++
	p.status.Drift += uint64(drift)
	return nil
}

// withDaemon adds the daemon that did not respond, if there is one, to an error.
func (p *part[S, D]) withDaemon(err error) error {
	if waits := p.task.Waits(); waits != nil {
		return fmt.Errorf("%w: %w", waits, err)
	}
	return err
}

// do makes the changes of d, if there are any. It withholds those that must wait for another
// system. A part that waits for a device is not in sync, but does not block the others.
func (p *part[S, D]) do(ctx context.Context, d D, waitFor string) {
	switch {
	case d.Empty():
		return
	case waitFor != "":
		p.err = fmt.Errorf("%w: %s", ErrWithheld, waitFor)
		return
	}
	p.applied, p.changes = true, d.Count()
	wait := patience + time.Duration(p.changes)*perChange
	r, err := p.task.Do(ctx, wait, p.beginCall(limitFactor*wait), func(ctx context.Context) (none S, err error) {
		begin := time.Now()
		err = p.target.Apply(ctx, d)
		if p.pass.took != nil {
			p.pass.took(p.System, time.Since(begin))
		}
		return none, err
	})
	if r == nil {
		p.unfinished, p.err = true, err
		return
	}
	p.err = p.applyResult(r.Err)
}

// failed returns the name of the system if it is not in order in this Run.
func (p *part[S, D]) failed() string {
	if p.err != nil {
		return p.System
	}
	return ""
}

// applyResult processes the result of an Apply.
func (p *part[S, D]) applyResult(err error) error {
	if err != nil {
		err = fmt.Errorf("apply to %s: %w", p.System, err)
		var waiting *Waiting
		if errors.As(err, &waiting) {
			p.waits = err
			return nil
		}
		return p.withDaemon(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status.Applies++
	p.status.Written += uint64(p.changes)
	return nil
}

// finish ends a Run and returns its error.
func (p *part[S, D]) finish() error {
	hard := p.err != nil && !p.unfinished && p.err != p.lastFailure && !errors.Is(p.err, ErrWithheld)
	if target, ok := p.target.(Degradable); ok && p.err == nil && p.waits == nil {
		p.waits = target.Unresponsive()
	}
	if p.err == nil {
		p.err = p.waits
	}
	inSync := p.err == nil
	switch {
	case inSync:
		p.known, p.converged, p.have, p.lastApplied = true, true, p.want, p.want
		if target, ok := p.target.(Sharer[S]); ok && (p.read || p.applied) {
			target.ShareWanted(p.want)
		}
	case p.applied:
		p.known, p.converged = false, false
	case hard || p.waits != nil: // a failed Read changes nothing
		p.known = false
	}
	p.updateBackoff(hard)
	var none D
	p.diff = none
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status.InSync != inSync {
		p.status.InSync, p.status.Since = inSync, time.Now()
	}
	p.status.Err = p.err
	if hard {
		p.status.Errors++
	}
	return p.err
}

// updateBackoff updates the backoff. A Run that failed, or that waits for a device or daemon, makes
// the next try later than the one before. A Run that did not try, because of the backoff, changes
// nothing. hard: an Apply or Read failed.
func (p *part[S, D]) updateBackoff(hard bool) {
	switch {
	case hard || p.err != nil && p.err == p.waits:
		p.backoff.Failed(time.Now())
		p.lastFailure = nil
		if hard {
			p.lastFailure = p.err
		}
	case p.err == nil || p.err != p.lastFailure:
		p.backoff.Done()
		p.lastFailure = nil
	}
}

// retryIn returns the time until the part wants another Run; 0 = not before a change signal.
func (p *part[S, D]) retryIn(now time.Time) time.Duration { return p.backoff.Wait(now) }

// report returns the Status.
func (p *part[S, D]) report() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}
