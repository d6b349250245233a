package agent

import (
	"context"
	"slices"
	"strings"
	"time"

	"hairpin/agent/vswitch"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/cni"
	"hairpin/hostnet"
	"hairpin/hostnet/uplink"
	"hairpin/retry"
)

// loop runs one reconcile round per wake-up, until ctx ends.
func (a *agent) loop(ctx context.Context) error {
	again := time.AfterFunc(time.Hour, a.inbox.notify)
	defer again.Stop()
	defer a.drain()
	for ctx.Err() == nil {
		m := a.inbox.take()
		endWork := a.monitor.health.Work()
		if m.reread {
			a.pass.Reread()
		}
		if m.scan != nil && a.recordScan(m.scan) {
			m.changed = true
		}
		snapshot, wait := a.egress.observe(time.Now(), &m)
		m.changed = m.changed || snapshot != a.snapshot
		a.snapshot, a.sourceErr = snapshot, m.sourceErr
		if m.changed {
			a.monitor.markPending()
		}
		if wait = retry.Sooner(wait, a.round(ctx, m.changed || m.reread)); wait > 0 {
			again.Reset(wait)
		} else {
			again.Stop()
		}
		a.publishResult(m.number)
		endWork()
		if err := a.pass.Wait(ctx, a.inbox.wake.C()); err != nil {
			return nil // ctx ended
		}
	}
	return nil
}

// drain waits a short time for calls that are in progress.
func (a *agent) drain() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	a.pass.Finish(ctx)
	a.background.Finish(ctx)
	a.vswitch.Drain(ctx)
}

// recordScan records a scan of the host, and reports whether the host changed.
func (a *agent) recordScan(s *hostnet.Scan) bool {
	a.vswitch.Observe(s)
	changed, lost := a.host.record(s)
	if lost {
		a.api.Reconnect()
	}
	return changed
}

// switchFacts returns the input for the handling of a restart of Open vSwitch.
func (a *agent) switchFacts() *vswitch.Facts {
	return &vswitch.Facts{
		Snapshot: a.snapshot, Gateway: a.host.found.Gateway, Supported: a.supported.Load(), Synced: a.progress.synced,
	}
}

// round plans and applies once. It returns when to call it again, 0 if not before the next change.
//
//   - It collects results of calls that may hang, and handles restarts of Open vSwitch.
//   - It plans, if an input changed, and publishes the Node's annotations.
//   - Unless a gate is closed, it applies the plan and announces addresses.
func (a *agent) round(ctx context.Context, changed bool) time.Duration {
	defer a.publishHealth()
	defer a.updateCNIFacts()
	a.vswitch.Collect()
	a.background.Collect()
	v, f := a.vswitch, a.switchFacts()
	again := v.Watch(ctx, f)
	for _, step := range []func(context.Context) time.Duration{
		v.Nudge, a.pods.compare, v.AskVersion, a.awaitOVN, a.plan,
	} {
		again = retry.Sooner(again, step(ctx))
	}
	a.host.publish(a.ownNode())
	why := a.closedGate()
	stage, wait := v.Stage(&vswitch.StageFacts{
		Blocked: why != "", Gateway: a.host.known(), Cluster: a.snapshot != nil, Database: a.ovs.Connected(),
	}, time.Now())
	switch stage {
	case vswitch.Hold:
		// After a start of Open vSwitch, Bootstrap does this.
		if a.snapshot == nil && a.host.known() && !v.Starting() {
			again = retry.Sooner(again, v.KeepNetwork(ctx, f.Gateway))
		}
		return retry.Sooner(again, wait)
	case vswitch.Bootstrap:
		return retry.Sooner(again, v.Bootstrap(ctx, f, why))
	}
	if changed {
		a.pass.Retry()
	}
	if !a.config.Process.Repair && a.inOrder() {
		return again // without repair, changes of other programs stay
	}
	own := a.host.local.Own // not nil, because the node is planned
	again = retry.Sooner(again, a.egress.solicit(time.Now(), own.Gateway))
	wait, err := a.apply(ctx, f)
	again = retry.Sooner(again, wait)
	if err == nil {
		again = retry.Sooner(again, v.AnnounceMAC(ctx, f),
			a.egress.announce(time.Now(), own, a.snapshot.EgressIPs, a.planned.want.Host.Addresses))
	}
	again = retry.Sooner(again, a.reportServing())
	return retry.Sooner(again, v.RemakePorts(ctx, a.pass.Status(), a.planned.want.Bridge.Ports))
}

// inOrder reports whether the last pass has applied everything, and nothing of the desired state
// has changed since.
func (a *agent) inOrder() bool {
	p := &a.progress
	return p.synced && p.err == nil && !a.planned.changed && !a.vswitch.Starting() && !a.pods.waiting
}

