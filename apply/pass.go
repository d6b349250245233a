package apply

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"time"

	"hairpin/datapath"
	"hairpin/datapath/conn"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/datapath/redirect"
	"hairpin/retry"
	"hairpin/signal"
)

// Targets are the systems of a node. One that is nil is left alone.
type Targets struct {
	NB     Target[nb.State, nb.Delta]
	Bridge Target[flow.State, flow.Delta]
	NFT    Target[nft.State, nft.Delta]
	Host   Target[host.State, host.Delta]
	Conn   Target[conn.State, conn.Delta]

	Redirect Target[redirect.State, redirect.Delta]
}

// Pass makes a node equal to wanted States, one after the other. It keeps what it read last, and
// reads a system again only when that told of a change, when something went wrong, or after Reread.
// Run, Wait, Again and Retry are for one goroutine; the other methods may be called at any time.
//
// A system that hangs delays nothing else: a Run waits for each Read and Apply for a limited time,
// and goes on as after an error. What it did not wait for goes on as well, beside later Runs, which
// leave that system alone; its end is a reason for another Run.
type Pass struct {
	systems []system // those that have a Target, in the order of Status
	steps   []step   // of a Run

	drift    uint64        // after the last Run
	drifting retry.Backoff // Runs in a row that found drift

	landed signal.Signal // has a value when something ended that no Run waits for any more
	took   func(system string, took time.Duration)
}

// system is a part whatever its types are.
type system interface {
	look(context.Context, *datapath.State)
	failed() string
	finish() error
	changed() <-chan struct{}
	reread()
	retry()
	again(now time.Time) time.Duration
	found(context.Context, *datapath.State) error
	settle(context.Context)
	report() Status
}

// step is a change of one system that a Run makes when those systems are in order that may point at
// what goes.
type step struct {
	do    func(ctx context.Context, waitFor string)
	after []system
}

// Pauses after Runs in a row that found drift.
const (
	firstDrift = 2 * time.Millisecond
	freeDrift  = 2 * firstDrift // is left out, as are shorter ones
	lastDrift  = 500 * time.Millisecond
)

// NewPass makes a Pass that knows nothing of the systems yet.
func NewPass(t Targets) *Pass {
	p := &Pass{landed: signal.New(), drifting: retry.Backoff{Min: firstDrift, Max: lastDrift}}
	rows := newPart(p, datapath.NB, t.NB)
	bridge := newPart(p, datapath.Bridge, t.Bridge)
	tables := newPart(p, datapath.NFT, t.NFT)
	kernel := newPart(p, datapath.Host, t.Host)
	tracked := newPart(p, datapath.Conn, t.Conn)
	redirected := newPart(p, datapath.Redirect, t.Redirect)
	p.steps = []step{
		bridge.grow(ports),
		kernel.grow(ground(kernel)),
		tables.grow(all),
		redirected.shrink(all),
		kernel.grow(singles),
		bridge.grow(flows),
		rows.change(all),
		confirmed(rows, kernel),
		kernel.grow(turns(kernel), rows, tables),
		tracked.shrink(strays(tracked), tables, kernel),
		redirected.grow(all, rows, bridge, kernel),

		bridge.shrink(flows, rows),
		tables.shrink(all, rows, bridge),
		kernel.shrink(all, rows, bridge, tables),
		bridge.shrink(ports, rows, tables, kernel),
		tracked.shrink(dead(tracked), rows),
	}
	return p
}

// Observe makes f hear how long each Apply took, also of those that failed. It is for the time
// before the first Run.
func (p *Pass) Observe(f func(system string, took time.Duration)) {
	p.took = f
}

