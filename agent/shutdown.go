package agent

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"hairpin/cluster/annotation"
	"hairpin/kube"
	"hairpin/kubeapi"
	"hairpin/retry"
)

// handoverTimeout limits how long a shutdown of the machine waits for other nodes to take over this
// node's addresses. logind allows 5 s by default, kubelet requests more.
const handoverTimeout = 10 * time.Second

// onShutdown publishes whether the machine shuts down. If it does, onShutdown returns when the node
// has no egress or load balancer address any more and no open connections to a former one, or after
// handoverTimeout.
func (a *agent) onShutdown(ctx context.Context, client *kubeapi.Client, down bool) {
	var value any // nil removes the annotation
	if down {
		a.log.Info("handing over egress addresses: the machine shuts down")
		value = "true"
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, handoverTimeout)
		defer cancel()
	}
	for p := (retry.Backoff{}); ctx.Err() == nil; p.Sleep(ctx) {
		err := kube.PatchNode(ctx, client, a.node,
			map[string]any{"annotations": map[string]any{annotation.Shutdown: value}})
		if err == nil || apierrors.IsNotFound(err) {
			break
		}
		if p.Pause() == 0 && ctx.Err() == nil {
			a.log.Warn("publish the shutdown of the machine", "error", err)
		}
	}
	for down && a.egress.inUse.Load() && ctx.Err() == nil {
		retry.Sleep(ctx, 50*time.Millisecond)
	}
}
