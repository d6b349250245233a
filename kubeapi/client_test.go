package kubeapi_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"hairpin/kubeapi"
)

// TestSame: requests and errors equal those of client-go's clientset.
func TestSame(t *testing.T) {
	var asked string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		asked = fmt.Sprintf("%s %s\n%s, wants %s, is %s\n%q %v", r.Method, r.URL, r.UserAgent(), r.Header.Get("Accept"),
			r.Header.Get("Content-Type"), body, err)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w,
			`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","message":"there is none","code":404}`)
	}))
	defer server.Close()
	for encoding, config := range map[string]rest.Config{
		"unsaid": {},
		"protobuf": {UserAgent: "hairpin", QPS: 1000, Burst: 1000, ContentConfig: rest.ContentConfig{
			ContentType: runtime.ContentTypeProtobuf, AcceptContentTypes: runtime.ContentTypeProtobuf + "," +
				runtime.ContentTypeJSON}},
	} {
		config.Host = server.URL
		ours, err := kubeapi.New(&config)
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := kubernetes.NewForConfig(&config)
		if err != nil {
			t.Fatal(err)
		}
		for name, c := range requests(t.Context(), ours, theirs) {
			t.Run(encoding+"/"+name, func(t *testing.T) {
				errOurs := c[0]()
				got := asked
				errTheirs := c[1]()
				if got != asked {
					t.Errorf("asks\n%s\nin place of\n%s", got, asked)
				}
				if !apierrors.IsNotFound(errOurs) || !reflect.DeepEqual(errOurs, errTheirs) {
					t.Errorf("error is %v, not %v", errOurs, errTheirs)
				}
			})
		}
	}
	if _, err := kubeapi.New(&rest.Config{QPS: 1}); err == nil {
		t.Error("a QPS without a burst is taken")
	}
}

// requests returns pairs of requests: one of our client, and the same of the clientset.
func requests(ctx context.Context, ours *kubeapi.Client, theirs kubernetes.Interface) map[string][2]func() error {
	meta := metav1.ObjectMeta{Namespace: "n", Name: "x", ResourceVersion: "7"}
	pod, lease := &corev1.Pod{ObjectMeta: meta}, &coordinationv1.Lease{ObjectMeta: meta}
	grace, lines := int64(0), int64(5)
	list := metav1.ListOptions{LabelSelector: "a=b", FieldSelector: "spec.nodeName=n", ResourceVersion: "0", Limit: 1}
	deletion, patch := metav1.DeleteOptions{GracePeriodSeconds: &grace}, []byte(`{"metadata":{"labels":{"a":null}}}`)
	log := &corev1.PodLogOptions{Container: "c", TailLines: &lines}
	manager := metav1.PatchOptions{FieldManager: "hairpin"}
	return map[string][2]func() error{
		"nodes": {func() error { _, err := ours.Nodes().List(ctx, list); return err },
			func() error { _, err := theirs.CoreV1().Nodes().List(ctx, list); return err }},
		"namespaces": {func() error { _, err := ours.Namespaces().List(ctx, list); return err },
			func() error { _, err := theirs.CoreV1().Namespaces().List(ctx, list); return err }},
		"pods": {func() error { _, err := ours.Pods("").List(ctx, list); return err },
			func() error { _, err := theirs.CoreV1().Pods("").List(ctx, list); return err }},
		"services": {func() error { _, err := ours.Services("n").List(ctx, list); return err },
			func() error { _, err := theirs.CoreV1().Services("n").List(ctx, list); return err }},
		"slices": {func() error { _, err := ours.EndpointSlices("n").Get(ctx, "x"); return err },
			func() error {
				_, err := theirs.DiscoveryV1().EndpointSlices("n").Get(ctx, "x", metav1.GetOptions{})
				return err
			}},
		"policies": {func() error { _, err := ours.NetworkPolicies("n").Get(ctx, "x"); return err },
			func() error {
				_, err := theirs.NetworkingV1().NetworkPolicies("n").Get(ctx, "x", metav1.GetOptions{})
				return err
			}},
		"cidrs": {func() error { _, err := ours.ServiceCIDRs().List(ctx, list); return err },
			func() error { _, err := theirs.NetworkingV1().ServiceCIDRs().List(ctx, list); return err }},
		"create": {func() error { _, err := ours.Pods("n").Create(ctx, pod); return err },
			func() error { _, err := theirs.CoreV1().Pods("n").Create(ctx, pod, metav1.CreateOptions{}); return err }},
		"update": {func() error { _, err := ours.Leases("n").Update(ctx, lease); return err },
			func() error {
				_, err := theirs.CoordinationV1().Leases("n").Update(ctx, lease, metav1.UpdateOptions{})
				return err
			}},
		"delete": {func() error { return ours.Pods("n").Delete(ctx, "x", deletion) },
			func() error { return theirs.CoreV1().Pods("n").Delete(ctx, "x", deletion) }},
		"patch": {func() error {
			_, err := ours.Nodes().Patch(ctx, "x", types.MergePatchType, patch,
				manager)
			return err
		},
			func() error {
				_, err := theirs.CoreV1().Nodes().Patch(ctx, "x", types.MergePatchType, patch, manager)
				return err
			}},
		"patch status": {
			func() error {
				_, err := ours.Nodes().Patch(ctx, "x", types.StrategicMergePatchType, patch, metav1.PatchOptions{},
					"status")
				return err
			},
			func() error {
				_, err := theirs.CoreV1().Nodes().Patch(ctx, "x", types.StrategicMergePatchType, patch,
					metav1.PatchOptions{}, "status")
				return err
			}},
		"log": {func() error { _, err := ours.Log(pod, log).DoRaw(ctx); return err },
			func() error { _, err := theirs.CoreV1().Pods("n").GetLogs("x", log).DoRaw(ctx); return err }},
		"watch": {func() error {
			_, err := ours.Core.Get().Resource("pods").VersionedParams(&list, kubeapi.Parameters).Watch(ctx)
			return err
		},
			func() error {
				_, err := theirs.CoreV1().RESTClient().Get().Resource("pods").VersionedParams(&list,
					kubeapi.Parameters).Watch(ctx)
				return err
			}},
	}
}

// TestExec: a command and its container are in the URL, encoded as by the clientset's codec.
func TestExec(t *testing.T) {
	config := &rest.Config{Host: "127.0.0.1:1"}
	ours, err := kubeapi.New(config)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	options := &corev1.PodExecOptions{Container: "c", Command: []string{"hairpin", "status", "--output=json"},
		Stdout: true, Stderr: true}
	got := ours.Exec(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "x"}}, options).URL().String()
	want := theirs.CoreV1().RESTClient().Post().Resource("pods").Namespace("n").Name("x").SubResource("exec").
		VersionedParams(options, scheme.ParameterCodec).URL().String()
	if got != want {
		t.Errorf("asks %s in place of %s", got, want)
	}
}

// TestNoName: a name that is empty by mistake does not select all objects.
func TestNoName(t *testing.T) {
	c, err := kubeapi.New(&rest.Config{Host: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Pods("n").Delete(t.Context(), "", metav1.DeleteOptions{}); err == nil ||
		err.Error() != "resource name may not be empty" {
		t.Errorf("delete of no name: %v", err)
	}
}
