package agent

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"hairpin/agent/meter"
	"hairpin/cluster"
	"hairpin/config"
	"hairpin/datapath/flow"
	"hairpin/delta"
	"hairpin/kube"
	"hairpin/kubeapi"
	"hairpin/ops"
)

// figures are values that the loop publishes for the metrics.
type figures struct {
	snapshot      *cluster.Snapshot // nil before there is one
	problems      int
	restarts      uint64
	ports, failed int                            // health check ports that listen, and those that cannot
	flows         delta.Map[flow.ID, *flow.Flow] // of the last plan
	isolated      int                            // own pods that policies isolate
	groups        int                            // of the last plan
	egress        int                            // egress addresses of this node
	openvswitch   string                         // the version of ovs-vswitchd; empty: not known
	datapath      string
}

// monitoring reports on the node and its agent: health, metrics, Events, the Node's condition, and
// the health checks of load balancers.
type monitoring struct {
	health      ops.Health
	listeners   *ops.Listeners
	checks      *ops.ServiceChecks
	condition   *kube.Condition
	meters      *ops.Meters
	secure      http.Handler // of metrics, for clients with a permission; nil without an API
	programming *meter.Programming
	events      *kube.Events
	figures     atomic.Pointer[figures] // for meters
	policies    meter.Policies
	drops       meter.Drops
	pending     atomic.Int64 // Unix time in ms since when a change is not applied everywhere; 0: none
	// policiesSince is when the oldest change of a NetworkPolicy arrived that is planned but not
	// applied. It belongs to the loop.
	policiesSince time.Time

	healthChecks   map[uint16]ops.LocalState // what checks should answer
	duplicatePorts []cluster.Problem         // Services whose health check port is a duplicate
	listenErrors   []cluster.Problem         // duplicatePorts, and Services whose port cannot be opened
}

func newMonitoring(node string, client *kubeapi.Client, measure func(ops.Put), log *slog.Logger) *monitoring {
	m := &monitoring{
		listeners: ops.NewListeners(log), condition: kube.NewCondition(client, node, log),
		events: kube.NewEvents(client, "hairpin-node", log), programming: meter.NewProgramming(time.Now()),
		meters: ops.NewMeters(ops.OfAgent, measure),
	}
	if client != nil {
		m.secure = ops.NewAuthorized(m.meters.Handler(), kube.Reviewer{Client: client})
	}
	m.events.Reason = egressReason
	m.checks = ops.NewServiceChecks(node, m.dataplaneOK, log)
	m.figures.Store(&figures{})
	return m
}

// dataplaneOK reports whether the data plane has no error.
func (m *monitoring) dataplaneOK() bool { return m.health.DataplaneError(time.Now()) == "" }

// stop ends what does not end with the context of start.
func (m *monitoring) stop() {
	m.checks.Stop()
	m.events.Stop()
}

func (m *monitoring) start(
	ctx context.Context, c *config.Process, sync func(context.Context) error, start func(func()),
) {
	health := http.NewServeMux()
	m.health.Register(health)
	start(func() { m.listeners.Serve(ctx, "healthz", c.Healthz, health) })
	start(func() { m.listeners.Serve(ctx, "metrics", c.Metrics, m.meters.Handler()) })
	if m.secure != nil {
		start(func() {
			m.listeners.ServeTLS(ctx, "secure metrics", c.SecureMetrics, m.secure,
				ops.ServerTLS(c.MetricsCert, c.MetricsKey))
		})
	}
	start(func() { m.condition.Run(ctx) })
	start(func() {
		m.programming.Run(ctx, sync, func(f cluster.Family, took time.Duration) {
			m.meters.Took("kubeproxy_network_programming_duration_seconds", took, f.String())
		})
	})
}

// dropClaim counts a claim to an egress address that is dropped.
func (m *monitoring) dropClaim() { m.meters.Count(ops.ClaimsDropped) }

// addressMoved measures the time that an egress address took to come to this node.
func (m *monitoring) addressMoved(took time.Duration) {
	m.meters.Took("hairpin_egress_move_duration_seconds", took)
}

// frontendsChanged records changed Frontends, for metrics and health checks. An endpoint without a
// node name is local if it is at one of the node's addresses, so health checks depend on these too.
func (m *monitoring) frontendsChanged(name string, was, is *cluster.Snapshot) {
	if was == nil {
		was = &cluster.Snapshot{}
	}
	c := cluster.Compare(was.Frontends, is.Frontends, (*cluster.Frontend).Compare)
	m.programming.Plan(c)
	checked := func(f *cluster.Frontend) bool { return f.HealthCheckNodePort != 0 }
	own := func(s *cluster.Snapshot) *cluster.Node { return cmp.Or(s.Node(name), &cluster.Node{Name: name}) }
	node := own(is)
	if slices.ContainsFunc(c.Removed, checked) || slices.ContainsFunc(c.Added, checked) ||
		!slices.Equal(own(was).HostAddresses, node.HostAddresses) {
		m.healthChecks, m.duplicatePorts = ops.LocalStates(is.Frontends, node)
	}
}

