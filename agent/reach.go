package agent

import (
	"context"
	"sync"
	"time"

	"hairpin/cluster"
	"hairpin/cni"
	"hairpin/retry"
	"hairpin/signal"
)

// syncLimit is how long OVN's flows may take before the wait for them starts again.
const syncLimit = time.Minute

// podReach determines which pods on claims.ServiceBridge are reachable: a CNI ADD waits for that.
// It identifies pods by the Interface row of their port. A port that was removed and made again
// keeps its name, but has another row, and flows that are not written yet. A pod is not reachable
// before the plan knew its object: without its labels, the plan has none of its policies.
type podReach struct {
	report func(rows map[string]error)
	wake   signal.Signal

	mu sync.Mutex
	// By row of pods' ports:
	unread  map[string]bool // the last plan did not know their objects
	written map[string]bool // the flows that were planned with their objects are on the bridge
	inOVN   map[string]bool // pods in OVN's database; true: OVN's flows lead to them
}

func newPodReach(report func(map[string]error)) *podReach {
	return &podReach{report: report, wake: signal.New()}
}

// record records the result of a pass for the pods of its plan.
func (r *podReach) record(pods []*cluster.Pod, written func(port string) bool, inOVN bool) {
	r.mu.Lock()
	nowWritten, nowInOVN, unread := map[string]bool{}, map[string]bool{}, map[string]bool{}
	unknown := false
	for _, p := range pods {
		nowWritten[p.PortRow] = r.written[p.PortRow] || !p.Unread && written(p.Port)
		unread[p.PortRow] = p.Unread
		if hasFlows, earlier := r.inOVN[p.PortRow]; earlier || inOVN {
			nowInOVN[p.PortRow] = hasFlows
			unknown = unknown || !hasFlows
		}
	}
	r.written, r.inOVN, r.unread = nowWritten, nowInOVN, unread
	r.mu.Unlock()
	r.publish()
	if unknown {
		r.wake.Notify()
	}
}

// run checks, until ctx ends, whether OVN's flows lead to the pods in its database. sync returns
// when everything in the database is in flows.
func (r *podReach) run(ctx context.Context, sync func(context.Context) error) {
	for r.wake.Wait(ctx) {
		for list := r.unknown(); len(list) > 0 && ctx.Err() == nil; list = r.unknown() {
			limited, cancel := context.WithTimeout(ctx, syncLimit)
			err := sync(limited)
			cancel()
			if err != nil {
				retry.Sleep(ctx, retry.Last)
				continue
			}
			r.mu.Lock()
			for _, row := range list {
				if _, still := r.inOVN[row]; still {
					r.inOVN[row] = true
				}
			}
			r.mu.Unlock()
			r.publish()
		}
	}
}

// unknown returns the rows for which it is not known whether OVN's flows lead to them.
func (r *podReach) unknown() (list []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for row, known := range r.inOVN {
		if !known {
			list = append(list, row)
		}
	}
	return list
}

// publish reports the reachable pods, and those that lack their objects.
func (r *podReach) publish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	reached := map[string]error{}
	for row, written := range r.written {
		switch {
		case written && r.inOVN[row]:
			reached[row] = nil
		case r.unread[row]:
			reached[row] = cni.ErrUnread
		}
	}
	r.report(reached)
}
