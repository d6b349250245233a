package apply

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// ErrWithheld is the Status.Err of a system whose removals wait until the systems that may point at them are in order.
var ErrWithheld = errors.New("removals wait until the other systems are in order")

// Stats counts what was done to one system since the Pass was made.
type Stats struct {
	Reads   uint64 // of the real system
	Applies uint64 // transactions that succeeded
	Written uint64 // changes in them: rows, flows, elements, routes …
	Drift   uint64 // differences that others made to what was in order, found on a Read
	Errors  uint64 // Reads and Applies that failed
}

// Status is the state of one system.
type Status struct {
	System string
	InSync bool      // equal to the last wanted State, as far as is known
	Since  time.Time // since when InSync is what it is
	Err    error     // why it is not; nil when InSync, and before the first Run
	Stats
}

// part is one system of a Pass.
type part[S any, D Delta[D]] struct {
	name   string
	target Target[S, D]
	diff   func(want, have S) D

	have  S     // what the system has
	known bool  // have was read, and nothing went wrong since
	done  S     // the last State that was reached
	whole bool  // done was reached, and nothing went wrong since
	read  bool  // in this Run
	err   error // of this Run
	waits error // of this Run: a *Waiting
	stale atomic.Bool
	took  func(system string, d time.Duration) // hears of each Apply; may be nil

	mu     sync.Mutex
	status Status
}

func newPart[S any, D Delta[D]](name string, target Target[S, D], diff func(want, have S) D) *part[S, D] {
	return &part[S, D]{name: name, target: target, diff: diff, status: Status{System: name, Since: time.Now()}}
}

// changed is the target's notice; nil, which never comes, without a target.
func (p *part[S, D]) changed() <-chan struct{} {
	if p.target == nil {
		return nil
	}
	return p.target.Changed()
}

// told reports whether the target told of a change, or somebody asked for a Read, since the last look.
func (p *part[S, D]) told() bool { return p.target != nil && (p.stale.Load() || len(p.changed()) > 0) }

// look begins a Run: it reads the system when that is due, and tells what must change.
func (p *part[S, D]) look(ctx context.Context, want S) (d D) {
	p.err, p.waits, p.read = nil, nil, false
	if p.target == nil {
		return d
	}
	select {
	case <-p.target.Changed():
		p.stale.Store(true)
	default:
	}
	if stale := p.stale.Swap(false); stale || !p.known {
		if p.err = p.reread(ctx); p.err != nil {
			return d
		}
	}
	return p.diff(want, p.have)
}

// found reads the system for somebody else.
func (p *part[S, D]) found(ctx context.Context) (have S, err error) {
	if p.target == nil {
		return have, nil
	}
	if have, err = p.target.Read(ctx); err != nil {
		return have, fmt.Errorf("read %s: %w", p.name, err)
	}
	return have, nil
}

// reread reads the system, and counts what others did to it.
func (p *part[S, D]) reread(ctx context.Context) error {
	have, err := p.found(ctx)
	if err != nil {
		return err
	}
	drift := 0
	if p.whole {
		drift = p.diff(p.done, have).Count()
	}
	p.have, p.known, p.read = have, true, true
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status.Reads++
	p.status.Drift += uint64(drift)
	return nil
}

// do makes the changes of d, if there are any and nothing went wrong before. Those that may not be made yet are left.
// What waits for a device is not in order, and keeps nobody else from going on.
func (p *part[S, D]) do(ctx context.Context, d D, may bool) {
	switch {
	case p.err != nil || d.Empty():
		return
	case !may:
		p.err = ErrWithheld
		return
	}
	begin := time.Now()
	err := p.target.Apply(ctx, d)
	if p.took != nil {
		p.took(p.name, time.Since(begin))
	}
	if err != nil {
		err = fmt.Errorf("apply to %s: %w", p.name, err)
		var waiting *Waiting
		if errors.As(err, &waiting) {
			p.waits = err
		} else {
			p.err = err
		}
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status.Applies++
	p.status.Written += uint64(d.Count())
}

// finish ends a Run and gives its error.
func (p *part[S, D]) finish(want S) error {
	if p.target == nil {
		return nil
	}
	hard := p.err != nil && p.err != ErrWithheld
	if p.err == nil {
		p.err = p.waits
	}
	inSync := p.err == nil
	p.known, p.whole = inSync, inSync
	if inSync {
		p.have, p.done = want, want
		if a, ok := p.target.(Adopter[S]); ok && p.read {
			a.Adopt(want)
		}
	}
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

func (p *part[S, D]) report() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}
