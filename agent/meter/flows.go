// Package meter computes metrics of the agent that need a memory: packets that policies accept and
// that flows drop, from counters that start again at 0 when a flow is added again; and how long
// changes of endpoints take until they are in this node's flows.
package meter

import (
	"context"
	"strings"
	"sync"
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

// readLimit limits what a scrape waits for a switch that hangs.
const readLimit = 2 * time.Second

// totals adds up the packet counts of flows, by what a flow counts. Open vSwitch counts from 0
// again when a flow is removed and added, and a scrape must not.
type totals[M comparable] struct {
	mu     sync.Mutex
	counts map[flow.Key]uint64 // of the last scrape
	sums   map[M]uint64
}

// add adds what was counted since the last scrape. It forgets what no flow counts any more, unless
// it is kept.
func (t *totals[M]) add(meters map[flow.Key]M, counts map[flow.Key]uint64, keep bool) {
	sums := map[M]uint64{}
	if keep {
		sums = t.sums
	}
	if sums == nil {
		sums = map[M]uint64{}
	}
	for k, m := range meters {
		n, before := counts[k], t.counts[k]
		if n >= before {
			n -= before // else the flow is another one
		}
		if _, known := sums[m]; !known {
			sums[m] = t.sums[m]
		}
		sums[m] += n
	}
	t.counts, t.sums = counts, sums
}

// Policies adds up the packet counts of policies' flows.
type Policies struct{ totals[policyMeter] }

// policyMeter is what a flow counts: packets that a policy accepts or denies, or those of an
// isolated pod that no rule accepts.
type policyMeter struct {
	owner          cluster.Owner
	egress, denied bool
}

// policyMeterOf returns false for a flow that counts nothing, such as a clause of a conjunction, or
// a rule that passes packets to the next tier.
func policyMeterOf(f *flow.Flow) (m policyMeter, ok bool) {
	to, _ := f.Actions[0].(flow.Resubmit)
	accepted := uint8(pipeline.SvcConntrackCommit)
	switch f.Table {
	case pipeline.SvcEgressAdmin, pipeline.SvcEgressRule, pipeline.SvcEgressBaseline:
		m.egress, accepted = true, pipeline.SvcIngressClassifier
	case pipeline.SvcIngressAdmin, pipeline.SvcIngressRule, pipeline.SvcIngressBaseline:
	default:
		return m, false
	}
	m.owner, m.denied = f.Owner, to.Table == pipeline.SvcPolicyDrop
	return m, f.Feature == claims.FeaturePolicies && f.Owner.Kind != "Node" && (m.denied || to.Table == accepted)
}

// Measure gives the metrics of policies. flows are those of the plan, and read reads the counts of
// a feature. It reads nothing on a node without policies.
func (p *Policies) Measure(give ops.Put, flows delta.Map[flow.ID, *flow.Flow],
	read func(context.Context, uint32) (map[flow.Key]uint64, error)) {
	meters := map[flow.Key]policyMeter{}
	for _, f := range flows.All() {
		if m, ok := policyMeterOf(f); ok {
			meters[f.Key] = m
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(meters) == 0 {
		p.counts, p.sums = nil, nil
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), readLimit)
	defer cancel()
	if counts, err := read(ctx, claims.FeaturePolicies); err == nil { // else the last totals stay
		p.add(meters, counts, false)
	}
	for m, n := range p.sums {
		direction := "ingress"
		if m.egress {
			direction = "egress"
		}
		name := strings.TrimPrefix(m.owner.Namespace+"/"+m.owner.Name, "/")
		switch {
		case m.owner.Kind == "Pod":
			give("hairpin_policy_dropped_packets_total", float64(n), m.owner.Namespace, m.owner.Name, direction)
		case m.denied:
			give("hairpin_policy_denied_packets_total", float64(n), name, direction)
		default:
			give("hairpin_policy_packets_total", float64(n), name, direction)
		}
	}
}

// dropMeter is what a flow that drops counts, or a table without a matching flow.
type dropMeter struct{ bridge, reason string }

// Drops adds up the packet counts of flows that drop. Those of br-svc without a flow have a
// key without a match.
type Drops struct{ totals[dropMeter] }

// Measure gives the drops of Hairpin's flows. gateway is the name of the gateway bridge.
func (d *Drops) Measure(give ops.Put, gateway string, flows delta.Map[flow.ID, *flow.Flow], t *ofctl.Target) {
	meters := map[flow.Key]dropMeter{}
	for _, f := range flows.All() {
		if reason := svcbridge.DropReason(f); reason != "" {
			meters[f.Key] = dropMeter{f.Bridge, reason}
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), readLimit)
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
