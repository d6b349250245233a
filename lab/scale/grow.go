package scale

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/cluster/annotation"
	"hairpin/lab"
)

// podsPerNode returns the number of pods of a node that does not run.
func (w *world) podsPerNode() int { return max(1, w.opt.Pods/w.opt.Nodes) }

// grow adds nodes up to a number, with their pods and EgressIPs, and measures until both real nodes
// reach the last.
func (w *world) grow(ctx context.Context, nodes int) error {
	begin := time.Now()
	first := max(w.size.nodes, len(realNodes)) + 1
	w.size.nodes = nodes
	w.table.Sizes = append(w.table.Sizes, nodes)
	reached, err := w.crowd(ctx, first)
	if err != nil {
		return err
	}
	egress := w.egressIPs(nodes) // after the nodes, so that each gets its share
	if err := parallel(ctx, w.size.egressIPs, egress, w.makeEgressIP); err != nil {
		return err
	}
	w.size.egressIPs = egress
	err = parallel(ctx, first, nodes+1, func(ctx context.Context, i int) error {
		for k := range w.podsPerNode() {
			if err := w.makeOtherPod(ctx, node(i), k, otherPod(node(i), k, 0)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := w.settle(ctx); err != nil {
		return err
	}
	w.say("%d nodes, %d EgressIPs, %d pods each: %.1f s, the last node reached %.1f s after it was written", nodes,
		egress, w.podsPerNode(),
		time.Since(begin).Seconds(), reached.Seconds())
	return nil
}

// crowd writes all nodes from the first on at once. It records the cost and the times of the steps.
func (w *world) crowd(ctx context.Context, first int) (reached time.Duration, err error) {
	before, err := w.work(ctx)
	if err != nil {
		return 0, err
	}
	last := node(w.size.nodes)
	if err := parallel(ctx, first, int(last)+1,
		func(ctx context.Context, i int) error { return w.makeOther(ctx, node(i)) }); err != nil {
		return 0, err
	}
	written := time.Now()
	var numbered, planned time.Duration
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := w.wait(gctx, time.Minute, w.numbered); err != nil {
			return fmt.Errorf("wait for node IDs: %w", err)
		}
		numbered = time.Since(written)
		err := w.wait(gctx, time.Minute, w.planned)
		planned = time.Since(written)
		return err
	})
	g.Go(func() error {
		at, err := w.reached(gctx, last, w.patience(time.Minute))
		reached = at.Sub(written)
		return err
	})
	if err := g.Wait(); err != nil {
		return 0, err
	}
	if err := w.settle(ctx); err != nil {
		return 0, err
	}
	after, err := w.work(ctx)
	if err != nil {
		return 0, err
	}
	w.table.Add("nodes added at once", "", float64(int(last)+1-first))
	w.table.Add("nodes added at once: last write until all have their IDs", "s", numbered.Seconds())
	w.table.Add("nodes added at once: until node-a has flows for all", "s", planned.Seconds())
	w.table.Add("nodes added at once: until the first packet to the last from both real nodes", "s", reached.Seconds())
	for _, name := range daemons() {
		w.table.Add("nodes added at once: CPU of "+name, "s", (after.used[name].CPU - before.used[name].CPU).Seconds())
	}
	for _, name := range computing() {
		w.table.Add("nodes added at once: "+name+" computes all anew", "times",
			float64(after.recomputed[name]-before.recomputed[name]))
	}
	return reached, nil
}

// wait waits until done returns true, which usually takes the usual time.
func (w *world) wait(ctx context.Context, usual time.Duration, done func(context.Context) (bool, error)) error {
	limit, cancel := context.WithTimeoutCause(ctx, w.patience(usual),
		fmt.Errorf("it is not so after %s", w.patience(usual)))
	defer cancel()
	return lab.Poll(limit, 200*time.Millisecond, func() (bool, error) { return done(ctx) })
}

// numbered reports whether all nodes have their IDs.
func (w *world) numbered(ctx context.Context) (bool, error) {
	// from the API server's cache
	list, err := w.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return false, err
	}
	n := 0
	for i := range list.Items {
		if list.Items[i].Annotations[annotation.NodeID] != "" {
			n++
		}
	}
	return n >= w.size.nodes, nil
}

// planned reports whether the first node has a flow for packets from each other node.
func (w *world) planned(ctx context.Context) (bool, error) {
	tunnels, err := tunnelsOf(ctx, w.nodes[0])
	return tunnels >= w.size.nodes-1, err
}

// work is the total work of the first node's daemons so far.
type work struct {
	used       map[string]lab.Usage
	recomputed map[string]int
}

// computing returns the daemons that compute either what changed, or everything.
func computing() []string { return []string{lab.Northd, lab.Controller} }

// recomputed matches how often northd or ovn-controller computed all flows. The node of the latter
// is logical_flow_output before OVN 26.03.
var recomputed = regexp.MustCompile(`(?m)^Node: (?:lflow|lflow_output|logical_flow_output)\n- recompute: +(\d+)$`)

func (w *world) work(ctx context.Context) (k work, err error) {
	if k.used, err = w.usage(w.nodes[0]); err != nil {
		return k, err
	}
	k.recomputed = map[string]int{}
	for _, name := range computing() {
		out, err := w.nodes[0].Exec(ctx, "ovn-appctl", "-t", name, "inc-engine/show-stats")
		if err != nil {
			return k, err
		}
		m := recomputed.FindStringSubmatch(out)
		if m == nil {
			return k, fmt.Errorf("inc-engine/show-stats of %s has no node for flows: %q", name, out)
		}
		if k.recomputed[name], err = strconv.Atoi(m[1]); err != nil {
			return k, fmt.Errorf("inc-engine/show-stats of %s: %w", name, err)
		}
	}
	return k, nil
}

// otherPod returns the name of pod number k of a node after a number of replacements.
func otherPod(n node, k, replaced int) string {
	return fmt.Sprintf("p%05d-%03d-%d", int(n), k, replaced)
}
