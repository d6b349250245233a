package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"hairpin/plan/gateway"
	"hairpin/plan/svcbridge"

	"hairpin/apply/ofctl"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/host"
	"hairpin/egress/wire"
	"hairpin/ovsdb"
	"hairpin/retry"
)

// After a start of ovs-vswitchd its flows are gone, and, on the userspace datapath, so are the devices of its bridges
// with their addresses and routes. The agent keeps the database's flow-restore-wait set, so that the switch forwards
// nothing until everything is back: a packet that met half of it would be answered by the wrong one, with a reset.

const (
	// flowsBack is how long it may take until all flows are there again before the switch is let go without them: the
	// node's own network hangs on it, too.
	flowsBack = 2 * time.Second
	// clusterBack is how long the agent waits for the cluster, which it cannot know without the API, before it brings
	// the node's own network back: the way to the API may lead over the bridge.
	clusterBack = 300 * time.Millisecond
	// speak is how long clients have to speak first, on connections that a userspace Open vSwitch has forgotten: TCP repeats what was not
	// acknowledged after 0.2, 0.6, 1.4, 3, 6.2 and 12.6 s, so all that waited for less than 5 s or so are heard.
	speak = 10 * time.Second
	// answer is how long Open vSwitch may take for a small thing.
	answer = time.Second
)

// restart is a start of ovs-vswitchd that is being looked after.
type restart struct {
	vswitchdID string    // which ovs-vswitchd; see ofctl.Target.Incarnation
	since      time.Time // when it was noticed
	looked     bool      // the host was looked at since then, and has what it lost
	listening  bool      // it takes flows for the gateway bridge and those of ours
	greeted    bool      // ovn-controller was told that its bridge is back
	failed     error     // why it could not be let go
}

// tooEarly tells that nothing can be applied yet, and that it is not worth to try.
func (r *restart) tooEarly() bool { return r != nil && !(r.listening && r.looked) && !r.late() }

func (r *restart) late() bool { return time.Since(r.since) > flowsBack }

// watchRestart notices that ovs-vswitchd was started anew. It tells when it wants to be called again, 0 if not before
// the next change.
func (a *agent) watchRestart(ctx context.Context) time.Duration {
	life, err := a.targets.Bridge.Incarnation()
	switch {
	case err != nil: // it does not run
		return retry.Last
	case !a.ovs.Connected():
		return 0
	case life == a.vswitchdID:
		return a.keepWaiting(ctx)
	case a.restart == nil || a.restart.vswitchdID != life:
		brief, cancel := context.WithTimeout(ctx, retry.First)
		defer cancel()
		restarted, err := a.targets.Bridge.Restarted(brief)
		if err != nil {
			return 10 * retry.First
		}
		if !restarted {
			a.vswitchdID = life
			return 0
		}
		a.log.Info("Open vSwitch restarted")
		a.restart = &restart{vswitchdID: life, since: time.Now()}
		a.looker.WantNow()
	}
	return a.greet(ctx)
}

// stirring is what is written after a start of Open vSwitch's database, see ofctl.Target.Stir.
type stirring struct {
	connects int       // to the database
	since    time.Time // the last of them
	done     int       // of stirAt
}

// stirAt is when, after the database came back, ovn-controller, which comes back after one, two, four or eight seconds, has been
// connected for as long again.
func stirAt() []time.Duration {
	return []time.Duration{3 * time.Second, 9 * time.Second, 18 * time.Second}
}

// stir lets ovn-controller come back soon after the next restart of Open vSwitch's database, too. It tells when it wants to be called again.
func (a *agent) stir(ctx context.Context) time.Duration {
	s := &a.stirring
	if n := a.ovs.Stats().Connects; n != s.connects {
		*s = stirring{connects: n, since: time.Now()}
	}
	if at := stirAt(); s.connects < 2 || s.done == len(at) || a.restart != nil || !a.ovs.Connected() {
		return 0
	} else if wait := at[s.done] - time.Since(s.since); wait > 0 {
		return wait
	}
	a.beside(ctx, func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, answer)
		defer cancel()
		err := a.targets.Bridge.Stir(ctx)
		return func() {
			if err == nil {
				s.done++
			}
		}
	})
	return retry.Last
}

