package cluster_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNodeLifecycle: which Nodes must not get new connections, and their condition.
func TestNodeLifecycle(t *testing.T) {
	for name, c := range map[string]struct {
		change      func(*corev1.Node)
		leaving     bool
		unavailable string
	}{
		"plain":         {func(*corev1.Node) {}, false, ""},
		"being deleted": {func(n *corev1.Node) { n.DeletionTimestamp = new(metav1.Now()) }, true, ""},
		"scaled down": {func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "x"}, {Key: "ToBeDeletedByClusterAutoscaler"}}
		}, true, ""},
		"other taint": {func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "node.kubernetes.io/unschedulable"}} }, false, ""},
		"no network yet": {func(n *corev1.Node) { n.Status.Conditions = conditions(corev1.ConditionTrue) }, false,
			"True"},
		"with network": {func(n *corev1.Node) { n.Status.Conditions = conditions(corev1.ConditionFalse) }, false,
			"False"},
	} {
		got := store(node("node-a", c.change)).Snapshot().Node("node-a")
		if got.Leaving != c.leaving || got.NetworkUnavailable != c.unavailable {
			t.Errorf("%s: leaving %v, condition %q", name, got.Leaving, got.NetworkUnavailable)
		}
	}
}

func conditions(network corev1.ConditionStatus) []corev1.NodeCondition {
	return []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
		{Type: corev1.NodeNetworkUnavailable, Status: network}}
}