// Run makes the node equal to want: Open vSwitch's ports, then host and nft grow; what shall not be
// redirected no longer is, now that nft serves it; the host's single addresses and flows grow; then
// OVN changes, in one transaction, the host's routes turn to it once the switch knows it,
// connections that keep to a former way end, and what OVN serves may be redirected to it; then
// flows, nft, host and ports shrink, and connections to endpoints that are gone end. Nothing ever
// points at what is missing.
//
// An error in one system does not keep the others from growing: what is new may lack something
// then, but what is old goes on to work. Nothing is removed from a system while one that may point
// at it is not in order. The error has those of all systems; Status has them one by one.
//
// Want is kept and compared with later: it must not be changed afterwards.
func (p *Pass) Run(ctx context.Context, want datapath.State) error {
	for _, s := range p.systems {
		s.look(ctx, &want)
	}
	for _, s := range p.steps {
		waitFor := ""
		for _, other := range s.after {
			waitFor = cmp.Or(waitFor, other.failed())
		}
		s.do(ctx, waitFor)
	}
	var errs []error
	for _, s := range p.systems {
		errs = append(errs, s.finish())
	}
	p.calm()
	return errors.Join(errs...)
}

// calm notes whether the last Run found drift.
func (p *Pass) calm() {
	drift := uint64(0)
	for _, s := range p.Status() {
		drift += s.Drift
	}
	if drift == p.drift {
		p.drifting.Done()
		return
	}
	p.drift = drift
	p.drifting.Failed(time.Now())
}

// Wait returns when there is a reason for another Run: a system told of a change, or ended what a
// Run did not wait for, wake got a value or was closed, or ctx ended (then with its error). When
// Run finds drift again and again (another program wants something else), changes are heeded after
// a pause, up to half a second; wake is always heeded at once.
func (p *Pass) Wait(ctx context.Context, wake <-chan struct{}) error {
	reasons := []reflect.SelectCase{receive(ctx.Done()), receive(wake), receive(p.landed.C())}
	known := len(reasons)
	for _, s := range p.systems {
		reasons = append(reasons, receive(s.changed()))
	}
	switch i, _, _ := reflect.Select(reasons); {
	case i == 0:
		return ctx.Err()
	case i == 1:
		return nil
	case i >= known:
		p.systems[i-known].reread()
	}
	if p.drifting.Pause() <= freeDrift {
		return nil
	}
	pause := time.NewTimer(p.drifting.Pause())
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-wake:
	case <-pause.C:
	}
	return nil
}

func receive(c <-chan struct{}) reflect.SelectCase {
	return reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(c)}
}

// Read reads all systems now, for a look at what is really there, and changes nothing. What takes
// too long is an error.
func (p *Pass) Read(ctx context.Context) (datapath.State, error) {
	return read(ctx, p.systems)
}

// ReadPath is Read without connections: what a first packet meets.
func (p *Pass) ReadPath(ctx context.Context) (datapath.State, error) {
	return read(ctx, slices.DeleteFunc(slices.Clone(p.systems),
		func(s system) bool { return s.report().System == datapath.Conn.System }))
}

func read(ctx context.Context, systems []system) (s datapath.State, err error) {
	errs := make([]error, len(systems))
	var wg sync.WaitGroup
	for i, sys := range systems {
		wg.Go(func() { errs[i] = sys.found(ctx, &s) }) // each writes its own part
	}
	wg.Wait()
	return s, errors.Join(errs...)
}

// Reread makes the next Run read all systems again: for the slow timer.
func (p *Pass) Reread() {
	for _, s := range p.systems {
		s.reread()
	}
}

// Again tells when to Run again after failures, each system's at its own pace; 0 = not before Wait
// says so.
func (p *Pass) Again() (again time.Duration) {
	now := time.Now()
	for _, s := range p.systems {
		again = retry.Sooner(again, s.again(now))
	}
	return again
}

// Retry makes the next Run try again what failed, whatever its pace is: there is news that gives
// hope.
func (p *Pass) Retry() {
	for _, s := range p.systems {
		s.retry()
	}
}

// Finish waits until nothing goes on that no Run waited for, or ctx ends.
func (p *Pass) Finish(ctx context.Context) {
	for _, s := range p.systems {
		s.settle(ctx)
	}
}

// Status returns the state of the systems that have a Target.
func (p *Pass) Status() (list []Status) {
	for _, s := range p.systems {
		list = append(list, s.report())
	}
	return list
}