// askVersion asks each new ovs-vswitchd for its version: it may have been replaced by another. It tells when it wants to be called again.
func (a *agent) askVersion(ctx context.Context) time.Duration {
	life := a.vswitchdID
	if life == "" || life == a.versionOf || a.restart != nil {
		return 0
	}
	a.beside(ctx, func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, answer)
		defer cancel()
		version, err := a.targets.Bridge.Version(ctx)
		return func() {
			if err == nil {
				a.switchVersion, a.versionOf = version, life
			}
		}
	})
	if a.versionOf != life {
		return retry.Last
	}
	return 0
}

// patience is how long an ovn-controller that starts may need to compute the flows of br-int: at 10 000 Services a second
// or two, and several times that on a busy machine.
func (a *agent) patience() time.Duration {
	const least, per = 5 * time.Second, 5000 // a second more for so many frontends
	n := 0
	if a.snapshot != nil {
		n = len(a.snapshot.Frontends)
	}
	return least + time.Duration(n/per)*time.Second
}

// keepWaiting sets again what makes the next start of ovs-vswitchd or of ovn-controller wait, if it was removed
// it, as scripts do that restart Open vSwitch, or when it must be longer.
func (a *agent) keepWaiting(ctx context.Context) time.Duration {
	patience := a.patience()
	if !a.synced || a.targets.Bridge.Keeps(patience) {
		return 0
	}
	a.beside(ctx, func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, answer)
		defer cancel()
		err := a.targets.Bridge.Keep(ctx, patience)
		return func() {
			if err != nil {
				a.log.Warn("set flow-restore-wait for the next start of Open vSwitch", "error", err)
			}
		}
	})
	return retry.Last // it may be too early for all of it
}

// greet notices that the new ovs-vswitchd takes flows, and tells ovn-controller at once. It tells when it wants to be
// called again.
func (a *agent) greet(ctx context.Context) time.Duration {
	r, bridges := a.restart, a.targets.Bridge
	if !r.listening {
		r.listening = bridges.Ready(ctx) == nil
	}
	if !r.greeted && a.supported.Load() {
		made := false
		for b := range ovsdb.Rows[ovsdb.Bridge](a.ovs.View()) {
			made = made || b.Name == claims.IntegrationBridge
		}
		// Before ovn-controller has made its bridge it needs no greeting.
		r.greeted = !made
		if made && bridges.Listening(ctx, claims.IntegrationBridge) == nil {
			a.beside(ctx, func(ctx context.Context) func() {
				ctx, cancel := context.WithTimeout(ctx, answer)
				defer cancel()
				err := bridges.ReconnectController(ctx)
				return func() { r.greeted = err == nil }
			})
		}
	}
	switch {
	case r.listening && r.greeted:
		return 0
	case r.late():
		return retry.Last
	}
	return retry.First
}

// bootstrap brings the node's own network back, after a restart of ovs-vswitchd, while it cannot be known what else the
// node must have. It tells when it wants to be called again.
func (a *agent) bootstrap(ctx context.Context) time.Duration {
	if a.restart == nil || a.found.Gateway.Bridge == "" || !a.ovs.Connected() {
		return 0
	}
	wait := flowsBack
	switch {
	case !a.restart.looked:
	case a.snapshot == nil && a.seen.Moved:
		wait = 0
	case a.snapshot == nil:
		wait = clusterBack
	}
	if wait -= time.Since(a.restart.since); wait > 0 {
		return wait
	}
	want := gateway.Bootstrap(a.found.Gateway)
	a.targets.WantedHost.Store(&want)
	let := a.letGo()
	besideBy(ctx, a.releasing, func(ctx context.Context) func() {
		have, err := a.targets.Host.Read(ctx)
		if err == nil {
			err = a.targets.Host.Apply(ctx, host.Diff(want, have).Grow())
		}
		if err == nil {
			err = let.do(ctx)
		}
		return func() {
			if err != nil {
				a.log.Warn("restore the node's own network", "error", err)
			} else if a.gone(let) {
				a.hostOnly = true
				a.log.Info("Open vSwitch forwards, for the node itself only", "reason", a.missing())
			}
		}
	})
	if a.restart == nil {
		return 0
	}
	return retry.Last / 10
}

