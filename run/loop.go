package run

import (
	"context"
	"errors"
	"reflect"
	"time"

	"hairpin/cluster"
	"hairpin/cni"
)

// retryAfter is how long the agent waits after something failed, when nothing else wakes it.
const retryAfter = 250 * time.Millisecond

// loop makes the node what it must be, whenever there is a reason to look.
func (a *agent) loop(ctx context.Context) error {
	for ctx.Err() == nil {
		snapshot, host, reread, asks := a.inbox.take()
		if reread {
			a.pass.Reread()
		}
		if host {
			a.look()
		}
		a.snapshot = snapshot
		again := a.round(ctx)
		for _, q := range asks {
			q.do(ctx, a)
			close(q.done)
		}
		if again > 0 {
			time.AfterFunc(again, func() { a.inbox.put(func(*inbox) {}) })
		}
		if err := a.pass.Wait(ctx, a.inbox.wake); err != nil {
			return nil // ctx ended
		}
	}
	return nil
}

// look finds out what the host is, and tells others when that changed.
func (a *agent) look() {
	found, err := discover(a.ovs.View(), a.config.Cluster)
	if (err == nil) != (a.foundErr == nil) {
		a.log.Info("gateway bridge", "bridge", a.config.Cluster.Gateway.Interface, "error", err)
	}
	a.foundErr = err
	if err != nil || reflect.DeepEqual(found, a.found) {
		return
	}
	a.found = found
	a.log.Info("found on the host", "bridge", found.gateway.Bridge, "uplink", found.gateway.Uplink, "mac", found.gateway.MAC.String(),
		"addresses", found.gateway.Addresses, "nextHops", found.gateway.NextHops, "userspace", found.gateway.Userspace)
	a.publisher.publish(found)
}

// round plans and applies once. It tells when it wants to be called again, 0 if not before the next change.
func (a *agent) round(ctx context.Context) time.Duration {
	again := a.watchRestart(ctx)
	if a.snapshot == nil || a.found.gateway.Bridge == "" || !a.supported.Load() {
		a.offer()
		if a.foundErr != nil {
			again = retryAfter
		}
		return again
	}
	s := a.local.apply(a.snapshot, a.found, a.cni.Pods())
	want, problems := a.planner.Node(s, a.node)
	a.problems = problems
	again = max(again, a.notes.report(a.own(problems)))
	if want.NB == nil { // the node itself cannot be planned: leave it as it is
		a.offer()
		return again
	}
	a.want = want
	a.targets.wantedHost.Store(&want.Host)
	err := a.pass.Run(ctx, want)
	if err == nil && a.restarting {
		err = a.finishRestart(ctx)
	}
	if err != nil && ctx.Err() == nil && (a.passErr == nil || a.passErr.Error() != err.Error()) {
		a.log.Warn("not in sync", "error", err)
	}
	if err == nil && a.passErr != nil {
		a.log.Info("in sync again")
	}
	a.passErr = err
	a.synced = a.synced || err == nil
	a.offer()
	if err != nil {
		return retryAfter
	}
	return again
}

// own leaves out the problems that the controller tells, where there is one.
func (a *agent) own(problems []cluster.Problem) []cluster.Problem {
	if a.publisher.client == nil {
		return append(a.snapshot.Problems[:len(a.snapshot.Problems):len(a.snapshot.Problems)], problems...)
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
	facts := cni.Facts{MTU: a.config.Cluster.MTU, Userspace: a.found.gateway.Userspace}
	if a.snapshot != nil {
		if n := a.snapshot.Node(a.node); n != nil {
			facts.Subnets = n.PodCIDRs
		}
	}
	a.cni.SetFacts(facts, a.notReady())
}

// notReady says why the node cannot serve pods; empty when it can.
func (a *agent) notReady() string {
	switch {
	case a.snapshot == nil:
		return "the cluster is not known yet"
	case a.found.gateway.Bridge == "":
		return errors.Join(errors.New("the gateway bridge is not known yet"), a.foundErr).Error()
	case a.snapshot.Node(a.node) == nil:
		return "the cluster has no Node " + a.node
	case a.want.NB == nil && len(a.problems) > 0:
		return a.problems[0].Error()
	case !a.supported.Load():
		return "the versions of OVN and Open vSwitch are not known yet"
	case !a.synced && a.passErr != nil:
		return a.passErr.Error()
	case !a.synced:
		return "the node is being set up"
	}
	return ""
}
