package agent

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"hairpin/apply/ofctl"
	"hairpin/cluster"
	"hairpin/ops"
	"hairpin/report"
)

// statsTimeout limits what a scrape waits for a daemon that hangs.
const statsTimeout = 2 * time.Second

// measure computes the metrics of a request. Any goroutine may call it.
func (a *agent) measure(give ops.Put) {
	now, f := time.Now(), a.monitor.figures.Load()
	give("hairpin_ready", ops.One(a.monitor.health.NotReady(now) == ""))
	give("hairpin_data_plane_kept", ops.One(a.monitor.health.DataplaneError(now) == ""))
	give("hairpin_node_eligible", ops.One(a.monitor.health.Eligible()))
	give("hairpin_problems", float64(f.problems))
	give("hairpin_pods", float64(len(a.pods.cni.Pods())))
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
	a.measureNode(give, f)
	a.measureLimits(give)
	a.measureSwitch(give, f)
	a.measureOVN(give)
	give("hairpin_policy_isolated_pods", float64(f.isolated))
	a.monitor.policies.Measure(give, f.flows, a.targets.Bridge.FeatureCounts)
	a.monitor.listeners.Measure(give)
	for _, s := range a.pass.Status() {
		partValues(give, partOf(s))
	}
	if p := a.host.scanner.Report.Load(); p != nil {
		partValues(give, *p)
	}
	if r := a.redirectedPackets(); r != nil {
		give("hairpin_redirect_packets_total", float64(r.Requests), "requests")
		give("hairpin_redirect_packets_total", float64(r.Replies), "replies")
		give("hairpin_redirect_packets_total", float64(r.Fragments), "fragments")
		give("hairpin_redirect_packets_total", float64(r.NoRoute), "no route")
	}
}

// sizes counts the objects of a Snapshot. It runs only on request, because it visits each Frontend.
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

// measureLimits measures the usage of Open vSwitch's limits.
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

// measureSwitch measures Open vSwitch, and the conntrack tables.
func (a *agent) measureSwitch(give ops.Put, f *figures) {
	ctx, cancel := context.WithTimeout(context.Background(), statsTimeout)
	defer cancel()
	s, err := a.targets.Bridge.Stats(ctx)
	if err != nil {
		a.log.Debug("read figures of Open vSwitch", "error", err)
	}
	if s.Objects != nil && err == nil {
		give("hairpin_openvswitch_upcalls_total", float64(s.Missed))
		give("hairpin_openvswitch_dropped_packets_total", float64(s.Lost), "lost upcalls")
	}
	for of, n := range s.Objects {
		give("hairpin_openvswitch_objects", float64(n), of)
	}
	for reason, n := range s.Drops {
		give("hairpin_openvswitch_dropped_packets_total", float64(n), reason)
	}
	conntrack := map[string]*ofctl.Usage{"kernel": kernelConntrack(), "userspace": s.Connections}
	for table, u := range conntrack {
		if u != nil {
			give("hairpin_conntrack_entries", float64(u.Used), table)
			give("hairpin_conntrack_entries_limit", float64(u.Limit), table)
		}
	}
	give("hairpin_openvswitch_planned", float64(f.flows.Len()), "flows")
	give("hairpin_openvswitch_planned", float64(f.groups), "groups")
	a.monitor.drops.Measure(give, a.config.Cluster.Gateway.Interface, f.flows, a.targets.Bridge)
}

// kernelConntrack returns the use of the host's conntrack table; nil without one.
func kernelConntrack() *ofctl.Usage {
	read := func(name string) int {
		text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_" + name)
		if err != nil {
			return -1
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			return -1
		}
		return n
	}
	u := ofctl.Usage{Used: read("count"), Limit: read("max")}
	if u.Used < 0 || u.Limit < 0 {
		return nil
	}
	return &u
}

// measureOVN measures the node's OVN.
func (a *agent) measureOVN(give ops.Put) {
	ctx, cancel := context.WithTimeout(context.Background(), statsTimeout)
	defer cancel()
	s := a.targets.NB.Stats(ctx)
	for c, yes := range s.Connected {
		give("hairpin_ovn_connected", ops.One(yes), c[0], c[1])
	}
	for database, n := range s.Cells {
		give("hairpin_ovn_database_cells", float64(n), database)
	}
	for _, d := range slices.Concat(a.targets.NB.Daemons(), a.targets.Bridge.Daemons()) {
		give("hairpin_daemon_responds", ops.One(d.Unresponsive() == nil), d.Name)
	}
}

// measureNode measures what the loop has published.
func (a *agent) measureNode(give ops.Put, f *figures) {
	give("hairpin_pending_since_timestamp_seconds", float64(a.monitor.pending.Load())/1000)
	if ovn := a.targets.OVNVersion(); ovn != "" && f.openvswitch != "" {
		give("hairpin_node_info", 1, a.config.Cluster.Gateway.Mode, a.config.Cluster.ServiceEngine, f.datapath,
			f.openvswitch, ovn)
	}
	give("hairpin_services_without_local_endpoints", float64(withoutLocal(f.snapshot, a.node)))
	give("hairpin_egress_node_addresses", float64(f.egress))
	give("hairpin_egress_unreachable_nodes", float64(len(a.egress.prober.Unreachable())))
}

// withoutLocal counts the Services with externalTrafficPolicy Local that have ready endpoints, but
// none on the node.
func withoutLocal(s *cluster.Snapshot, name string) (count int) {
	if s == nil || s.Node(name) == nil {
		return 0
	}
	node := s.Node(name)
	const elsewhere, local = 1, 2
	services := map[cluster.Owner]int{}
	for _, f := range s.Frontends {
		for i := range f.Backends {
			switch b := &f.Backends[i]; {
			case !f.ExternalLocal || !b.Ready:
			case node.HasEndpoint(b):
				services[f.Owner] = local
			default:
				services[f.Owner] = max(services[f.Owner], elsewhere)
			}
		}
	}
	for _, where := range services {
		if where == elsewhere {
			count++
		}
	}
	return count
}