// apply applies the desired state. It returns when to call it again, and the errors of the pass
// except those that concern only pods' ports.
func (a *agent) apply(ctx context.Context, f *vswitch.Facts) (again time.Duration, err error) {
	a.planned.changed = false
	wantedHost := a.planned.want.Host // a copy for other goroutines: the next plan overwrites the original
	a.targets.WantedHost.Store(&wantedHost)
	begin := time.Now()
	passErr := a.pass.Run(ctx, a.planned.want)
	a.monitor.meters.Took("hairpin_pass_duration_seconds", time.Since(begin))
	again = a.pass.Again()
	err, inOVN := a.pods.recordReach(a.pass.Status(), a.planned.pods, f.Gateway.OpenFlow)
	if inOVN {
		again = retry.Sooner(again, a.pods.move(ctx))
	}
	a.pods.waiting = passErr != nil && err == nil
	if a.vswitch.Starting() { // the release waits for pods' ports, too
		var wait time.Duration
		wait, err = a.vswitch.Release(ctx, f, passErr)
		again = retry.Sooner(again, wait)
	}
	if ctx.Err() == nil {
		if err == nil {
			a.monitor.programming.Applied()
			a.monitor.policiesApplied()
		}
		a.progress.record(err)
	}
	return again, err
}

// awaitOVN waits for OVN before pods' ports move, see podHandler.awaitOVN. It returns when to call
// it again.
func (a *agent) awaitOVN(ctx context.Context) time.Duration {
	if !a.supported.Load() {
		return 0
	}
	return a.pods.awaitOVN(ctx, a.vswitch.Starting(), a.targets.NB.Sync)
}

// plan updates the desired state, and reports problems. It returns when to call it again, for
// problems that are not reported yet.
func (a *agent) plan(ctx context.Context) time.Duration {
	h, events := a.host, a.monitor.events
	if !h.known() && (h.scan.UplinkErr != nil || h.scan.ModeErr != nil) {
		return events.Report(time.Now(), slices.Concat(h.uplinkProblem(), h.modeProblem()))
	}
	if a.snapshot == nil || !h.known() || !a.pods.compared {
		return 0
	}
	h.scanner.FindTables(a.snapshot.TableNames()) // of the VRFs that EgressServices name
	h.scanner.FindPorts(a.ownNode(), a.snapshot.NodePoolPorts())
	now := inputs{a.snapshot, h.found, a.pods.cni.Pods()}
	if !now.same(&a.planned.inputs) {
		begin, was := time.Now(), a.planned.merged
		a.planned.update(now, h.local.Apply(now.snapshot, now.found, now.pods), a.node)
		a.monitor.meters.Took("hairpin_plan_duration_seconds", time.Since(begin))
		a.monitor.frontendsChanged(a.node, was, a.planned.merged)
		a.monitor.policiesChanged(was, a.planned.merged)
	}
	again := a.monitor.listen(ctx)
	return retry.Sooner(again, events.Report(time.Now(), slices.Concat(
		a.ownProblems(a.planned.problems), a.monitor.listenErrors, a.egress.view.Conflicts(), a.nodeProblems())))
}

// ownProblems returns the problems that this agent reports: those of its own Node, and policies
// that its node does not enforce. The controller reports the others; with manifests there is no
// controller.
func (a *agent) ownProblems(problems []cluster.Problem) []cluster.Problem {
	if a.config.Process.Manifests != "" {
		return problems
	}
	var list []cluster.Problem
	for _, p := range problems {
		if p.Owner.Kind == "Node" && p.Owner.Name == a.node ||
			strings.HasSuffix(p.Owner.Kind, "NetworkPolicy") && !slices.Contains(a.snapshot.Problems, p) {
			list = append(list, p)
		}
	}
	return list
}

// updateCNIFacts updates the facts that the CNI server uses for new pods.
func (a *agent) updateCNIFacts() {
	facts := cni.Facts{
		MTU: a.config.Cluster.MTU, Userspace: a.host.found.Gateway.Userspace, TSO: uplink.TSO(a.ovs.View()),
		Bridge: claims.IntegrationBridge,
	}
	if a.snapshot != nil {
		facts.Reported = a.snapshot.Pods
	}
	if a.config.Cluster.ServiceEngine == cluster.EngineOpenFlow {
		facts.Bridge = claims.ServiceBridge
	}
	if n := a.ownNode(); n != nil {
		facts.Subnets = n.PodCIDRs
	}
	a.pods.cni.SetFacts(facts, a.notReady())
}

// notReady returns why the node cannot serve pods; empty if it can.
func (a *agent) notReady() string {
	if why := a.closedGate(); why != "" {
		return why
	}
	switch p, err := &a.progress, a.targets.Bridge.IntegrationError(); {
	case err != nil && p.synced: // before the first pass, OVN may have no ports, and so no flows
		return err.Error()
	case !p.synced && p.err != nil:
		return p.err.Error()
	case !p.synced:
		return "the node is being set up"
	}
	return ""
}