// finishRestart lets the switch go when everything is back, or when that takes too long. Err is what the pass said.
func (a *agent) finishRestart(ctx context.Context, err error) error {
	r := a.restart
	left := flowsBack - time.Since(r.since)
	if left > 0 {
		if err == nil && !r.greeted {
			err = errors.New("the bridge of ovn-controller is not back yet")
		}
		if err != nil {
			return err
		}
	}
	let := a.letGo()
	besideBy(ctx, a.releasing, func(ctx context.Context) func() {
		back := err
		if left > 0 {
			wait, cancel := context.WithTimeout(ctx, left)
			defer cancel()
			back = a.targets.NB.Sync(wait)
		}
		failed := let.do(ctx)
		return func() {
			r.failed = failed
			if failed == nil && a.gone(let) {
				a.forwards(r, back)
			}
		}
	})
	switch {
	case a.restart == nil:
		return err
	case r.failed != nil:
		return r.failed
	}
	return errors.New("Open vSwitch does not forward yet")
}

// forwards tells that the switch forwards again, and what is not back.
func (a *agent) forwards(r *restart, err error) {
	if a.synced { // else it is the start of everything
		a.restarts++
	}
	log := a.log.With("after", time.Since(r.since).Round(time.Millisecond))
	if err != nil {
		log.Warn("Open vSwitch forwards again, but not everything is restored", "error", err)
	} else {
		log.Info("Open vSwitch forwards again")
	}
}

// release lets the switch forward.
type release struct {
	restart  *restart
	bridge   *ofctl.Target
	patience time.Duration
	gateway  cluster.Gateway
	forgets  bool  // connections of its Services, with its process
	late     error // why neighbours, or connections, come back late
}

func (a *agent) letGo() *release {
	g := a.found.Gateway
	has := ovsdb.Find(a.ovs.View(), func(b *ovsdb.Bridge) bool { return b.Name == claims.ServiceBridge }) != nil
	return &release{restart: a.restart, bridge: a.targets.Bridge, patience: a.patience(), gateway: g, forgets: g.Userspace && has}
}

func (r *release) do(ctx context.Context) error {
	var forgotten error
	if r.forgets { // a time of its own: the switch must be let go also without them
		brief, cancel := context.WithTimeout(ctx, answer)
		forgotten = r.bridge.AddPassing(brief, claims.ServiceBridge, svcbridge.Forgotten(), speak)
		cancel()
	}
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	if err := r.bridge.Release(ctx, r.patience); err != nil {
		return fmt.Errorf("let Open vSwitch forward: %w", err)
	}
	r.late = errors.Join(forgotten, wire.AnnounceHost(r.gateway))
	return nil
}

// gone notes that the switch was let go, unless it was started anew since.
func (a *agent) gone(r *release) bool {
	if a.restart != r.restart {
		return false
	}
	a.vswitchdID, a.restart, a.seen.Moved = r.restart.vswitchdID, nil, false
	a.introducing = introducing{}
	if r.late != nil {
		a.log.Warn("neighbours or connections come back late", "error", r.late)
	}
	return true
}

// introducing is what neighbours were told of the gateway bridge's Ethernet address.
type introducing struct {
	mac   cluster.MAC
	since time.Time // when it was told first
	again bool      // it was told once more
}

// introduceAgain is when to tell once more: Open vSwitch heeds no answer that its datapath has a flow for, which stays for 10 s.
const introduceAgain = 12 * time.Second

// introduce tells neighbours the gateway bridge's Ethernet address when they may know another. Open vSwitch makes the bridge's device with
// an address of its own choice, and gives it the wanted one a moment later: who heard the first in between would go on to use it, the
// tunnels of Open vSwitch on the userspace datapath for 15 minutes. It tells when it wants to be called again.
func (a *agent) introduce(ctx context.Context) time.Duration {
	g, nodes, i := a.found.Gateway, a.snapshot.Nodes, &a.introducing
	if a.restart != nil {
		return 0
	}
	if g.MAC == i.mac {
		if i.again {
			return 0
		}
		if wait := introduceAgain - time.Since(i.since); wait > 0 {
			return wait
		}
	}
	a.beside(ctx, func(context.Context) func() {
		told, err := wire.Introduce(g, nodes)
		return func() {
			switch {
			case told && g.MAC == i.mac:
				i.again = true
			case told:
				*i = introducing{mac: g.MAC, since: time.Now()}
			case err != nil:
				a.log.Warn("tell neighbours the gateway bridge's Ethernet address", "error", err)
			}
		}
	})
	return retry.Last / 10
}
