package agent

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"hairpin/apply/ofctl"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/delta"
	"hairpin/ops"
	"hairpin/pipeline"
	"hairpin/plan/svcbridge"
)

// statsTimeout limits what a scrape waits for a daemon that hangs.
const statsTimeout = 2 * time.Second

// dropMeter is what a flow that drops counts, or a table without a matching flow.
type dropMeter struct{ bridge, reason string }

// dropMeters adds up the packet counts of flows that drop. Those of br-svc without a flow have a
// key without a match.
type dropMeters struct{ totals[dropMeter] }

// measure gives the drops of Hairpin's flows. gateway is the name of the gateway bridge.
func (d *dropMeters) measure(give ops.Put, gateway string, flows delta.Map[flow.ID, *flow.Flow], t *ofctl.Target) {
	meters := map[flow.Key]dropMeter{}
	for _, f := range flows.All() {
		if reason := svcbridge.DropReason(f); reason != "" {
			meters[f.Key] = dropMeter{f.Bridge, reason}
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), statsTimeout)
	defer cancel()
	counts, err := t.DropCounts(ctx)
	missed, failed := t.Missed(ctx)
	if err == nil && failed == nil && len(meters) > 0 { // else the last totals stay
		for table, n := range missed {
			k := flow.Key{Bridge: claims.ServiceBridge, Table: table}
			if _, planned := flows.Get(k.ID()); planned {
				continue // its last flow matches everything
			}
			counts[k] = n
			meters[k] = dropMeter{k.Bridge, svcbridge.TableReason(pipeline.Service, table)}
		}
		d.add(meters, counts, true)
	}
	for m, n := range d.sums {
		bridge := m.bridge
		if bridge == "" {
			bridge = gateway
		}
		give("hairpin_dropped_packets_total", float64(n), bridge, m.reason)
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
	a.monitor.drops.measure(give, a.config.Cluster.Gateway.Interface, f.flows, a.targets.Bridge)
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
	s := a.targets.NB.Stats(ctx, a.config.Process.OVNRunDir)
	for c, yes := range s.Connected {
		give("hairpin_ovn_connected", ops.One(yes), c[0], c[1])
	}
	for database, n := range s.Cells {
		give("hairpin_ovn_database_cells", float64(n), database)
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
