package apply

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"hairpin/datapath"
	"hairpin/datapath/conn"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
)

// Targets are the systems of a node. One that is nil is left alone.
type Targets struct {
	NB     Target[nb.State, nb.Delta]
	Bridge Target[flow.State, flow.Delta]
	NFT    Target[nft.State, nft.Delta]
	Host   Target[host.State, host.Delta]
	Conn   Target[conn.State, conn.Delta]
}

// Pass makes a node equal to wanted States, one after the other. It keeps what it read last, and reads a system again
// only when that told of a change, when something went wrong, or after Reread. Run, Wait, Again and Retry are for one goroutine; the
// other methods may be called at any time.
//
// A system that hangs holds nobody else: a Run waits for each Read and Apply for a limited time, and goes on as after an error. What it did
// not wait for goes on as well, beside later Runs, which leave that system alone; its end is a reason for another Run.
type Pass struct {
	nb     *part[nb.State, nb.Delta]
	bridge *part[flow.State, flow.Delta]
	nft    *part[nft.State, nft.Delta]
	host   *part[host.State, host.Delta]
	conn   *part[conn.State, conn.Delta]

	drift uint64 // after the last Run
	fight int    // Runs in a row that found drift

	landed chan struct{} // has a value when something ended that no Run waits for any more
}

// NewPass makes a Pass that knows nothing of the systems yet.
func NewPass(t Targets) *Pass {
	landed := make(chan struct{}, 1)
	wake := func() {
		select {
		case landed <- struct{}{}:
		default:
		}
	}
	return &Pass{
		nb:     newPart("ovn", t.NB, nb.Diff, wake),
		bridge: newPart("openvswitch", t.Bridge, flow.Diff, wake),
		nft:    newPart("nft", t.NFT, nft.Diff, wake),
		host:   newPart("host", t.Host, host.Diff, wake),
		conn:   newPart("connections", t.Conn, conn.Diff, wake),
		landed: landed,
	}
}

// Observe makes f hear how long each Apply took, also of those that failed. It is for the time before the first Run.
func (p *Pass) Observe(f func(system string, took time.Duration)) {
	p.nb.took, p.bridge.took, p.nft.took, p.host.took, p.conn.took = f, f, f, f, f
}

// Run makes the node equal to want: Open vSwitch's ports, then host, nft, the host's single addresses and flows grow; then OVN changes, in one
// transaction; then flows, nft, host and ports shrink, and connections to endpoints that are gone end. Nothing ever points at what is missing.
//
// An error in one system does not keep the others from growing: what is new may lack something then, but what is old
// goes on to work. Nothing is removed from a system while one that may point at it is not in order. The error has
// those of all systems; Status has them one by one.
//
// Want is kept and compared with later: it must not be changed afterwards.
func (p *Pass) Run(ctx context.Context, want datapath.State) error {
	rows := p.nb.look(ctx, want.NB)
	bridge := p.bridge.look(ctx, want.Bridge)
	tables := p.nft.look(ctx, want.NFT)
	kernel := p.host.look(ctx, want.Host)
	dead := p.conn.look(ctx, want.Conn)
	if !p.conn.read && p.conn.target != nil {
		dead = dead.Since(p.conn.have, want.Conn)
	}
	dead = dead.Leave(p.conn.done, want.Conn)
	ports, flows := split(bridge)
	ground, singles := splitHost(kernel.Grow(), want.Host.Routes)

	p.bridge.do(ctx, ports.Grow(), "")
	p.host.do(ctx, ground, "")
	p.nft.do(ctx, tables.Grow(), "")
	p.host.do(ctx, singles, "")
	p.bridge.do(ctx, flows.Grow(), "")
	p.nb.do(ctx, rows, "")

	waitFor := p.nb.unless("")
	p.bridge.do(ctx, flows.Shrink(), waitFor)
	waitFor = p.bridge.unless(waitFor)
	p.nft.do(ctx, tables.Shrink(), waitFor)
	waitFor = p.nft.unless(waitFor)
	p.host.do(ctx, kernel.Shrink(), waitFor)
	waitFor = p.host.unless(waitFor)
	p.bridge.do(ctx, ports.Shrink(), waitFor)
	p.conn.do(ctx, dead, p.nb.unless(""))

	err := errors.Join(p.nb.finish(want.NB), p.bridge.finish(want.Bridge), p.nft.finish(want.NFT), p.host.finish(want.Host), p.conn.finish(want.Conn))
	p.calm()
	return err
}

// split parts what the host stands on (settings and ports) from what stands on the host (flows and tunnel neighbours).
func split(d flow.Delta) (ports, flows flow.Delta) {
	ports = flow.Delta{Bridge: d.Bridge, Settings: d.Settings, Ports: d.Ports}
	flows = flow.Delta{Bridge: d.Bridge, TunnelBridge: d.TunnelBridge, Flows: d.Flows, TunnelNeighbors: d.TunnelNeighbors, TunnelRoutes: d.TunnelRoutes, Unknown: d.Unknown}
	return ports, flows
}

