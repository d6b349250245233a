// Package controller makes the cluster-wide decisions: node IDs, the node of each egress address,
// the addresses of Services of type LoadBalancer, and what is announced by BGP.
//
// The leader runs one round per Snapshot. Packages plan/assign and plan/bgp compute the decisions.
// This package writes them to the objects, and reports problems of all objects as Events.
package controller

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"hairpin/cluster"
	"hairpin/cluster/annotation"
	"hairpin/config"
	"hairpin/egress/probe"
	"hairpin/kube"
	"hairpin/kubeapi"
	"hairpin/ops"
	"hairpin/report"
	"hairpin/retry"
	"hairpin/watch"
)

// Run runs the controller. Several replicas may run; only the holder of the Lease
// "hairpin-controller" makes decisions. Run returns when ctx ends.
func Run(ctx context.Context, c config.Config, log *slog.Logger) error {
	api := &kube.Reach{}
	client, err := kube.Connect(c.Process.Kubeconfig, api)
	if err != nil {
		return err
	}
	c.Cluster.APIServers = kube.Servers(client)
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("read the host name: %w", err)
	}
	identity := host + "_" + rand.Text() // two containers of one host may have the same process ID
	socket, err := ops.ListenUnix(c.Process.RunDir, report.ControllerSocket)
	if err != nil {
		return err
	}
	m := newMonitoring(api, log)
	ctx, stop := context.WithCancel(ctx)
	served := make(chan struct{})
	go func() {
		defer close(served)
		m.serve(ctx, c, socket, client)
	}()
	defer func() {
		stop()
		<-served
	}()
	// leadRepeatedly returns after it has released the Lease. A leader that hangs cannot do that.
	ended := make(chan error, 2)
	go func() { ended <- leadRepeatedly(ctx, client, identity, c, m, log) }()
	go func() {
		if err := m.awaitHang(ctx); err != nil {
			ended <- err
		}
	}()
	return <-ended
}

// leadRepeatedly calls lead until ctx ends: after this controller has lost the Lease, it tries to
// acquire it again.
func leadRepeatedly(ctx context.Context, client *kubeapi.Client, identity string, c config.Config, m *monitoring,
	log *slog.Logger) error {
	for ctx.Err() == nil {
		if err := lead(ctx, client, identity, c, m, log); err != nil {
			return err
		}
	}
	return nil
}

// lead waits for the Lease, works while it holds it, and releases it. It releases the Lease only
// after the work has ended: two controllers that allocate node IDs at once could assign one ID
// twice.
func lead(ctx context.Context, client *kubeapi.Client, identity string, c config.Config, m *monitoring,
	log *slog.Logger) error {
	log = log.With("identity", identity)
	l := lease{api: client.Leases(kube.LeaseNamespace), identity: identity, log: log}
	if !l.acquire(ctx) {
		l.release(context.WithoutCancel(ctx))
		return nil
	}
	log.Info("leading")
	// The end of ctx, or of the Lease, ends the work. The end of the work ends the renewals.
	work, stopWork := context.WithCancel(kube.WithLog(ctx, log))
	renewals, stopRenewals := context.WithCancel(context.WithoutCancel(ctx))
	var keeping sync.WaitGroup
	keeping.Go(func() {
		defer stopWork()
		l.keep(renewals)
	})
	m.setLeading(true)
	err := decide(work, client, c, m, log)
	m.setLeading(false)
	log.Info("stopped leading")
	stopRenewals()
	keeping.Wait()
	l.release(context.WithoutCancel(ctx))
	return err
}

// decider is the state of a leader.
type decider struct {
	client     *kubeapi.Client
	log        *slog.Logger
	plans      plans
	events     *kube.Events
	ids        idAllocator
	egress     *egressIPs
	pools      *loadBalancers
	bgp        *announcements
	withIDs    []*cluster.Node // the nodes of the last round; nil if one has no ID of its own
	warned     lastWarning     // of assignIDs
	monitoring *monitoring
}

