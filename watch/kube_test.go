package watch_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"

	"hairpin/cluster"
	"hairpin/kubeapi"
	"hairpin/watch"
)

type kubeObject interface {
	metav1.Object
	runtime.Object
}

// decode reads one manifest in strict mode.
func decode(text string) kubeObject {
	var head metav1.TypeMeta
	if err := yaml.Unmarshal([]byte(text), &head); err != nil {
		panic(err)
	}
	o, err := scheme.Scheme.New(head.GroupVersionKind())
	if err != nil {
		panic(err)
	}
	if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
		panic(text + err.Error())
	}
	object := o.(kubeObject)
	if head.Kind != "Node" && object.GetNamespace() == "" {
		object.SetNamespace("default")
	}
	return object
}

// kube is an API server as a source.
type kube struct{ client kubernetes.Interface }

func (k kube) change(t *testing.T, s step) {
	t.Helper()
	for _, doc := range documents(s.set) {
		if err := k.apply(t, decode(doc.text)); err != nil {
			t.Fatalf("%s: %v", doc.key, err)
		}
	}
	for _, doc := range documents(s.refused) {
		if err := k.apply(t, decode(doc.text)); !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
			t.Fatalf("%s is not refused: %v", doc.key, err)
		}
	}
	for _, key := range strings.Fields(s.delete) {
		if err := k.delete(t, cluster.ParseOwner(key)); err != nil && !apierrors.IsNotFound(err) {
			t.Fatalf("%s: %v", key, err)
		}
	}
}

// want omits rejected manifests.
func (k kube) want(s step, all, refused map[string]string) (string, map[string]string) {
	admitted := map[string]string{}
	for key, text := range all {
		if refused[key] == "" {
			admitted[key] = text
		}
	}
	return s.want, admitted
}

type writer[T any] interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (T, error)
	Create(ctx context.Context, obj T, o metav1.CreateOptions) (T, error)
	Update(ctx context.Context, obj T, o metav1.UpdateOptions) (T, error)
}

type statusWriter[T any] interface {
	writer[T]
	UpdateStatus(ctx context.Context, obj T, o metav1.UpdateOptions) (T, error)
}

// apply creates or changes an object, and then its status, as two clients would.
func (k kube) apply(t *testing.T, object kubeObject) error {
	return retryConflict(func() error { return k.applyOnce(t, object.DeepCopyObject().(kubeObject)) })
}

// retryConflict tries again after a conflict: controllers write to Nodes as well.
func retryConflict(f func() error) error {
	return retry.RetryOnConflict(wait.Backoff{Steps: 30, Duration: 10 * time.Millisecond}, f)
}

func (k kube) applyOnce(t *testing.T, object kubeObject) error {
	core := k.client.CoreV1()
	switch o := object.(type) {
	case *corev1.Node:
		return applyWithStatus(t, core.Nodes(), o)
	case *corev1.Pod:
		return applyWithStatus(t, core.Pods(o.Namespace), o)
	case *corev1.Service:
		return applyWithStatus(t, core.Services(o.Namespace), o)
	case *discoveryv1.EndpointSlice:
		_, err := apply(t, k.client.DiscoveryV1().EndpointSlices(o.Namespace), o)
		return err
	case *networkingv1.NetworkPolicy:
		_, err := apply(t, k.client.NetworkingV1().NetworkPolicies(o.Namespace), o)
		return err
	}
	t.Fatalf("an object of type %T", object)
	return nil
}

func apply[T kubeObject](t *testing.T, w writer[T], o T) (T, error) {
	old, err := w.Get(t.Context(), o.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return w.Create(t.Context(), o, metav1.CreateOptions{})
	}
	if err != nil {
		return o, err
	}
	o.SetResourceVersion(old.GetResourceVersion())
	if p, is := any(o).(*corev1.Pod); is {
		p.Spec = any(old).(*corev1.Pod).Spec // cannot be changed
	}
	return w.Update(t.Context(), o, metav1.UpdateOptions{})
}

func applyWithStatus[T kubeObject](t *testing.T, w statusWriter[T], o T) error {
	status := o.DeepCopyObject().(T)
	written, err := apply(t, w, o)
	if err != nil {
		return err
	}
	// Only the status is written again: another write of the spec would remove a Node's taints,
	// which its controller adds again.
	return retryConflict(func() error {
		status.SetResourceVersion(written.GetResourceVersion())
		_, err := w.UpdateStatus(t.Context(), status, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) {
			if now, err := w.Get(t.Context(), status.GetName(), metav1.GetOptions{}); err == nil {
				written = now
			}
		}
		return err
	})
}

func (k kube) delete(t *testing.T, o cluster.Owner) error {
	now := int64(0)
	options := metav1.DeleteOptions{GracePeriodSeconds: &now}
	switch o.Kind {
	case "Node":
		return k.client.CoreV1().Nodes().Delete(t.Context(), o.Name, options)
	case "Pod":
		return k.client.CoreV1().Pods(o.Namespace).Delete(t.Context(), o.Name, options)
	case "Service":
		return k.client.CoreV1().Services(o.Namespace).Delete(t.Context(), o.Name, options)
	case "EndpointSlice":
		return k.client.DiscoveryV1().EndpointSlices(o.Namespace).Delete(t.Context(), o.Name, options)
	case "NetworkPolicy":
		return k.client.NetworkingV1().NetworkPolicies(o.Namespace).Delete(t.Context(), o.Name, options)
	}
	t.Fatalf("an object of kind %s", o.Kind)
	return nil
}

func TestKube(t *testing.T) {
	a := startAPI(t)
	t.Run("scenarios", func(t *testing.T) { testScenarios(t, a) })
	t.Run("nothing before all is read", func(t *testing.T) { testNothingBefore(t, a) })
	t.Run("burst", func(t *testing.T) { testBurst(t, a) })
	t.Run("pods", func(t *testing.T) { testPods(t, a) })
	t.Run("network cut", func(t *testing.T) { testAway(t, a, false) })
	t.Run("restart", func(t *testing.T) { testAway(t, a, true) })
	t.Run("policies", func(t *testing.T) { testPolicies(t, a) })
	t.Run("new pods", func(t *testing.T) { testNewPods(t, a) })
	t.Run("cluster policies", func(t *testing.T) { testClusterPolicies(t, a) })
	t.Run("egress", func(t *testing.T) { testEgress(t, a) })
	t.Run("before Pods", func(t *testing.T) { testBeforePods(t, a) })
	t.Run("restored from a backup", func(t *testing.T) { testRestored(t, a) })
	t.Run("restart with many Services", func(t *testing.T) { testManyAway(t, a) })
	wantNoGoroutines(t)
}

func testScenarios(t *testing.T, a *api) {
	snapshots := follow(t, a.agent(t), "node-a")
	for name, steps := range scenarios(t) {
		t.Run(name, func(t *testing.T) { play(t, steps, kube{a.client(t)}, snapshots) })
	}
}

func follow(t *testing.T, client *kubeapi.Client, node string) *newest {
	t.Helper()
	from, err := watch.Kube(t.Context(), client, node, cluster.DefaultConfig())
	check(t, err)
	return &newest{from: from}
}
