package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/report"
	"hairpin/signal"
)

// roundResult is the result of a round of the loop. Requests read it and never wait for the loop,
// which may be blocked by other processes.
type roundResult struct {
	round        uint64            // see inbox.wakeRound
	base         *cluster.Snapshot // of the cluster, as it was read
	snapshot     *cluster.Snapshot // base with this agent's view of egress addresses
	merged       *cluster.Snapshot // the planned snapshot, with this node's own facts; nil before the first plan
	sourceErr    error             // why snapshot is nil
	want         datapath.State
	reason       string // why the node is not ready
	problems     []cluster.Problem
	listenErrors []cluster.Problem
	nodeProblems []cluster.Problem // conflicts with other machines, and problems of this node outside its plan
	restarts     uint64
	openvswitch  *report.Switch
	isolated     int // own pods that policies isolate
	carriers     egressCarriers
}

// lastResult holds the newest roundResult.
type lastResult struct {
	mu      sync.Mutex
	result  roundResult
	changed signal.Broadcast // notified at each set
}

func (l *lastResult) set(r roundResult) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.result = r
	l.changed.Notify()
}

func (l *lastResult) get() roundResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.result
}

// latestTimeout limits how long a request waits until the loop has processed earlier events.
const latestTimeout = 250 * time.Millisecond

// latest returns the newest roundResult. It includes everything that happened before the call,
// unless the loop is busy for longer than latestTimeout.
func (a *agent) latest(ctx context.Context) roundResult {
	round := a.inbox.wakeRound()
	end := time.NewTimer(latestTimeout)
	defer end.Stop()
	for {
		next := a.lastResult.changed.Next()
		r := a.lastResult.get()
		if r.round >= round {
			return r
		}
		select {
		case <-next:
		case <-end.C:
			return r
		case <-ctx.Done():
			return r
		}
	}
}

// publishResult publishes the result of a round.
func (a *agent) publishResult(round uint64) {
	a.lastResult.set(roundResult{
		round: round, snapshot: a.snapshot, base: a.egress.view.Base, merged: a.planned.merged,
		carriers: a.egress.carriers, sourceErr: a.sourceErr, want: a.planned.want, reason: a.notReady(),
		problems:     a.planned.problems,
		listenErrors: a.monitor.listenErrors, nodeProblems: slices.Concat(a.egress.view.Conflicts(), a.nodeProblems()),
		restarts: a.vswitch.Restarts, openvswitch: a.openvswitch(), isolated: a.planned.planner.IsolatedPods(),
	})
}

// fullestSnapshot returns the Snapshot with the most facts.
func (r *roundResult) fullestSnapshot() (*cluster.Snapshot, error) {
	switch {
	case r.merged != nil:
		return r.merged, nil
	case r.snapshot != nil:
		return r.snapshot, nil
	}
	return nil, fmt.Errorf("the cluster is not known yet: %w", r.sourceErr)
}

// errNotPlanned returns why there is no desired state; nil if there is one.
func (r *roundResult) errNotPlanned() error {
	if r.want.NB == nil {
		return fmt.Errorf("nothing is planned for this node: %s", r.reason)
	}
	return nil
}
