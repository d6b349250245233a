package agent

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"hairpin/apply/ofctl"
	"hairpin/cluster"
	"hairpin/ops"
	"hairpin/report"
)

// figures are values that the loop leaves for the metrics.
type figures struct {
	snapshot      *cluster.Snapshot // nil before there is one
	problems      int
	restarts      uint64
	ports, silent int // health check ports that listen, and that do not
}

// observe makes what measures the agent. It is for the time before the loop runs.
func (a *agent) observe() {
	a.checks = ops.NewServiceChecks(a.node, func() bool { return a.health.DataplaneError(time.Now()) == "" }, a.log)
	a.figures.Store(&figures{})
	a.meters = ops.NewMeters(ops.OfAgent, a.measure)
	a.pass.Observe(func(system string, took time.Duration) {
		a.meters.Took("hairpin_part_apply_duration_seconds", took, system)
	})
	a.cni.Observe(func(command string, took time.Duration, code uint) {
		a.meters.Took("hairpin_cni_duration_seconds", took, command)
		if code != 0 {
			a.meters.Count("hairpin_cni_errors_total", command, strconv.FormatUint(uint64(code), 10))
		}
	})
}

// startOps starts what tells others how the agent is.
func (a *agent) startOps(ctx context.Context, start func(func())) {
	health := http.NewServeMux()
	a.health.Add(health)
	start(func() { a.listeners.Serve(ctx, "healthz", a.config.Process.Healthz, health) })
	start(func() { a.listeners.Serve(ctx, "metrics", a.config.Process.Metrics, a.meters.Handler()) })
	start(func() { a.condition.Run(ctx) })
	start(func() {
		a.programming.run(ctx, a.targets.NB.Sync, func(f cluster.Family, took time.Duration) {
			a.meters.Took("kubeproxy_network_programming_duration_seconds", took, f.String())
		})
	})
}

// tell publishes what a round found, for requests that must not wait for the loop.
func (a *agent) tell() {
	leaving := false
	if n := a.ownNode(); n != nil {
		leaving = n.Leaving
	}
	a.health.Set(time.Now(), a.notReady(), a.trouble(), leaving)
	f := figures{snapshot: a.snapshot, problems: len(a.problems) + len(a.listenErrors), restarts: a.restarts}
	f.ports, f.silent = a.checks.Counts()
	a.figures.Store(&f)
}

// ownNode is the agent's own Node, or nil.
func (a *agent) ownNode() *cluster.Node {
	if a.snapshot == nil {
		return nil
	}
	return a.snapshot.Node(a.node)
}

// trouble says what of the data plane is out of order; empty when nothing is.
func (a *agent) trouble() string {
	if why := a.missing(); why != "" {
		if a.inherited() {
			return ""
		}
		return why
	}
	switch err := a.targets.Bridge.Integrated(); {
	case err != nil:
		return err.Error()
	case a.passErr != nil:
		return a.passErr.Error()
	case !a.synced:
		return "the node is being set up"
	}
	return ""
}

// inherited tells that the node is as an earlier agent left it, with the same ovs-vswitchd, and that nothing newer can
// be known because the API is away. That is no reason to move clients elsewhere: the other nodes know no more.
func (a *agent) inherited() bool {
	return a.snapshot == nil && a.ovs.Synced() && a.ovs.Connected() && a.vswitchdID != "" && a.restart == nil && !a.hostOnly
}

// serves tells the cluster that the node serves pods, if it does. It tells when it wants to be called again.
func (a *agent) serves() time.Duration {
	n := a.ownNode()
	if n == nil || !a.synced || a.passErr != nil {
		return 0
	}
	return a.condition.Serves(time.Now(), n.NetworkUnavailable)
}

