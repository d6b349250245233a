package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"hairpin/apply"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/retry"
	"hairpin/signal"
)

// reach finds out which pods on claims.ServiceBridge can be reached: who is added waits for that. Ports stand for pods: no two have the same, ever.
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

// noteReach notes what the last pass has done for pods, and gives what it could not do for anybody else: a pod whose port is not there yet, or
// cannot be opened, is of no concern to others.
func (a *agent) noteReach() error {
	var errs []error
	var missing []string // devices
	written := true
	for _, s := range a.pass.Status() {
		var waiting *apply.Waiting
		switch {
		case s.Err == nil:
		case s.System == datapath.Bridge.System && errors.As(s.Err, &waiting):
			missing = waiting.Devices
			if slices.ContainsFunc(missing, func(d string) bool { return !strings.HasPrefix(d, claims.PodInterface) }) {
				errs = append(errs, s.Err)
			}
		default:
			errs = append(errs, s.Err)
			written = written && s.System != datapath.Bridge.System
		}
	}
	if a.found.Gateway.OpenFlow {
		if slices.Contains(missing, claims.ServiceBridge) {
			written = false
		}
		a.reach.note(a.planned.pods, func(port string) bool { return written && !slices.Contains(missing, port) }, a.applied(datapath.NB.System) == nil)
	}
	return errors.Join(errs...)
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

// run asks, until ctx ends, whether OVN's flows lead to pods that its database knows. sync returns when all in the database is in flows.
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