// splitHost parts what rules of nft stand on from what they must be there for: a node is asked for an egress address, which is one alone, the
// moment it has it, and would refuse the answers to connections that it is to send on to another node. An address that a route has as its
// source is ground: the kernel refuses the route without it.
func splitHost(d host.Delta, routes map[host.RouteKey]host.Route) (ground, singles host.Delta) {
	ground, singles = d, host.Delta{}
	if len(d.Addresses.Add) == 0 { // as in nearly every Run
		return ground, singles
	}
	ground.Addresses.Add = nil
	sources := map[netip.Addr]bool{}
	for _, r := range routes {
		sources[r.Src] = true
	}
	for k, a := range d.Addresses.Add {
		to := &ground.Addresses.Add
		if k.Prefix.IsSingleIP() && !a.Borrowed && !sources[k.Prefix.Addr()] {
			to = &singles.Addresses.Add
		}
		if *to == nil {
			*to = map[host.AddressKey]host.Address{}
		}
		(*to)[k] = a
	}
	return ground, singles
}

// calm notes whether the last Run found drift.
func (p *Pass) calm() {
	drift := uint64(0)
	for _, s := range p.Status() {
		drift += s.Drift
	}
	if drift == p.drift {
		p.fight = 0
		return
	}
	p.drift = drift
	p.fight++
}

// Wait returns when there is a reason for another Run: a system told of a change, or ended what a Run did not wait for, wake got a value or
// was closed, or ctx ended (then with its error). When Run finds drift again and again (somebody else wants another thing), changes
// are heeded after a pause, up to half a second; wake is always heeded at once.
func (p *Pass) Wait(ctx context.Context, wake <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-wake:
		return nil
	case <-p.nb.changed():
		p.nb.stale.Store(true)
	case <-p.bridge.changed():
		p.bridge.stale.Store(true)
	case <-p.nft.changed():
		p.nft.stale.Store(true)
	case <-p.host.changed():
		p.host.stale.Store(true)
	case <-p.conn.changed():
		p.conn.stale.Store(true)
	case <-p.landed:
	}
	if p.fight <= 2 {
		return nil
	}
	pause := time.NewTimer(min(time.Millisecond<<min(p.fight, 20), 500*time.Millisecond))
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-wake:
	case <-pause.C:
	}
	return nil
}

// Read reads all systems now, for a look at what is really there, and changes nothing. What takes too long is an error.
func (p *Pass) Read(ctx context.Context) (s datapath.State, err error) {
	var errs [2]error
	var wg sync.WaitGroup
	wg.Go(func() { s.Conn, errs[0] = p.conn.found(ctx) })
	path, err := p.ReadPath(ctx)
	errs[1] = err
	wg.Wait()
	path.Conn = s.Conn
	return path, errors.Join(errs[:]...)
}

// ReadPath is Read without connections: what a first packet meets.
func (p *Pass) ReadPath(ctx context.Context) (s datapath.State, err error) {
	var errs [4]error
	var wg sync.WaitGroup
	wg.Go(func() { s.NB, errs[0] = p.nb.found(ctx) })
	wg.Go(func() { s.Bridge, errs[1] = p.bridge.found(ctx) })
	wg.Go(func() { s.NFT, errs[2] = p.nft.found(ctx) })
	wg.Go(func() { s.Host, errs[3] = p.host.found(ctx) })
	wg.Wait()
	return s, errors.Join(errs[:]...)
}

// Reread makes the next Run read all systems again: for the slow timer.
func (p *Pass) Reread() {
	p.nb.stale.Store(true)
	p.bridge.stale.Store(true)
	p.nft.stale.Store(true)
	p.host.stale.Store(true)
	p.conn.stale.Store(true)
}

// Again tells when to Run again after failures, each system's at its own pace; 0 = not before Wait says so.
func (p *Pass) Again() (again time.Duration) {
	now := time.Now()
	for _, wait := range []time.Duration{p.nb.again(now), p.bridge.again(now), p.nft.again(now), p.host.again(now), p.conn.again(now)} {
		if wait > 0 && (again == 0 || wait < again) {
			again = wait
		}
	}
	return again
}

// Retry makes the next Run try again what failed, whatever its pace is: there is news that gives hope.
func (p *Pass) Retry() {
	p.nb.last, p.bridge.last, p.nft.last, p.host.last, p.conn.last = nil, nil, nil, nil, nil
}

// Finish waits until nothing goes on that no Run waited for, or ctx ends.
func (p *Pass) Finish(ctx context.Context) {
	p.nb.task.Finish(ctx)
	p.bridge.task.Finish(ctx)
	p.nft.task.Finish(ctx)
	p.host.task.Finish(ctx)
	p.conn.task.Finish(ctx)
}

// Status gives the state of the systems that have a Target.
func (p *Pass) Status() []Status {
	var list []Status
	if p.nb.target != nil {
		list = append(list, p.nb.report())
	}
	if p.bridge.target != nil {
		list = append(list, p.bridge.report())
	}
	if p.nft.target != nil {
		list = append(list, p.nft.report())
	}
	if p.host.target != nil {
		list = append(list, p.host.report())
	}
	if p.conn.target != nil {
		list = append(list, p.conn.report())
	}
	return list
}
