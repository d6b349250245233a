package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"hairpin/watch"
)

// sayAssignments says which node has each egress address and load balancer address, and again when
// that changes, until ctx ends: a connection that left with a wrong address is judged by it.
func (r *run) sayAssignments(ctx context.Context) {
	last := map[string]string{} // address → node
	for ; ctx.Err() == nil; sleep(ctx, 200*time.Millisecond) {
		now, err := r.assignments(ctx)
		if err != nil {
			continue // the API server may be away
		}
		for _, a := range slices.Sorted(maps.Keys(last)) {
			if now[a] == "" {
				r.progress("%s is on no node", a)
			}
		}
		for _, a := range slices.Sorted(maps.Keys(now)) {
			if now[a] != last[a] {
				r.progress("%s is on %s", a, now[a])
			}
		}
		last = now
	}
}

// assignments returns the node of each assigned address.
func (r *run) assignments(ctx context.Context) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var egress struct {
		Items []struct {
			Status struct {
				Items []struct{ EgressIP, Node string }
			}
		}
	}
	var pools struct {
		Items []struct {
			Status struct {
				Addresses []struct{ Address, Node string }
			}
		}
	}
	for path, list := range map[string]any{watch.EgressIPPath(): &egress, watch.PoolPath(): &pools} {
		text, err := r.cluster.Client().CoreV1().RESTClient().Get().AbsPath(path).DoRaw(ctx)
		if err == nil {
			err = json.Unmarshal(text, list)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
	}
	nodes := map[string]string{}
	for _, e := range egress.Items {
		for _, x := range e.Status.Items {
			nodes[x.EgressIP] = x.Node
		}
	}
	for _, p := range pools.Items {
		for _, x := range p.Status.Addresses {
			if x.Node != "" {
				nodes[x.Address] = x.Node
			}
		}
	}
	return nodes, nil
}