// decide runs rounds of the leader until ctx ends.
func decide(ctx context.Context, client *kubeapi.Client, c config.Config, m *monitoring, log *slog.Logger) error {
	snapshots, err := watch.Kube(ctx, client, "", c.Cluster)
	if err != nil {
		return err
	}
	d := decider{client: client, log: log, plans: newPlans(), events: kube.NewEvents(client, "hairpin-controller", log),
		ids: idAllocator{}, monitoring: m}
	// A controller that cannot reach the API cannot move egress addresses, and must treat
	// unresponsive nodes as reachable.
	prober := probe.New(c.Process.Egress, log, func() bool { return !m.api.Answers() })
	ctx, stop := context.WithCancel(ctx)
	var probing sync.WaitGroup
	probing.Go(func() { prober.Run(ctx) })
	defer probing.Wait()
	defer stop()
	d.egress = newEgressIPs(client, log, prober, m.meters)
	d.pools, d.bgp = newLoadBalancers(d.egress), newAnnouncements(d.egress)
	d.events.Reason = d.egress.reason
	defer d.events.Stop()
	again := time.NewTimer(0)
	defer again.Stop()
	var last *cluster.Snapshot
	for {
		select {
		case <-ctx.Done():
			return nil
		case last = <-snapshots:
		case <-prober.Changed.C():
		case <-again.C:
		}
		if last == nil {
			continue
		}
		endWork := m.health.Work()
		wait := d.round(ctx, last)
		endWork()
		if wait > 0 {
			again.Reset(wait)
		}
	}
}

// round makes and writes all decisions, and reports problems. It returns the time until it must be
// called again, or 0 if only a change requires it.
func (d *decider) round(ctx context.Context, s *cluster.Snapshot) time.Duration {
	egress, egressWait := d.egress.round(ctx, s)
	pools, uses, poolsWait := d.pools.round(ctx, s, time.Now())
	bgp, bgpWait := d.bgp.round(ctx, s, time.Now())
	plansWait := d.plans.update(s,
		func(took time.Duration) { d.monitoring.meters.Took("hairpin_plan_duration_seconds", took) })
	problems := cluster.SortProblems(slices.Concat(s.Problems, d.plans.problems, egress, pools, bgp))
	assigned, unassigned := d.egress.addresses.count()
	d.monitoring.lastRound.Store(&roundResult{
		snapshot: s, problems: len(problems), assigned: assigned, unassigned: unassigned,
		unreachable: len(d.egress.prober.Unreachable()), pools: uses, advertisements: d.bgp.latest,
	})
	reportWait := d.events.Report(time.Now(), problems)
	return retry.Sooner(egressWait, poolsWait, bgpWait, plansWait, reportWait, d.updateIDs(ctx, s.Nodes))
}

// updateIDs assigns node IDs after a change of the nodes, and until the watch shows them. It
// returns the time until it must be called again, or 0 if only a change requires it.
func (d *decider) updateIDs(ctx context.Context, nodes []*cluster.Node) time.Duration {
	if d.withIDs != nil && slices.Equal(d.withIDs, nodes) {
		return 0
	}
	d.withIDs = nil
	again := d.warned.log(ctx, d.log, "assign node IDs", d.assignIDs(ctx, nodes))
	if len(d.ids) > 0 { // the watch does not show them all yet, or a write failed
		return retry.Sooner(again, watchLag)
	}
	d.withIDs = nodes
	return again
}

// assignIDs writes the node-id annotation of nodes without an ID, or with an ID that is in use.
func (d *decider) assignIDs(ctx context.Context, nodes []*cluster.Node) error {
	return inParallel(d.ids.toWrite(time.Now(), nodes), func(p *pendingID) error {
		err := kube.PatchNode(ctx, d.client, p.node, map[string]any{
			"uid": p.uid, "annotations": map[string]string{annotation.NodeID: strconv.Itoa(p.id)},
		})
		switch {
		case err == nil:
			p.written, p.until = true, time.Now().Add(watchLag)
			d.monitoring.meters.Count("hairpin_controller_node_ids_given_total")
			d.log.Info("assigned node ID", "node", p.node, "id", p.id)
		case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
			// The Node was deleted or replaced: the watch will show it.
		default:
			return err
		}
		return nil
	})
}

// maxWrites is how many objects are written at the same time.
const maxWrites = 16

// inParallel calls f for each element of list, at most maxWrites at once, and returns when all
// calls have returned. An error does not stop the others.
func inParallel[T any](list []T, f func(T) error) error {
	errs := make([]error, len(list))
	var g errgroup.Group
	g.SetLimit(maxWrites)
	for i, x := range list {
		g.Go(func() error {
			errs[i] = f(x)
			return nil
		})
	}
	_ = g.Wait() // each has its own error
	return errors.Join(errs...)
}

// writeAll makes changes in parallel.
func writeAll(changes []func() error) error {
	return inParallel(changes, func(change func() error) error { return change() })
}
