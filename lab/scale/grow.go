package scale

import (
	"context"
	"fmt"
	"time"
)

// podsPerNode is the share of a node that does not run.
func (w *world) podsPerNode() int { return max(1, w.opt.Pods/w.opt.Nodes) }

// grow adds nodes until there are so many, with their pods and EgressIPs, and waits until both real nodes reach the last.
func (w *world) grow(ctx context.Context, nodes int) error {
	begin := time.Now()
	first := max(w.size.nodes, len(realNodes)) + 1
	egress := w.egressIPs(nodes)
	if err := parallel(ctx, w.size.egressIPs, egress, w.makeEgressIP); err != nil {
		return err
	}
	w.size = size{nodes: nodes, egressIPs: egress}
	if err := parallel(ctx, first, nodes+1, func(ctx context.Context, i int) error { return w.makeOther(ctx, node(i)) }); err != nil {
		return err
	}
	written := time.Now()
	if _, err := w.reached(ctx, node(nodes), w.patience(time.Minute)); err != nil {
		return err
	}
	reached := time.Since(written)
	err := parallel(ctx, first, nodes+1, func(ctx context.Context, i int) error {
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
	w.say("%d nodes, %d EgressIPs, %d pods each: %.1f s, the last node reached %.1f s after it was written", nodes, egress, w.podsPerNode(),
		time.Since(begin).Seconds(), reached.Seconds())
	w.table.Sizes = append(w.table.Sizes, nodes)
	w.table.Add("nodes added at once, last write to the first packet from both real nodes", "s", reached.Seconds())
	return nil
}

// otherPod is the name of pod number k of a node, after it was replaced so often.
func otherPod(n node, k, replaced int) string {
	return fmt.Sprintf("p%05d-%03d-%d", int(n), k, replaced)
}
