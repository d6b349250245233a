package scale

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// churn replaces 1 % of the pods per minute and changes Slices EndpointSlices per second.
func (w *world) churn(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	end := time.Now().Add(w.opt.Window)
	every := func(pause time.Duration, do func(i int) error) {
		g.Go(func() error {
			tick := time.NewTicker(pause)
			defer tick.Stop()
			for i := 0; time.Now().Before(end); i++ {
				if err := do(i); err != nil {
					return err
				}
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-tick.C:
				}
			}
			return nil
		})
	}
	if w.opt.Slices > 0 {
		every(time.Second/time.Duration(w.opt.Slices), func(int) error {
			w.changed++
			i := w.changed % w.opt.Services
			return w.pointTo(ctx, serviceName(i), w.endpoints(i, w.changed/w.opt.Services+1))
		})
	}
	pods := (w.size.nodes - len(realNodes)) * w.podsPerNode()
	every(min(w.opt.Window, 100*time.Minute/time.Duration(pods)), func(int) error { return w.replacePod(ctx, pods) })
	return g.Wait()
}

// replacePod replaces a pod of a node that does not run by a new one. Each pod is replaced once
// before any is replaced twice.
func (w *world) replacePod(ctx context.Context, pods int) error {
	per := w.podsPerNode()
	turn := w.replaced[w.size.nodes]
	w.replaced[w.size.nodes]++
	i := turn * 7919 % pods // a prime number, so that pods of different nodes alternate
	n, k := node(len(realNodes)+1+i/per), i%per
	key := [2]int{int(n), k}
	old := otherPod(n, k, w.generation[key])
	now := int64(0)
	if err := w.client.CoreV1().Pods(w.space(n, k)).Delete(ctx, old,
		metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		return fmt.Errorf("delete Pod %s: %w", old, err)
	}
	w.generation[key]++
	return w.makeOtherPod(ctx, n, k, otherPod(n, k, w.generation[key]))
}
