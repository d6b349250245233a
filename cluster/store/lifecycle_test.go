package store_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/cluster/annotation"
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
		got := storeOf(node("node-a", c.change)).Snapshot().Node("node-a")
		if got.Leaving != c.leaving || got.NetworkUnavailable != c.unavailable {
			t.Errorf("%s: leaving %v, condition %q", name, got.Leaving, got.NetworkUnavailable)
		}
	}
}

// TestNodeShutdown: a node that shuts down is Ready for egress addresses, and leaving; one that is
// down is neither.
func TestNodeShutdown(t *testing.T) {
	ready := func(status corev1.ConditionStatus, message string) []corev1.NodeCondition {
		return []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, Message: message}}
	}
	for name, c := range map[string]struct {
		change         func(*corev1.Node)
		ready, leaving bool
	}{
		"plain": {func(n *corev1.Node) { n.Status.Conditions = ready(corev1.ConditionTrue, "kubelet is posting") },
			true,
			false},
		"its agent says so": {func(n *corev1.Node) {
			n.Annotations[annotation.Shutdown] = "true"
			n.Status.Conditions = ready(corev1.ConditionTrue, "")
		}, true, true},
		"its kubelet says so": {func(n *corev1.Node) {
			n.Status.Conditions = ready(corev1.ConditionFalse, "[PLEG is not healthy, node is shutting down]")
		}, true, true},
		"another reason": {func(n *corev1.Node) { n.Status.Conditions = ready(corev1.ConditionFalse, "no runtime") },
			false,
			false},
		"down": {func(n *corev1.Node) { n.Status.Conditions = ready(corev1.ConditionUnknown, "node is shutting down") },
			false, false},
	} {
		got := storeOf(node("node-a", c.change)).Snapshot().Node("node-a").Egress
		if got.Ready != c.ready || got.Leaving != c.leaving {
			t.Errorf("%s: ready %v, leaving %v", name, got.Ready, got.Leaving)
		}
	}
}

func conditions(network corev1.ConditionStatus) []corev1.NodeCondition {
	return []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
		{Type: corev1.NodeNetworkUnavailable, Status: network}}
}
