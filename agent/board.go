package agent

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"hairpin/apply"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/egress/view"
	"hairpin/hostnet/uplink"
	"hairpin/report"
	"hairpin/signal"
	"hairpin/targets"
)

// roundResult is the result of a round of the loop. Requests read it and never wait for the loop,
// which may be blocked by other processes.
type roundResult struct {
	round        uint64            // see inbox.wakeRound
	snapshot     *cluster.Snapshot // of the cluster, with the actual nodes of egress addresses
	base         *cluster.Snapshot // snapshot as it was read
	all          *cluster.Snapshot // snapshot with this node's own facts; nil before the first plan
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

// board holds the newest roundResult.
type board struct {
	mu   sync.Mutex
	now  roundResult
	next signal.Broadcast // notified at each put
}

func (b *board) put(k roundResult) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = k
	b.next.Notify()
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
		next := a.board.next.Next()
		a.board.mu.Lock()
		k := a.board.now
		a.board.mu.Unlock()
		if k.round >= round {
			return k
		}
		select {
		case <-next:
		case <-end.C:
			return k
		case <-ctx.Done():
			return k
		}
	}
}

// post publishes the result of a round.
func (a *agent) post(round uint64) {
	a.board.put(roundResult{
		round: round, snapshot: a.snapshot, base: a.egress.view.Base, carriers: a.egress.carriers, all: a.planned.all,
		sourceErr: a.sourceErr, want: a.planned.want, reason: a.notReady(), problems: a.planned.problems,
		listenErrors: a.monitor.listenErrors, nodeProblems: slices.Concat(a.egress.view.Conflicts(), a.nodeProblems()),
		restarts: a.vswitch.Restarts, openvswitch: a.openvswitch(), isolated: a.planned.planner.IsolatedPods(),
	})
}

// openvswitch describes the node's Open vSwitch. It returns nil until the version is known.
func (a *agent) openvswitch() *report.Switch {
	if a.vswitch.Version == "" {
		return nil
	}
	x := report.Switch{Version: a.vswitch.Version, Userspace: a.host.found.Gateway.Userspace}
	x.TSO = x.Userspace && uplink.TSO(a.ovs.View())
	x.Faults = targets.Faults(x.Version, x.Userspace, x.TSO)
	return &x
}

// report returns the agent's report. A brief report omits the cluster's egress addresses: it takes
// half a second to find the next node of each, with 1 000 EgressIPs on 100 nodes. Any goroutine may
// call report.
func (a *agent) report(k roundResult, brief bool) report.Report {
	r := report.Report{
		Node: a.node, Version: report.Version(), Reason: k.reason, Pods: len(a.pods.cni.Pods()), Restarts: k.restarts,
		NoRepair: !a.config.Process.Repair, Engine: a.config.Cluster.ServiceEngine, Switch: k.openvswitch,
	}
	r.Ready = r.Reason == ""
	for _, s := range a.pass.Status() {
		if s.System != datapath.Redirect.System || a.redirects() || !s.InSync {
			r.Parts = append(r.Parts, partOf(s))
		}
	}
	for _, p := range cluster.SortProblems(slices.Concat(k.problems, k.listenErrors, k.nodeProblems)) {
		r.Problems = append(r.Problems, p.Error())
	}
	a.reportOps(&r)
	if k.snapshot != nil && !brief {
		r.Egress = view.Report(k.snapshot, k.base)
		k.carriers.setSince(r.Egress)
	}
	if k.snapshot != nil {
		r.Services = len(k.snapshot.Frontends)
		r.IsolatedPods = k.isolated
		for _, p := range k.snapshot.Policies {
			if p.Tier == cluster.TierNetworkPolicy {
				r.NetworkPolicies++
			} else {
				r.ClusterNetworkPolicies++
			}
		}
	}
	return r
}

func partOf(s apply.Status) report.Part {
	p := report.Part{System: s.System, InSync: s.InSync, Since: s.Since, Reads: s.Reads, Applies: s.Applies,
		Written: s.Written, Drift: s.Drift, Errors: s.Errors}
	if s.Err != nil {
		p.Error = s.Err.Error()
	}
	return p
}

// newest returns the Snapshot with the most facts.
func (k *roundResult) newest() (*cluster.Snapshot, error) {
	switch {
	case k.all != nil:
		return k.all, nil
	case k.snapshot != nil:
		return k.snapshot, nil
	}
	return nil, fmt.Errorf("the cluster is not known yet: %w", k.sourceErr)
}

// errNotPlanned returns why there is no desired state; nil if there is one.
func (k *roundResult) errNotPlanned() error {
	if k.want.NB == nil {
		return fmt.Errorf("nothing is planned for this node: %s", k.reason)
	}
	return nil
}

// writeError answers a request with err, and reports whether err is not nil.
func writeError(w http.ResponseWriter, err error) bool {
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
	return err != nil
}
