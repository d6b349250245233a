package agent

import (
	"context"
	"sync"

	"hairpin/cluster"
	"hairpin/retry"
	"hairpin/signal"
)

// reach finds out which pods on claims.ServiceBridge can be reached: a CNI ADD waits for that. It
// knows pods by the name of their port, which is never reused.
type reach struct {
	tell func(ports map[string]bool)
	wake signal.Signal

	mu      sync.Mutex
	planned map[string]bool // ports of pods, true when their flows are on the bridge
	rows    map[string]bool // those that OVN's database knows, true when its flows lead to them
}

func newReach(tell func(map[string]bool)) *reach {
	return &reach{tell: tell, wake: signal.New()}
}

// note takes what a pass has done for the pods that it was planned with.
func (r *reach) note(pods []*cluster.Pod, written func(port string) bool, inOVN bool) {
	r.mu.Lock()
	planned, rows := map[string]bool{}, map[string]bool{}
	ask := false
	for _, p := range pods {
		planned[p.Port] = r.planned[p.Port] || written(p.Port)
		if known, was := r.rows[p.Port]; was || inOVN {
			rows[p.Port] = known
			ask = ask || !known
		}
	}
	r.planned, r.rows = planned, rows
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
			for _, port := range list {
				if _, still := r.rows[port]; still {
					r.rows[port] = true
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
	for port, known := range r.rows {
		if !known {
			list = append(list, port)
		}
	}
	return list
}

// publish tells of those that can be reached.
func (r *reach) publish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	reached := map[string]bool{}
	for port, written := range r.planned {
		if written && r.rows[port] {
			reached[port] = true
		}
	}
	r.tell(reached)
}