// policiesChanged records that the plan may have other policies.
func (m *monitoring) policiesChanged(was, is *cluster.Snapshot) {
	if was != nil && m.policiesSince.IsZero() && !cluster.SameList(was.Policies, is.Policies) {
		m.policiesSince = is.Received
	}
}

// policiesApplied measures the change of policies, if any, that is applied now.
func (m *monitoring) policiesApplied() {
	if !m.policiesSince.IsZero() {
		m.meters.Took("hairpin_policy_enforcement_duration_seconds", time.Since(m.policiesSince))
		m.policiesSince = time.Time{}
	}
}

// listen updates the health check listeners to those of the Services. It returns when to call it
// again.
func (m *monitoring) listen(ctx context.Context) time.Duration {
	ports, again := m.checks.Set(ctx, time.Now(), m.healthChecks)
	m.listenErrors = slices.Concat(m.duplicatePorts, ports)
	return again
}

// observeDurations makes meters measure passes and CNI requests. Call it before loop runs.
func (a *agent) observeDurations() {
	meters := a.monitor.meters
	a.pass.Observe(func(system string, took time.Duration) {
		meters.Took("hairpin_part_apply_duration_seconds", took, system)
	})
	a.pods.cni.Observe(func(command string, took time.Duration, code uint) {
		meters.Took("hairpin_cni_duration_seconds", took, command)
		if code != 0 {
			meters.Count("hairpin_cni_errors_total", command, strconv.FormatUint(uint64(code), 10))
		}
	})
}

// markPending records that the desired state may have changed.
func (m *monitoring) markPending() { m.pending.CompareAndSwap(0, time.Now().UnixMilli()) }

// publishHealth publishes health and figures after a round, for requests that must not wait for the
// loop.
func (a *agent) publishHealth() {
	leaving := false
	if n := a.ownNode(); n != nil {
		leaving = n.Leaving
	}
	m := a.monitor
	m.health.Set(time.Now(), a.notReady(), a.dataplaneProblem(), leaving)
	f := figures{
		snapshot: a.snapshot, problems: len(a.planned.problems) + len(m.listenErrors), restarts: a.vswitch.Restarts,
		flows: a.planned.want.Bridge.Flows, isolated: a.planned.planner.IsolatedPods(),
	}
	f.ports, f.failed = m.checks.Counts()
	f.groups, f.egress, f.openvswitch = a.planned.want.Bridge.Groups.Len(), len(a.egress.announced.Addresses()),
		a.vswitch.Version
	f.datapath = "kernel"
	if a.host.found.Gateway.Userspace {
		f.datapath = "userspace"
	}
	m.figures.Store(&f)
	if a.inOrder() {
		m.pending.Store(0)
	}
}

// ownNode returns the agent's own Node, or nil.
func (a *agent) ownNode() *cluster.Node {
	if a.snapshot == nil {
		return nil
	}
	return a.snapshot.Node(a.node)
}

// dataplaneProblem returns what is wrong with the data plane; empty if nothing is.
func (a *agent) dataplaneProblem() string {
	if why := a.closedGate(); why != "" {
		if a.inherited() {
			return ""
		}
		return why
	}
	switch err := a.targets.Bridge.IntegrationError(); {
	case err != nil:
		return err.Error()
	case a.progress.err != nil:
		return a.progress.err.Error()
	case !a.progress.synced:
		return "the node is being set up"
	}
	return ""
}

// inherited reports whether the node has the state that an earlier agent wrote, with the same
// ovs-vswitchd, and the API cannot be reached. Clients need not move to other nodes then: these
// have no newer state either.
func (a *agent) inherited() bool {
	return a.snapshot == nil && a.ovs.Synced() && a.ovs.Connected() && a.vswitch.Restored()
}

// reportServing sets the condition of the Node if the node serves pods. It returns when to call it
// again.
func (a *agent) reportServing() time.Duration {
	n := a.ownNode()
	if n == nil || !a.progress.synced || a.progress.err != nil {
		return 0
	}
	return a.monitor.condition.Request(time.Now(), n.NetworkUnavailable)
}