// reportOps adds to a report what ops.go knows.
func (a *agent) reportOps(r *report.Report) {
	r.Neglected = a.health.DataplaneError(time.Now())
	r.Leaving = !a.health.Eligible()
	r.Doors = a.listeners.Report()
	if p := a.looker.Report.Load(); p != nil {
		r.Parts = append(r.Parts, *p)
	}
	r.Redirect = a.redirectedPackets()
	if a.config.Process.Manifests == "" {
		r.API = new(a.api.Report())
	}
}

// redirectedPackets counts them; nil without programs.
func (a *agent) redirectedPackets() *report.Redirect {
	if !a.redirects() {
		return nil
	}
	n, err := a.targets.Redirect.Counters()
	if err != nil {
		a.log.Debug("count redirected packets", "error", err)
	}
	return (*report.Redirect)(n)
}

// measureLimits gives how much of the limits of Open vSwitch is taken.
func (a *agent) measureLimits(give ops.Put) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	connections, clients, err := a.targets.Bridge.Usage(ctx)
	if err != nil {
		a.log.Debug("count entries of Open vSwitch", "error", err)
	}
	for of, u := range map[string]*ofctl.Usage{"connections": connections, "affinity clients": clients} {
		if u != nil {
			give("hairpin_openvswitch_entries", float64(u.Used), of)
			give("hairpin_openvswitch_entries_limit", float64(u.Limit), of)
		}
	}
}

// measure gives the metrics that are asked for. Any goroutine may call it.
func (a *agent) measure(give ops.Put) {
	now, f := time.Now(), a.figures.Load()
	give("hairpin_ready", ops.One(a.health.NotReady(now) == ""))
	give("hairpin_data_plane_kept", ops.One(a.health.DataplaneError(now) == ""))
	give("hairpin_node_eligible", ops.One(a.health.Eligible()))
	give("hairpin_problems", float64(f.problems))
	give("hairpin_pods", float64(len(a.cni.Pods())))
	give("hairpin_ovs_restarts_total", float64(f.restarts))
	nodes, frontends, backends := sizes(f.snapshot)
	give("hairpin_snapshot_objects", float64(nodes), "node")
	give("hairpin_snapshot_objects", float64(frontends), "frontend")
	give("hairpin_snapshot_objects", float64(backends), "backend")
	give("hairpin_health_check_node_ports", float64(f.ports), "listening")
	give("hairpin_health_check_node_ports", float64(f.silent), "failed")
	if a.config.Process.Manifests == "" {
		give("hairpin_api_reachable", ops.One(a.api.Answers()))
	}
	a.measureLimits(give)
	a.listeners.Measure(give)
	for _, s := range a.pass.Status() {
		partValues(give, partOf(s))
	}
	if p := a.looker.Report.Load(); p != nil {
		partValues(give, *p)
	}
	if r := a.redirectedPackets(); r != nil {
		give("hairpin_redirect_packets_total", float64(r.Requests), "requests")
		give("hairpin_redirect_packets_total", float64(r.Replies), "replies")
		give("hairpin_redirect_packets_total", float64(r.Fragments), "fragments")
		give("hairpin_redirect_packets_total", float64(r.NoRoute), "no route")
	}
}

// sizes counts what a Snapshot holds, when somebody asks: it is a look at each Frontend.
func sizes(s *cluster.Snapshot) (nodes, frontends, backends int) {
	if s == nil {
		return 0, 0, 0
	}
	for _, f := range s.Frontends {
		backends += len(f.Backends)
	}
	return len(s.Nodes), len(s.Frontends), backends
}

func partValues(give ops.Put, p report.Part) {
	give("hairpin_part_in_sync", ops.One(p.InSync), p.System)
	give("hairpin_part_since_timestamp_seconds", float64(p.Since.UnixMilli())/1000, p.System)
	give("hairpin_part_reads_total", float64(p.Reads), p.System)
	give("hairpin_part_applies_total", float64(p.Applies), p.System)
	give("hairpin_part_written_total", float64(p.Written), p.System)
	give("hairpin_part_drift_total", float64(p.Drift), p.System)
	give("hairpin_part_errors_total", float64(p.Errors), p.System)
}
