package run

import (
	"context"
	"time"

	"hairpin/datapath/host"
	"hairpin/plan"
)

// After a start of ovs-vswitchd its flows are gone, and, on the userspace datapath, so are the devices of its bridges
// with their addresses and routes. The agent keeps the database's flow-restore-wait set, so that the switch forwards
// nothing until everything is back: a packet that met half of it would be answered by the wrong one, with a reset.

// flowsBack is how long ovn-controller may take to write its flows anew before the switch is let go without them: the
// node's own network hangs on it, too.
const flowsBack = 2 * time.Second

// watchRestart notices that ovs-vswitchd was started anew. It tells when it wants to be called again, 0 if not before
// the next change.
func (a *agent) watchRestart(ctx context.Context) time.Duration {
	restarted, err := a.targets.bridge.Restarted(ctx)
	if err != nil {
		return retryAfter // it does not run: look again soon
	}
	if restarted && !a.restarting {
		a.restarting = true
		a.log.Info("Open vSwitch was started anew")
		a.look()
		a.pass.Reread()
		if err := a.targets.bridge.ReconnectController(ctx); err != nil {
			a.log.Warn("reconnect ovn-controller", "error", err)
		}
	}
	if a.restarting && a.snapshot == nil && a.found.gateway.Bridge != "" {
		a.bootstrap(ctx)
	}
	return 0
}

// bootstrap brings the node's own network back while the cluster is not known: the way to the API may lead over the
// bridge.
func (a *agent) bootstrap(ctx context.Context) {
	want := plan.Bootstrap(a.found.gateway)
	a.targets.wantedHost.Store(&want)
	have, err := a.targets.host.Read(ctx)
	if err == nil {
		err = a.targets.host.Apply(ctx, host.Diff(want, have).Grow())
	}
	if err == nil {
		err = a.targets.bridge.Release(ctx, true)
	}
	if err != nil {
		a.log.Warn("bring the node's own network back", "error", err)
		return
	}
	a.restarting = false
}

// finishRestart lets the switch go when everything is back.
func (a *agent) finishRestart(ctx context.Context) error {
	wait, cancel := context.WithTimeout(ctx, flowsBack)
	defer cancel()
	if err := a.targets.nb.Sync(wait); err != nil {
		a.log.Warn("OVN's flows are not back yet", "error", err)
	}
	if err := a.targets.bridge.Release(ctx, true); err != nil {
		return err
	}
	a.restarting = false
	if a.synced { // else it is the start of everything
		a.restarts++
	}
	a.log.Info("Open vSwitch forwards again")
	return nil
}
