// Package meter computes metrics of the agent that need a memory: packets that policies accept and
// that flows drop, from counters that start again at 0 when a flow is added again; and how long
// changes of endpoints take until they are in this node's flows.
package meter

import (
	"context"
	"maps"
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

// totals adds up the packet counts of flows. The flows with the same counter, a C, have one sum.
// Open vSwitch counts from 0 again when a flow is removed and added, and a sum must not decrease.
type totals[C comparable] struct {
	mu     sync.Mutex
	counts map[flow.Key]uint64 // of the last scrape
	sums   map[C]uint64
}

// add adds what flows counted since the last scrape to the sums of their counters. A counter that
// no flow has any more is kept or forgotten.
func (t *totals[C]) add(counters map[flow.Key]C, counts map[flow.Key]uint64, keep bool) {
	sums := map[C]uint64{}
	if keep {
		maps.Copy(sums, t.sums)
	}
	for k, c := range counters {
		n, before := counts[k], t.counts[k]
		if n >= before {
			n -= before // else the flow is another one
		}
		if _, known := sums[c]; !known {
			sums[c] = t.sums[c]
		}
		sums[c] += n
	}
	t.counts, t.sums = counts, sums
}

// Policies adds up the packet counts of policies' flows.
type Policies struct{ totals[policyCounter] }

// policyCounter is the counter of a flow: packets that a policy accepts or denies, or those of an
// isolated pod that no rule accepts.
type policyCounter struct {
	owner          cluster.Owner
	egress, denied bool
}

// policyCounterOf returns false for a flow without a counter, such as a clause of a conjunction, or
// a rule that passes packets to the next tier.
func policyCounterOf(f *flow.Flow) (c policyCounter, ok bool) {
	to, _ := f.Actions[0].(flow.Resubmit)
	accepted := uint8(pipeline.SvcConntrackCommit)
	switch f.Table {
	case pipeline.SvcEgressAdmin, pipeline.SvcEgressRule, pipeline.SvcEgressBaseline:
		c.egress, accepted = true, pipeline.SvcIngressClassifier
	case pipeline.SvcIngressAdmin, pipeline.SvcIngressRule, pipeline.SvcIngressBaseline:
	default:
		return c, false
	}
	c.owner, c.denied = f.Owner, to.Table == pipeline.SvcPolicyDrop
	return c, f.Feature == claims.FeaturePolicies && f.Owner.Kind != "Node" && (c.denied || to.Table == accepted)
}

// Measure computes the metrics of policies. flows are those of the plan, and read reads the counts
// of a feature. It reads nothing on a node without policies.
func (p *Policies) Measure(put ops.Put, flows delta.Map[flow.ID, *flow.Flow],
	read func(context.Context, uint32) (map[flow.Key]uint64, error)) {
	counters := map[flow.Key]policyCounter{}
	for _, f := range flows.All() {
		if c, ok := policyCounterOf(f); ok {
			counters[f.Key] = c
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(counters) == 0 {
		p.counts, p.sums = nil, nil
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), readLimit)
	defer cancel()
	if counts, err := read(ctx, claims.FeaturePolicies); err == nil { // else the last totals stay
		p.add(counters, counts, false) // a deleted policy has no metrics
	}
	for c, n := range p.sums {
		direction := "ingress"
		if c.egress {
			direction = "egress"
		}
		name := strings.TrimPrefix(c.owner.Namespace+"/"+c.owner.Name, "/")
		switch {
		case c.owner.Kind == "Pod":
			put("hairpin_policy_dropped_packets_total", float64(n), c.owner.Namespace, c.owner.Name, direction)
		case c.denied:
			put("hairpin_policy_denied_packets_total", float64(n), name, direction)
		default:
			put("hairpin_policy_packets_total", float64(n), name, direction)
		}
	}
}

// dropCounter is the counter of a flow that drops, or of the packets in a table that match no flow.
type dropCounter struct{ bridge, reason string }

// Drops adds up the packet counts of flows that drop, and of packets in br-svc that match no flow.
type Drops struct{ totals[dropCounter] }

// Measure computes the metrics of drops by Hairpin's flows. gateway is the name of the gateway
// bridge.
func (d *Drops) Measure(put ops.Put, gateway string, flows delta.Map[flow.ID, *flow.Flow], t *ofctl.Target) {
	counters := map[flow.Key]dropCounter{}
	for _, f := range flows.All() {
		if reason := svcbridge.DropReason(f); reason != "" {
			counters[f.Key] = dropCounter{f.Bridge, reason}
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), readLimit)
	defer cancel()
	counts, err := t.DropCounts(ctx)
	missed, failed := t.Unmatched(ctx)
	if err == nil && failed == nil && len(counters) > 0 { // else the last totals stay
		for table, n := range missed {
			k := flow.Key{Bridge: claims.ServiceBridge, Table: table} // of no flow: it has no match
			if _, planned := flows.Get(k.ID()); planned {
				continue // its last flow matches everything
			}
			counts[k] = n
			counters[k] = dropCounter{k.Bridge, svcbridge.TableReason(pipeline.Service, table)}
		}
		d.add(counters, counts, true) // the drops of a deleted Service's flow remain drops
	}
	for c, n := range d.sums {
		bridge := c.bridge
		if bridge == "" {
			bridge = gateway
		}
		put("hairpin_dropped_packets_total", float64(n), bridge, c.reason)
	}
}
