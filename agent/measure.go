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
func (a *agent) measure(put ops.Put) {
	now, f := time.Now(), a.monitor.figures.Load()
	put("hairpin_ready", ops.One(a.monitor.health.NotReady(now) == ""))
	put("hairpin_data_plane_kept", ops.One(a.monitor.health.DataplaneError(now) == ""))
	put("hairpin_node_eligible", ops.One(a.monitor.health.Eligible()))
	put("hairpin_problems", float64(f.problems))
	put("hairpin_pods", float64(len(a.pods.cni.Pods())))
	put("hairpin_ovs_restarts_total", float64(f.restarts))
	nodes, frontends, backends := sizes(f.snapshot)
	put("hairpin_snapshot_objects", float64(nodes), "node")
	put("hairpin_snapshot_objects", float64(frontends), "frontend")
	put("hairpin_snapshot_objects", float64(backends), "backend")
	put("hairpin_health_check_node_ports", float64(f.ports), "listening")
	put("hairpin_health_check_node_ports", float64(f.failed), "failed")
	if a.config.Process.Manifests == "" {
		put("hairpin_api_reachable", ops.One(a.api.Answers()))
	}
	a.measureNode(put, f)
	a.measureLimits(put)
	a.measureSwitch(put, f)
	a.measureOVN(put)
	put("hairpin_policy_isolated_pods", float64(f.isolated))
	a.monitor.policies.Measure(put, f.flows, a.targets.Bridge.FeatureCounts)
	a.monitor.listeners.Measure(put)
	for _, s := range a.pass.Status() {
		partValues(put, partOf(s))
	}
	if p := a.host.scanner.Report.Load(); p != nil {
		partValues(put, *p)
	}
	if r := a.redirectedPackets(); r != nil {
		put("hairpin_redirect_packets_total", float64(r.Requests), "requests")
		put("hairpin_redirect_packets_total", float64(r.Replies), "replies")
		put("hairpin_redirect_packets_total", float64(r.Fragments), "fragments")
		put("hairpin_redirect_packets_total", float64(r.NoRoute), "no route")
	}
}

// sizes counts objects of a Snapshot. It visits each Frontend, so it runs only on request.
func sizes(s *cluster.Snapshot) (nodes, frontends, backends int) {
	if s == nil {
		return 0, 0, 0
	}
	for _, f := range s.Frontends {
		backends += len(f.Backends)
	}
	return len(s.Nodes), len(s.Frontends), backends
}

func partValues(put ops.Put, p report.Part) {
	put("hairpin_part_in_sync", ops.One(p.InSync), p.System)
	put("hairpin_part_since_timestamp_seconds", float64(p.Since.UnixMilli())/1000, p.System)
	put("hairpin_part_reads_total", float64(p.Reads), p.System)
	put("hairpin_part_applies_total", float64(p.Applies), p.System)
	put("hairpin_part_written_total", float64(p.Written), p.System)
	put("hairpin_part_drift_total", float64(p.Drift), p.System)
	put("hairpin_part_errors_total", float64(p.Errors), p.System)
}

// measureLimits measures the usage of Open vSwitch's limits.
func (a *agent) measureLimits(put ops.Put) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	connections, clients, err := a.targets.Bridge.Usage(ctx)
	if err != nil {
		a.log.Debug("count entries of Open vSwitch", "error", err)
	}
	for of, u := range map[string]*ofctl.Usage{"connections": connections, "affinity clients": clients} {
		if u != nil {
			put("hairpin_openvswitch_entries", float64(u.Used), of)
			put("hairpin_openvswitch_entries_limit", float64(u.Limit), of)
		}
	}
}

// measureSwitch measures Open vSwitch, and the conntrack tables.
func (a *agent) measureSwitch(put ops.Put, f *figures) {
	ctx, cancel := context.WithTimeout(context.Background(), statsTimeout)
	defer cancel()
	s, err := a.targets.Bridge.Stats(ctx)
	if err != nil {
		a.log.Debug("read statistics of Open vSwitch", "error", err)
	}
	if s.Objects != nil && err == nil {
		put("hairpin_openvswitch_upcalls_total", float64(s.Missed))
		put("hairpin_openvswitch_dropped_packets_total", float64(s.Lost), "lost upcalls")
	}
	for of, n := range s.Objects {
		put("hairpin_openvswitch_objects", float64(n), of)
	}
	for reason, n := range s.Drops {
		put("hairpin_openvswitch_dropped_packets_total", float64(n), reason)
	}
	conntrack := map[string]*ofctl.Usage{"kernel": kernelConntrack(), "userspace": s.Connections}
	for table, u := range conntrack {
		if u != nil {
			put("hairpin_conntrack_entries", float64(u.Used), table)
			put("hairpin_conntrack_entries_limit", float64(u.Limit), table)
		}
	}
	put("hairpin_openvswitch_planned", float64(f.flows.Len()), "flows")
	put("hairpin_openvswitch_planned", float64(f.groups), "groups")
	a.monitor.drops.Measure(put, a.config.Cluster.Gateway.Interface, f.flows, a.targets.Bridge)
}

// kernelConntrack returns the usage of the kernel's conntrack table; nil without one.
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
func (a *agent) measureOVN(put ops.Put) {
	ctx, cancel := context.WithTimeout(context.Background(), statsTimeout)
	defer cancel()
	s := a.targets.NB.Stats(ctx)
	for c, yes := range s.Connected {
		put("hairpin_ovn_connected", ops.One(yes), c[0], c[1])
	}
	for database, n := range s.Cells {
		put("hairpin_ovn_database_cells", float64(n), database)
	}
	for _, d := range slices.Concat(a.targets.NB.Daemons(), a.targets.Bridge.Daemons()) {
		put("hairpin_daemon_responds", ops.One(d.Unresponsive() == nil), d.Name)
	}
}

// measureNode measures pending changes, versions, Services without local endpoints, and egress.
func (a *agent) measureNode(put ops.Put, f *figures) {
	put("hairpin_pending_since_timestamp_seconds", float64(a.monitor.pending.Load())/1000)
	if ovn := a.targets.OVNVersion(); ovn != "" && f.openvswitch != "" {
		put("hairpin_node_info", 1, a.config.Cluster.Gateway.Mode, a.config.Cluster.ServiceEngine, f.datapath,
			f.openvswitch, ovn)
	}
	put("hairpin_services_without_local_endpoints", float64(withoutLocal(f.snapshot, a.node)))
	put("hairpin_egress_node_addresses", float64(f.egress))
	put("hairpin_egress_unreachable_nodes", float64(len(a.egress.prober.Unreachable())))
}

// withoutLocal counts the Services with externalTrafficPolicy Local that have ready endpoints, but
// none on the node.
func withoutLocal(s *cluster.Snapshot, name string) (count int) {
	if s == nil || s.Node(name) == nil {
		return 0
	}
	node := s.Node(name)
	const elsewhere, local = 1, 2 // where ready endpoints are
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
