package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"hairpin/kubeapi"
	"hairpin/signal"
)

// conditionPause is the time after which the condition is written again, if the write failed or the
// Node does not show it.
const conditionPause = 5 * time.Second

// Condition sets the Node's NetworkUnavailable to False when the node serves pods. Cloud providers
// set it to True on new Nodes, and keep pods away by a taint until a network plugin changes it. The
// agent never sets it to True: a failure of the agent does not mean a failure of the node's pods.
type Condition struct {
	client *kubeapi.Client // nil without an API
	node   string
	log    *slog.Logger
	wake   signal.Signal
	next   time.Time // of the next write; used only by Request
}

// NewCondition returns the Condition of a Node. client is nil without an API.
func NewCondition(client *kubeapi.Client, node string, log *slog.Logger) *Condition {
	return &Condition{client: client, node: node, log: log, wake: signal.New()}
}

// Request makes Run write the condition of a node that serves pods, unless its status is False
// already. It returns the time until it must be called again, 0 if not before the next change.
func (c *Condition) Request(now time.Time, status string) time.Duration {
	if c.client == nil || status == string(corev1.ConditionFalse) {
		return 0
	}
	if wait := c.next.Sub(now); wait > 0 {
		return wait
	}
	c.next = now.Add(conditionPause)
	c.wake.Notify()
	return conditionPause
}

// Run writes the condition on request, until ctx ends.
func (c *Condition) Run(ctx context.Context) {
	for c.wake.Wait(ctx) {
		if err := c.write(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("set condition NetworkUnavailable", "error", err)
		}
	}
}

func (c *Condition) write(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*conditionPause)
	defer cancel()
	now := metav1.Now()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "HairpinServes",
		Message:           "Hairpin serves pods on this node",
		LastHeartbeatTime: now, LastTransitionTime: now,
	}}}})
	if err != nil {
		return fmt.Errorf("condition: %w", err)
	}
	if _, err := c.client.Nodes().Patch(ctx, c.node, types.StrategicMergePatchType, patch, metav1.PatchOptions{},
		"status"); err != nil {
		return fmt.Errorf("condition of node %s: %w", c.node, err)
	}
	return nil
}
