package agent

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"hairpin/plan/egress"

	"hairpin/apply/late"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/cni"
	"hairpin/hostnet"
	"hairpin/ops"
	"hairpin/retry"
)

// patience is how long something may be out of order before it is worth a line in the log.
const patience = time.Second

// loop makes the node what it must be, whenever there is a reason to look.
func (a *agent) loop(ctx context.Context) error {
	again := time.AfterFunc(time.Hour, a.inbox.notify)
	defer again.Stop()
	a.offer()
	a.post(0)
	defer a.wind()
	for ctx.Err() == nil {
		m := a.inbox.take()
		rest := a.health.Work()
		if m.reread {
			a.pass.Reread()
		}
		if m.seen != nil && a.learn(m.seen) {
			m.news = true
		}
		look := a.seeEgress(time.Now(), &m)
		if wait := retry.Sooner(look, a.round(ctx, m.news || m.reread)); wait > 0 {
			again.Reset(wait)
		} else {
			again.Stop()
		}
		a.post(m.number)
		rest()
		if err := a.pass.Wait(ctx, a.inbox.wake.C()); err != nil {
			return nil // ctx ended
		}
	}
	return nil
}

// wind waits a moment for what goes on beside the loop.
func (a *agent) wind() {
	ctx, cancel := context.WithTimeout(context.Background(), answer)
	defer cancel()
	a.pass.Finish(ctx)
	a.aside.Finish(ctx)
	a.releasing.Finish(ctx)
}

// learn takes what a look at the host has found, and reports whether the host changed.
func (a *agent) learn(s *hostnet.Sight) bool {
	s.Moved = s.Moved || a.seen.Moved
	if a.restart != nil && s.Begin.After(a.restart.since) {
		a.restart.looked = !s.Lost
	}
	if s.Err != nil && a.seen.Err == nil {
		a.log.Info("gateway bridge", "bridge", a.config.Cluster.Gateway.Interface, "error", s.Err)
	}
	a.seen = *s
	if s.Err != nil || reflect.DeepEqual(s.Found, a.found) {
		return false
	}
	if s.Found.Lost(&a.found) {
		a.api.Reconnect()
	}
	a.found = s.Found
	g := &a.found.Gateway
	a.log.Info("host facts", "bridge", g.Bridge, "uplink", g.Uplink, "mac", g.MAC.String(),
		"addresses", g.Addresses, "nextHops", g.NextHops, "userspace", g.Userspace)
	return true
}

// round plans and applies once. It tells when it wants to be called again, 0 if not before the next change.
func (a *agent) round(ctx context.Context, news bool) (again time.Duration) {
	defer a.tell()
	defer a.offer()
	a.landed()
	again = retry.Sooner(a.watchRestart(ctx), a.stir(ctx))
	again = retry.Sooner(again, retry.Sooner(a.sweep(ctx), a.askVersion(ctx)))
	again = retry.Sooner(again, a.settle(ctx))
	again = retry.Sooner(again, a.plan(ctx))
	a.publish()
	if a.missing() != "" {
		return retry.Sooner(again, a.bootstrap(ctx))
	}
	if a.restart.tooEarly() {
		return again
	}
	if news {
		a.pass.Retry()
	}
	if !a.config.Process.Repair && a.synced && !a.fresh && a.passErr == nil && a.restart == nil && !a.waits {
		return again // what others have changed stays
	}
	a.fresh = false
	wantedHost := a.want.Host // the next plan overwrites a.want while others read this
	a.targets.WantedHost.Store(&wantedHost)
	begin := time.Now()
	err := a.pass.Run(ctx, a.want)
	a.meters.Took("hairpin_pass_duration_seconds", time.Since(begin))
	again = retry.Sooner(again, retry.Sooner(a.pass.Again(), a.movePods(ctx)))
	butPods := a.noteReach()
	a.waits = err != nil && butPods == nil
	if a.restart == nil {
		err = butPods
	} else if err = a.finishRestart(ctx, err); err != nil {
		a.pace.Failed(time.Now())
		again = retry.Sooner(again, a.pace.Pause())
	} else {
		a.pace.Done()
	}
	if ctx.Err() == nil {
		a.note(err)
	}
	if err == nil {
		again = retry.Sooner(again, retry.Sooner(a.introduce(ctx), a.announceEgress(time.Now())))
	}
	return retry.Sooner(again, retry.Sooner(a.serves(), a.remakePorts(ctx)))
}

