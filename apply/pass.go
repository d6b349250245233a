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
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/datapath/ovs"
	"hairpin/datapath/redirect"
	"hairpin/retry"
	"hairpin/signal"
)

// Targets are the systems of a node. Pass ignores a nil one.
type Targets struct {
	NB     Target[nb.State, nb.Delta]
	Bridge Target[ovs.State, ovs.Delta]
	NFT    Target[nft.State, nft.Delta]
	Host   Target[host.State, host.Delta]
	Conn   Target[conn.State, conn.Delta]

	Redirect Target[redirect.State, redirect.Delta]
}

// Pass makes a node equal to wanted States, one after the other. It caches what it read last. It
// reads a system again only after a change signal, an error, or Reread. Run, Wait, Again and Retry
// are for one goroutine; the other methods may be called at any time.
//
// A hanging system delays no other: a Run waits for each Read and Apply for a limited time, and
// then proceeds as after an error. The unfinished call continues beside later Runs, which skip that
// system. Its end is a reason for another Run.
type Pass struct {
	systems []system // those that have a Target, in the order of Status
	steps   []step   // of a Run

	drift    uint64        // after the last Run
	drifting retry.Backoff // Runs in a row that found drift

	ended signal.Signal // has a value when a call ended that no Run waits for any more
	took  func(system string, took time.Duration)
}

// system is a part, independent of its types.
type system interface {
	observe(context.Context, *datapath.State)
	failed() string
	finish() error
	changed() <-chan struct{}
	reread()
	retry()
	retryIn(now time.Time) time.Duration
	readFor(context.Context, *datapath.State) error
	drain(context.Context)
	report() Status
}

// step is a change of one system. It waits until systems that may refer to what it removes are in
// order.
type step struct {
	do    func(ctx context.Context, waitFor string)
	after []system
}

// Pauses after Runs in a row that found drift.
const (
	firstDrift = 2 * time.Millisecond
	freeDrift  = 2 * firstDrift // this pause and shorter ones are skipped
	lastDrift  = 500 * time.Millisecond
)

// NewPass returns a Pass that has not read the systems yet.
func NewPass(t Targets) *Pass {
	p := &Pass{ended: signal.New(), drifting: retry.Backoff{Min: firstDrift, Max: lastDrift}}
	ovn := newPart(p, datapath.NB, t.NB)
	bridge := newPart(p, datapath.Bridge, t.Bridge)
	nftables := newPart(p, datapath.NFT, t.NFT)
	kernel := newPart(p, datapath.Host, t.Host)
	conns := newPart(p, datapath.Conn, t.Conn)
	programs := newPart(p, datapath.Redirect, t.Redirect)
	p.steps = []step{
		kernel.shrink(releasedAddresses(kernel)),
		bridge.shrink(releasedReplies),
		bridge.grow(ports),
		kernel.grow(prepareForNFT(kernel)),
		nftables.grow(all),
		programs.shrink(all),
		kernel.grow(hostAddresses),
		bridge.grow(flows),
		ovn.change(all),
		waitForOVN(ovn, kernel),
		kernel.grow(switchRoutes(kernel), ovn, nftables),
		conns.shrink(staleConns(conns), nftables, kernel),
		programs.grow(all, ovn, bridge, kernel),

		bridge.shrink(flows, ovn),
		nftables.shrink(all, ovn, bridge),
		kernel.shrink(allButReleased(kernel), ovn, bridge, nftables),
		bridge.shrink(ports, ovn, nftables, kernel),
		conns.shrink(endedConns(conns), ovn),
	}
	return p
}

// Observe makes Pass report to f how long each Apply took, including failed ones. It must be called
// before the first Run.
func (p *Pass) Observe(f func(system string, took time.Duration)) {
	p.took = f
}

// Run makes the node equal to want, in steps after which nothing refers to a missing object:
//
//   - The host and the gateway bridge release addresses that another node may have.
//   - Open vSwitch's ports grow (see Delta), then the host's configuration and nft.
//   - Packets that nft serves from now on are no longer redirected.
//   - The host's single addresses and the flows grow.
//   - OVN changes, in one transaction; once the switch has the result, routes change to it.
//   - Connections that still use a previous path end.
//   - Packets that OVN serves may be redirected to it.
//   - Flows, nft, host and ports shrink; connections to removed endpoints end.
//
// An error in one system does not prevent the others from growing: new objects may then be
// incomplete, but old ones keep working. Run removes nothing from a system while another that may
// refer to it is not in order. The error joins those of all systems; Status lists them one by one.
//
// Pass keeps want and compares it with later ones: the caller must not change it afterwards.
func (p *Pass) Run(ctx context.Context, want datapath.State) error {
	for _, s := range p.systems {
		s.observe(ctx, &want)
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
	p.countDrift()
	return errors.Join(errs...)
}

// countDrift records whether the last Run found drift.
func (p *Pass) countDrift() {
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

// Wait returns when there is a reason for another Run:
//
//   - a system signalled a change, or a call ended that a Run did not wait for,
//   - wake got a value or was closed,
//   - ctx ended; then Wait returns its error.
//
// When several Runs in a row find drift (another program wants something else), changes take effect
// after a pause of up to half a second. wake always takes effect at once.
func (p *Pass) Wait(ctx context.Context, wake <-chan struct{}) error {
	reasons := []reflect.SelectCase{receive(ctx.Done()), receive(wake), receive(p.ended.C())}
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

// Read reads the real state of all systems now and changes nothing. A timeout is an error.
func (p *Pass) Read(ctx context.Context) (datapath.State, error) {
	return read(ctx, p.systems)
}

// ReadPath is Read without connections: the state that the first packet of a connection meets.
func (p *Pass) ReadPath(ctx context.Context) (datapath.State, error) {
	return read(ctx, slices.DeleteFunc(slices.Clone(p.systems),
		func(s system) bool { return s.report().System == datapath.Conn.System }))
}

func read(ctx context.Context, systems []system) (s datapath.State, err error) {
	errs := make([]error, len(systems))
	var wg sync.WaitGroup
	for i, sys := range systems {
		wg.Go(func() { errs[i] = sys.readFor(ctx, &s) }) // each writes its own part
	}
	wg.Wait()
	return s, errors.Join(errs...)
}

// Reread makes the next Run read all systems again. It is for the slow timer.
func (p *Pass) Reread() {
	for _, s := range p.systems {
		s.reread()
	}
}

// Again returns the time until the next Run after failures, the soonest of all backoffs; 0 = not
// before Wait returns.
func (p *Pass) Again() (again time.Duration) {
	now := time.Now()
	for _, s := range p.systems {
		again = retry.Sooner(again, s.retryIn(now))
	}
	return again
}

// Retry makes the next Run retry what failed, despite its backoff, because an event makes success
// likely.
func (p *Pass) Retry() {
	for _, s := range p.systems {
		s.retry()
	}
}

// Finish waits until all calls that no Run waited for have ended, or ctx ends.
func (p *Pass) Finish(ctx context.Context) {
	for _, s := range p.systems {
		s.drain(ctx)
	}
}

// Status returns the state of the systems that have a Target.
func (p *Pass) Status() (list []Status) {
	for _, s := range p.systems {
		list = append(list, s.report())
	}
	return list
}
