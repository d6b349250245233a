package agent_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/lab"
)

// addWaitsForTheObject: ADD answers when the agent knows the Pod's object, and with it the policies
// that select the pod. An object of another pod with the same name does not count. It returns the
// answer to an ADD for a pod without an object.
func (o *operated) addWaitsForTheObject(t *testing.T) (never <-chan error) {
	ctx, pods := o.t.Context(), o.api.CoreV1().Pods("default") // the last ADD outlives the subtest
	object := func(name, static string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: corev1.PodSpec{
			NodeName: o.node.Name(), Containers: []corev1.Container{{Name: "c", Image: "none"}}}}
		if static != "" { // the runtime's UID of a static pod is known before its object
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: static}
		}
		made, err := pods.Create(ctx, p, metav1.CreateOptions{})
		noError(t, err)
		return made
	}
	add := func(name, uid string) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := o.node.AddPod(ctx, lab.PodConfig{Namespace: "default", Name: name, UID: uid})
			done <- err
		}()
		return done
	}

	early := add("early", "static-1")
	never = add("never", "static-2")
	object("early", "")
	select {
	case err := <-early:
		t.Fatalf("ADD has answered without the object of the pod: %v", err)
	case <-time.After(3 * time.Second):
	}
	now := int64(0)
	noError(t, pods.Delete(ctx, "early", metav1.DeleteOptions{GracePeriodSeconds: &now}))
	begin := time.Now()
	object("early", "static-1")
	noError(t, <-early)
	took := time.Since(begin)
	t.Logf("ADD has answered %d ms after the object was created", took.Milliseconds())
	if took > 3*slack*time.Second {
		t.Errorf("ADD has answered %s after the object was created", took)
	}

	usual := object("usual", "")
	begin = time.Now()
	noError(t, <-add("usual", string(usual.UID)))
	t.Logf("with an object, ADD takes %d ms", time.Since(begin).Milliseconds())
	return never
}

// addFails: without an object, ADD fails with "try again later", and no port stays behind.
func (o *operated) addFails(t *testing.T, never <-chan error) {
	if never == nil {
		t.Skip("without the ADD of an earlier subtest")
	}
	err := <-never
	if err == nil || !strings.Contains(err.Error(), `"code": 11`) ||
		!strings.Contains(err.Error(),
			"the agent has not read its Pod and the policies before it from the Kubernetes API") {
		t.Errorf("ADD without an object: %v", err)
	}
	pods := len(o.node.Pods())
	eventually(t, 10*time.Second, "the other pods have ports", func() (bool, string) {
		rows := sh(t, o.node, "ovs-vsctl --bare --columns=name,external_ids list Interface | grep '^hairpin'")
		links := sh(t, o.node, "ip -o link show type veth | grep ' hairpin'")
		left := rows + links
		return !strings.Contains(left, "never") && strings.Count(rows, "\n") == pods &&
			strings.Count(links, "\n") == pods, left
	})
}