// beside does what may hang, once at a time. It reports whether that was done in a moment; else its end wakes the loop. What f gives
// is called by the loop.
func (a *agent) beside(ctx context.Context, f func(context.Context) (then func())) bool {
	return besideBy(ctx, a.aside, f)
}

// besideBy does the same with a worker of its own.
func besideBy(ctx context.Context, worker *late.Task[func()], f func(context.Context) (then func())) bool {
	const moment, limit = 50 * time.Millisecond, 5 * time.Second
	r, err := worker.Do(ctx, moment, limit, func(ctx context.Context) (func(), error) { return f(ctx), nil })
	if err != nil {
		return false
	}
	r.Value()
	return true
}

// landed takes what was done beside the loop since the last round.
func (a *agent) landed() {
	for _, worker := range []*late.Task[func()]{a.releasing, a.aside} {
		if r, _ := worker.Take(); r != nil {
			r.Value()
		}
	}
}

// sweepTime is how long pods' interfaces may hold up everything else, at the start.
const sweepTime = time.Second

// sweep compares pods' interfaces with Open vSwitch. It tells when it wants to be called again.
func (a *agent) sweep(ctx context.Context) time.Duration {
	if !a.ovs.Synced() || !a.cni.NeedsSweep() {
		return 0
	}
	if a.sweeps.IsZero() {
		a.sweeps = time.Now()
	}
	a.beside(ctx, func(ctx context.Context) func() {
		err := a.cni.Sweep(ctx)
		return func() {
			if err != nil {
				a.log.Warn("compare pod interfaces with Open vSwitch", "error", err)
			} else {
				a.swept = true
			}
		}
	})
	hangs := time.Since(a.sweeps) > sweepTime
	a.swept = a.swept || hangs && a.aside.Busy()
	switch {
	case !a.cni.NeedsSweep():
		return 0
	case hangs:
		return retry.Last
	}
	return sweepTime / 10
}

// inputs are what the plan of this node depends on.
type inputs struct {
	snapshot *cluster.Snapshot
	found    hostnet.Found
	pods     []*cluster.Pod
}

// plan brings want up to date. It tells when it wants to be called again, for the sake of the problems that are not told
// yet.
func (a *agent) plan(ctx context.Context) time.Duration {
	if a.found.Gateway.Bridge == "" && (a.seen.UplinkErr != nil || a.seen.ModeErr != nil) {
		return a.notes.Report(time.Now(), slices.Concat(a.uplinkProblem(), a.modeProblem()))
	}
	if a.snapshot == nil || a.found.Gateway.Bridge == "" || !a.swept {
		return 0
	}
	a.looker.WantTables(a.snapshot.TableNames())
	now := inputs{a.snapshot, a.found, a.cni.Pods()}
	if p := &a.planned; p.snapshot != now.snapshot || !reflect.DeepEqual(p.found, now.found) || !slices.Equal(p.pods, now.pods) {
		begin := time.Now()
		all := a.local.Apply(now.snapshot, now.found, now.pods)
		want, problems := a.planner.Node(all, a.node)
		want = egress.WithMoves(want, all, a.node)
		a.meters.Took("hairpin_plan_duration_seconds", time.Since(begin))
		a.frontendsChanged(a.all, all)
		a.planned, a.all, a.want, a.fresh = now, all, want, true
		a.problems = cluster.SortProblems(slices.Concat(now.snapshot.Problems, problems))
	}
	ports, again := a.checks.Set(ctx, time.Now(), a.healthCheckState)
	a.listenErrors = slices.Concat(a.duplicatePorts, ports)
	return retry.Sooner(again, a.notes.Report(time.Now(), slices.Concat(a.own(a.problems), a.listenErrors, a.egress.Conflicts(), a.nodeProblems())))
}

