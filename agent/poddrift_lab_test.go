package agent_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/lab"
)

// TestPodsAreNoDrift: what the removal of a pod changes in Open vSwitch is not drift, which an
// alert attributes to another program. A deleted flow is.
func TestPodsAreNoDrift(t *testing.T) {
	t.Parallel()
	o := startOperated(t)
	start(t, o.node)
	waitWell(t, o.node)
	drift := func() uint64 {
		atRest(t, o.node)
		return part(t, mustReport(t, o.node), "openvswitch").Drift
	}
	before := drift()
	made, err := o.api.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "short", Namespace: "default"}, Spec: corev1.PodSpec{
			NodeName: o.node.Name(), Containers: []corev1.Container{{Name: "c", Image: "none"}}}},
		metav1.CreateOptions{})
	noError(t, err)
	p, err := o.node.AddPod(t.Context(), lab.PodConfig{Namespace: "default", Name: "short", UID: string(made.UID)})
	noError(t, err)
	if got := drift(); got != before {
		t.Errorf("a new pod: drift %d, before %d", got, before)
	}
	noError(t, p.Delete(t.Context()))
	eventually(t, 20*time.Second, "the agent has no pod", func() (bool, string) {
		r := mustReport(t, o.node)
		return r.Pods == 0 && part(t, r, "openvswitch").InSync, fmt.Sprint(r.Pods)
	})
	if got := drift(); got != before {
		t.Errorf("a removed pod: drift %d, before %d", got, before)
	}

	sh(t, o.node, "ovs-ofctl del-flows br-ex table=2")
	eventually(t, 20*time.Second, "the deleted flow is drift", func() (bool, string) {
		got := drift()
		return got > before, fmt.Sprint(got)
	})
}
