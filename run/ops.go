package run

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"hairpin/cluster"
	"hairpin/report"
)

// figures are values that the loop leaves for the metrics.
type figures struct {
	nodes, frontends, backends int
	problems                   int
	restarts                   uint64
	ports, silent              int // health check ports that listen, and that do not
}

// observe makes what measures the agent. It is for the time before the loop runs.
func (a *agent) observe() {
	a.checks = &balancerChecks{node: a.node, log: a.log, ports: map[uint16]*checkPort{},
		kept: func() bool { return a.vitals.neglected(time.Now()) == "" }}
	a.figures.Store(&figures{})
	a.meters = newMeters(ofAgent, a.measure)
	a.pass.Observe(func(system string, took time.Duration) {
		a.meters.took("hairpin_part_apply_duration_seconds", took, system)
	})
	a.cni.Observe(func(command string, took time.Duration, code uint) {
		a.meters.took("hairpin_cni_duration_seconds", took, command)
		if code != 0 {
			a.meters.count("hairpin_cni_errors_total", command, strconv.FormatUint(uint64(code), 10))
		}
	})
}

// startOps starts what tells others how the agent is.
func (a *agent) startOps(ctx context.Context, start func(func())) {
	health := http.NewServeMux()
	a.vitals.add(health)
	start(func() { a.doors.open(ctx, "healthz", a.config.Process.Healthz, health) })
	start(func() { a.doors.open(ctx, "metrics", a.config.Process.Metrics, a.meters.handler()) })
	start(func() { a.condition.run(ctx) })
	start(func() {
		a.programming.run(ctx, a.targets.nb.Sync, func(f cluster.Family, took time.Duration) {
			a.meters.took("kubeproxy_network_programming_duration_seconds", took, f.String())
		})
	})
}

// tell leaves what a round found for those who ask without waiting for the loop.
func (a *agent) tell() {
	leaving := false
	if n := a.ownNode(); n != nil {
		leaving = n.Leaving
	}
	a.vitals.tell(time.Now(), a.notReady(), a.trouble(), leaving)
	f := figures{problems: len(a.problems) + len(a.unheard), restarts: a.restarts}
	if s := a.snapshot; s != nil {
		old := a.figures.Load()
		f.nodes, f.frontends, f.backends = len(s.Nodes), len(s.Frontends), old.backends
		if s != a.counted {
			a.counted, f.backends = s, 0
			for _, x := range s.Frontends {
				f.backends += len(x.Backends)
			}
		}
	}
	for _, p := range a.checks.ports {
		if p.close != nil {
			f.ports++
		} else {
			f.silent++
		}
	}
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
	switch {
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
	return a.snapshot == nil && a.ovs.Synced() && a.ovs.Connected() && a.life != "" && a.restart == nil && !a.bare
}

// serves tells the cluster that the node serves pods, if it does. It tells when it wants to be called again.
func (a *agent) serves() time.Duration {
	n := a.ownNode()
	if n == nil || !a.synced || a.passErr != nil {
		return 0
	}
	return a.condition.serves(time.Now(), n.NetworkUnavailable)
}

// reportOps adds to a report what ops.go knows.
func (a *agent) reportOps(r *report.Report) {
	r.Neglected = a.vitals.neglected(time.Now())
	r.Leaving = !a.vitals.eligible()
	r.Doors = a.doors.report()
	if p := a.looker.report.Load(); p != nil {
		r.Parts = append(r.Parts, *p)
	}
	if a.config.Process.Manifests == "" {
		r.API = new(a.api.report())
	}
}

// measure gives the metrics that are asked for. Any goroutine may call it.
func (a *agent) measure(give put) {
	now, f := time.Now(), a.figures.Load()
	give("hairpin_ready", one(a.vitals.notReady(now) == ""))
	give("hairpin_data_plane_kept", one(a.vitals.neglected(now) == ""))
	give("hairpin_node_eligible", one(a.vitals.eligible()))
	give("hairpin_problems", float64(f.problems))
	give("hairpin_pods", float64(len(a.cni.Pods())))
	give("hairpin_ovs_restarts_total", float64(f.restarts))
	give("hairpin_snapshot_objects", float64(f.nodes), "node")
	give("hairpin_snapshot_objects", float64(f.frontends), "frontend")
	give("hairpin_snapshot_objects", float64(f.backends), "backend")
	give("hairpin_health_check_node_ports", float64(f.ports), "listening")
	give("hairpin_health_check_node_ports", float64(f.silent), "failed")
	if a.config.Process.Manifests == "" {
		give("hairpin_api_reachable", one(a.api.answers()))
	}
	doorValues(give, a.doors)
	for _, s := range a.pass.Status() {
		partValues(give, partOf(s))
	}
	if p := a.looker.report.Load(); p != nil {
		partValues(give, *p)
	}
}

func partValues(give put, p report.Part) {
	give("hairpin_part_in_sync", one(p.InSync), p.System)
	give("hairpin_part_since_timestamp_seconds", float64(p.Since.UnixMilli())/1000, p.System)
	give("hairpin_part_reads_total", float64(p.Reads), p.System)
	give("hairpin_part_applies_total", float64(p.Applies), p.System)
	give("hairpin_part_written_total", float64(p.Written), p.System)
	give("hairpin_part_drift_total", float64(p.Drift), p.System)
	give("hairpin_part_errors_total", float64(p.Errors), p.System)
}
