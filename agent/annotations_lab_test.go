package agent_test

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"hairpin/cluster/annotation"
	"hairpin/lab/demo"
)

// annotationsComeBack: the agent restores its annotations on its Node when some are removed, and
// when the Node is deleted and the kubelet registers it again. Egress addresses and tunnels then
// work as before.
func annotationsComeBack(t *testing.T, g *demo.Egress) {
	ctx, nodes := t.Context(), g.Demo().Client().CoreV1().Nodes()
	noError(t, g.Nodes(ctx, demo.EgressStays))
	noError(t, g.See(ctx, egressAddress))
	ours := []string{annotation.Gateway, annotation.HostCIDRs, annotation.HostLinks}
	get := func() map[string]string {
		n, err := nodes.Get(ctx, demo.EgressStays, metav1.GetOptions{})
		noError(t, err)
		return n.Annotations
	}
	had := get()
	back := func(what string) {
		t.Helper()
		took := eventually(t, 10*time.Second, what, func() (bool, string) {
			has := get()
			for _, key := range append(ours, annotation.NodeID) {
				if has[key] == "" || has[key] != had[key] {
					return false, fmt.Sprintf("%s is %q, was %q", key, has[key], had[key])
				}
			}
			return true, ""
		})
		t.Logf("%s after %d ms", what, took.Milliseconds())
	}
	for _, key := range ours {
		_, err := nodes.Patch(ctx, demo.EgressStays, types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"`+key+`":null}}}`), metav1.PatchOptions{})
		noError(t, err)
		back(key + " is back")
	}
	_, err := nodes.Patch(ctx, demo.EgressStays, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"`+annotation.Gateway+`":"nonsense"}}}`), metav1.PatchOptions{})
	noError(t, err)
	back("what was altered is as it was")

	n, err := nodes.Get(ctx, demo.EgressStays, metav1.GetOptions{})
	noError(t, err)
	noError(t, nodes.Delete(ctx, n.Name, metav1.DeleteOptions{}))
	n.ObjectMeta = metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}
	status := n.Status
	n, err = nodes.Create(ctx, n, metav1.CreateOptions{})
	noError(t, err)
	n.Status, n.ResourceVersion = status, "" // the agent may have been faster
	_, err = nodes.UpdateStatus(ctx, n, metav1.UpdateOptions{})
	noError(t, err)
	back("the Node made anew has all of them")
	noError(t, g.See(ctx, egressAddress))
	for _, n := range g.Demo().Lab().Nodes() {
		waitServes(t, n)
	}
}