// frontendsChanged notes the Frontends that changed, for metrics and health checks. An endpoint without a node name is local
// by the node's addresses, so health checks also follow these.
func (a *agent) frontendsChanged(was, is *cluster.Snapshot) {
	if was == nil {
		was = &cluster.Snapshot{}
	}
	c := cluster.Compare(was.Frontends, is.Frontends, (*cluster.Frontend).Compare)
	a.programming.plan(c)
	checked := func(f *cluster.Frontend) bool { return f.HealthCheckNodePort != 0 }
	own := func(s *cluster.Snapshot) *cluster.Node { return cmp.Or(s.Node(a.node), &cluster.Node{Name: a.node}) }
	node := own(is)
	if slices.ContainsFunc(c.Gone, checked) || slices.ContainsFunc(c.Come, checked) ||
		!slices.Equal(own(was).HostAddresses, node.HostAddresses) {
		a.healthCheckState, a.duplicatePorts = ops.LocalStates(is.Frontends, node)
	}
}

// publish lets others know what the host is, also while the node cannot be planned: a new Node has no node ID yet.
func (a *agent) publish() {
	base := a.ownNode()
	if base == nil || base != a.local.Base {
		return
	}
	found := a.found
	found.Gateway = a.local.Own.Gateway
	a.publisher.Publish(found, base)
}

// note remembers how a pass ended. What lasts, the log tells once.
func (a *agent) note(err error) {
	now := time.Now()
	switch {
	case err == nil:
		if a.warned != "" {
			a.log.Info("in sync again", "after", now.Sub(a.failing).Round(time.Millisecond))
		}
		a.programming.applied()
		a.warned, a.synced = "", true
	default:
		if a.passErr == nil {
			a.failing = now
		}
		if text := err.Error(); now.Sub(a.failing) > patience && text != a.warned {
			a.log.Warn("not in sync", "error", err)
			a.warned = text
		}
	}
	a.passErr = err
}

// own leaves out the problems that the controller tells, where there is one.
func (a *agent) own(problems []cluster.Problem) []cluster.Problem {
	if a.config.Process.Manifests != "" {
		return problems
	}
	var list []cluster.Problem
	for _, p := range problems {
		if p.Owner.Kind == "Node" && p.Owner.Name == a.node {
			list = append(list, p)
		}
	}
	return list
}

// offer tells the CNI half what pods can have now.
func (a *agent) offer() {
	facts := cni.Facts{MTU: a.config.Cluster.MTU, Userspace: a.found.Gateway.Userspace, TSO: hostnet.TSO(a.ovs.View()), Bridge: claims.IntegrationBridge}
	if a.config.Cluster.ServiceEngine == cluster.EngineOpenFlow {
		facts.Bridge = claims.ServiceBridge
	}
	if a.snapshot != nil {
		if n := a.snapshot.Node(a.node); n != nil {
			facts.Subnets = n.PodCIDRs
		}
	}
	a.cni.SetFacts(facts, a.notReady())
}

// missing says what must be known before anything can be applied; empty when all is.
func (a *agent) missing() string {
	switch {
	case !a.ovs.Synced():
		return fmt.Sprintf("Open vSwitch cannot be reached: %v", a.ovs.Err())
	case !a.swept:
		return "pods' interfaces are being compared with Open vSwitch"
	case a.found.Gateway.Bridge == "":
		return fmt.Sprintf("the gateway bridge is not known yet: %v", a.seen.Err)
	case a.snapshot == nil && a.sourceErr != nil:
		return fmt.Sprintf("the cluster is not known yet: %v", a.sourceErr)
	case a.snapshot == nil:
		return "the cluster is not known yet"
	case a.snapshot.Node(a.node) == nil:
		return "the cluster has no Node " + a.node
	case a.want.NB == nil: // the node itself cannot be planned: leave it as it is
		for _, p := range a.problems {
			if p.Owner.Kind == "Node" && p.Owner.Name == a.node {
				return p.Error()
			}
		}
		return "the node cannot be planned"
	case !a.supported.Load():
		if err := a.targets.VersionError(); err != nil {
			return fmt.Sprintf("versions are not known yet: %v", err)
		}
		return "the versions of OVN, Open vSwitch and nft are not known yet"
	case !a.settled:
		return "pods' ports go to another bridge when OVN's flows are in the switch"
	}
	return ""
}

// notReady says why the node cannot serve pods; empty when it can.
func (a *agent) notReady() string {
	if why := a.missing(); why != "" {
		return why
	}
	switch err := a.targets.Bridge.Integrated(); {
	case err != nil && a.synced: // before that ovn-controller may have nothing to write
		return err.Error()
	case !a.synced && a.passErr != nil:
		return a.passErr.Error()
	case !a.synced:
		return "the node is being set up"
	}
	return ""
}
