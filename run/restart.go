package run

import (
	"context"
	"errors"
	"fmt"
	"time"

	"hairpin/claims"
	"hairpin/datapath/host"
	"hairpin/ovsdb"
	"hairpin/plan"
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
	// answer is how long Open vSwitch may take for a small thing.
	answer = time.Second
)

// restart is a start of ovs-vswitchd that is being looked after.
type restart struct {
	life      string    // which ovs-vswitchd; see ofctl.Target.Incarnation
	since     time.Time // when it was noticed
	looked    bool      // the host was looked at since then
	listening bool      // it takes flows for the gateway bridge
	greeted   bool      // ovn-controller was told that its bridge is back
}

// tooEarly tells that nothing can be applied yet, and that it is not worth to try.
func (r *restart) tooEarly() bool { return r != nil && !(r.listening && r.looked) && !r.late() }

func (r *restart) late() bool { return time.Since(r.since) > flowsBack }

// watchRestart notices that ovs-vswitchd was started anew. It tells when it wants to be called again, 0 if not before
// the next change.
func (a *agent) watchRestart(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	life, err := a.targets.bridge.Incarnation()
	switch {
	case err != nil: // it does not run
		return lastPause
	case !a.ovs.Connected():
		return 0
	case life == a.life:
		return a.keepWaiting(ctx)
	case a.restart == nil || a.restart.life != life:
		restarted, err := a.targets.bridge.Restarted(ctx)
		if err != nil {
			return lastPause
		}
		if !restarted {
			a.life = life
			return 0
		}
		a.log.Info("Open vSwitch was started anew")
		a.restart = &restart{life: life, since: time.Now()}
		a.looker.wantNow()
	}
	return a.greet(ctx)
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

// keepWaiting sets again what makes the next start of ovs-vswitchd or of ovn-controller wait, when somebody has removed
// it, as scripts do that restart Open vSwitch, or when it must be longer.
func (a *agent) keepWaiting(ctx context.Context) time.Duration {
	patience := a.patience()
	if !a.synced || a.targets.bridge.Keeps(patience) {
		return 0
	}
	if err := a.targets.bridge.Keep(ctx, patience); err != nil {
		a.log.Warn("let the next start of Open vSwitch wait", "error", err)
	}
	return lastPause // it may be too early for all of it
}

// greet notices that the new ovs-vswitchd takes flows, and tells ovn-controller at once. It tells when it wants to be
// called again.
func (a *agent) greet(ctx context.Context) time.Duration {
	r, bridges := a.restart, a.targets.bridge
	if !r.listening {
		r.listening = bridges.Listening(ctx, a.config.Cluster.Gateway.Interface) == nil
	}
	if !r.greeted && a.supported.Load() {
		made := false
		for b := range ovsdb.Rows[ovsdb.Bridge](a.ovs.View()) {
			made = made || b.Name == claims.IntegrationBridge
		}
		// Before ovn-controller has made its bridge it needs no greeting.
		r.greeted = !made || bridges.Listening(ctx, claims.IntegrationBridge) == nil && bridges.ReconnectController(ctx) == nil
	}
	switch {
	case r.listening && r.greeted:
		return 0
	case r.late():
		return lastPause
	}
	return firstPause
}

// bootstrap brings the node's own network back, after a restart of ovs-vswitchd, while it cannot be known what else the
// node must have. It tells when it wants to be called again.
func (a *agent) bootstrap(ctx context.Context) time.Duration {
	if a.restart == nil || a.found.gateway.Bridge == "" || !a.ovs.Connected() {
		return 0
	}
	wait := flowsBack
	switch {
	case a.snapshot == nil && a.seen.moved:
		wait = 0
	case a.snapshot == nil:
		wait = clusterBack
	}
	if wait -= time.Since(a.restart.since); wait > 0 {
		return wait
	}
	want := plan.Bootstrap(a.found.gateway)
	a.targets.wantedHost.Store(&want)
	have, err := a.targets.host.Read(ctx)
	if err == nil {
		err = a.targets.host.Apply(ctx, host.Diff(want, have).Grow())
	}
	if err == nil {
		err = a.release(ctx)
	}
	if err != nil {
		a.log.Warn("bring the node's own network back", "error", err)
		return lastPause / 10
	}
	a.bare = true
	a.log.Info("Open vSwitch forwards, for the node itself only", "reason", a.missing())
	return 0
}

// finishRestart lets the switch go when everything is back, or when that takes too long. Err is what the pass said.
func (a *agent) finishRestart(ctx context.Context, err error) error {
	left := flowsBack - time.Since(a.restart.since)
	if left > 0 {
		if err == nil && !a.restart.greeted {
			err = errors.New("the bridge of ovn-controller is not back yet")
		}
		if err != nil {
			return err
		}
		wait, cancel := context.WithTimeout(ctx, left)
		defer cancel()
		err = a.targets.nb.Sync(wait)
	}
	since := a.restart.since
	if err := a.release(ctx); err != nil {
		return err
	}
	if a.synced { // else it is the start of everything
		a.restarts++
	}
	log := a.log.With("after", time.Since(since).Round(time.Millisecond))
	if err != nil {
		log.Warn("Open vSwitch forwards again, though not everything is back", "error", err)
	} else {
		log.Info("Open vSwitch forwards again")
	}
	return err
}

// release lets the switch forward.
func (a *agent) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	if err := a.targets.bridge.Release(ctx, a.patience()); err != nil {
		return fmt.Errorf("let Open vSwitch forward: %w", err)
	}
	a.life, a.restart, a.seen.moved = a.restart.life, nil, false
	if err := announce(a.found.gateway); err != nil {
		a.log.Warn("neighbours come back late", "error", err)
	}
	return nil
}
