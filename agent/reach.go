package agent

import (
	"context"
	"sync"

	"hairpin/cluster"
	"hairpin/retry"
	"hairpin/signal"
)

// reach finds out which pods on claims.ServiceBridge can be reached: a CNI ADD waits for that. It
// knows pods by the Interface row of their port. A port that was removed and made anew keeps its
// name, but has another row, and flows that are not written yet.
type reach struct {
	tell func(rows map[string]bool)
	wake signal.Signal

	mu      sync.Mutex
	planned map[string]bool // by row: ports of pods, true when their flows are on the bridge
	inOVN   map[string]bool // by row: those that OVN's database knows, true when its flows lead to them
}

func newReach(tell func(map[string]bool)) *reach {
	return &reach{tell: tell, wake: signal.New()}
}

// note takes what a pass has done for the pods that it was planned with.
func (r *reach) note(pods []*cluster.Pod, written func(port string) bool, inOVN bool) {
	r.mu.Lock()
	planned, known := map[string]bool{}, map[string]bool{}
	ask := false
	for _, p := range pods {
		planned[p.PortRow] = r.planned[p.PortRow] || written(p.Port)
		if leads, was := r.inOVN[p.PortRow]; was || inOVN {
			known[p.PortRow] = leads
			ask = ask || !leads
		}
	}
	r.planned, r.inOVN = planned, known
	r.mu.Unlock()
	r.publish()
	if ask {
		r.wake.Notify()
	}
}

// run asks, until ctx ends, whether OVN's flows lead to pods that its database knows. sync returns
// when all in the database is in flows.
func (r *reach) run(ctx context.Context, sync func(context.Context) error) {
	for r.wake.Wait(ctx) {
		for list := r.unknown(); len(list) > 0 && ctx.Err() == nil; list = r.unknown() {
			limited, cancel := context.WithTimeout(ctx, programmingLimit)
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

// unknown are those of whom it is not known that OVN's flows lead to them.
func (r *reach) unknown() (list []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for row, known := range r.inOVN {
		if !known {
			list = append(list, row)
		}
	}
	return list
}

// publish tells of those that can be reached.
func (r *reach) publish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	reached := map[string]bool{}
	for row, written := range r.planned {
		if written && r.inOVN[row] {
			reached[row] = true
		}
	}
	r.tell(reached)
}
