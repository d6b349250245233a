package controller_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	v1 "hairpin/api/v1"
	"hairpin/watch"
)

// withoutPods delays requests for Pods until open is closed.
type withoutPods struct {
	http.RoundTripper
	open chan struct{}
}

func (w *withoutPods) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/pods") {
		select {
		case <-w.open:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	return w.RoundTripper.RoundTrip(r)
}

// TestControllerBeforePods checks a leader that has not read the Pods yet. It assigns node IDs and
// egress addresses, and moves them. The condition about Pods of an EgressIP stays until they are
// read, and a new EgressIP has none.
func TestControllerBeforePods(t *testing.T) {
	p := startControlPlane(t)
	defineEgressIPs(t, p.client, true)
	is := func(name, want string) {
		t.Helper()
		soon(t, 60*time.Second, func() string { return differs(carrying(t, p.client, name), want) })
	}
	create := func(name, address string) {
		t.Helper()
		_, err := raw(t, p.client, "POST", watch.EgressIPPath(),
			fmt.Sprintf(`{"apiVersion":"k8s.ovn.org/v1","kind":"EgressIP","metadata":{"name":%q},"spec":{"egressIPs":[%q],"namespaceSelector":{}}}`, name, address))
		noError(t, err)
	}
	const good, alone, younger = "EgressIPAssigned=True (Assigned)", "PodsSelected=True (Selected)",
		"PodsSelected=False (UndefinedRequest)"
	stop := candidate(t, p.own, "one")
	addCarrier(t, p.client, "a", "172.18.0.3")
	p.wantIDs(t, 60*time.Second, "a=1")
	addCarrier(t, p.client, "b", "172.18.0.4")
	p.wantIDs(t, 60*time.Second, "a=1 b=2")
	addPod(t, p, "web", "a")
	create("e1", "172.18.0.31")
	is("e1", "172.18.0.31 a, "+good+", "+alone)
	create("e2", "172.18.0.32") // within the same second, the name decides which is older
	is("e2", "172.18.0.32 b, "+good+", "+younger)
	stop()
	before := selects(t, p, "e2")

	held := &withoutPods{open: make(chan struct{})}
	candidate(t, p.connect(t, func(c *rest.Config) {
		c.Wrap(func(rt http.RoundTripper) http.RoundTripper { held.RoundTripper = rt; return held })
	}), "two")
	p.addNode(t, "n", "")
	p.wantIDs(t, 60*time.Second, "a=1 b=2 n=3")
	_, err := p.client.CoreV1().Nodes().Patch(t.Context(), "b", types.MergePatchType,
		[]byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
	noError(t, err)
	is("e2", "172.18.0.32 a, "+good+", "+younger)
	if now := selects(t, p, "e2"); now != before {
		t.Errorf("before Pods are read, the condition was written: %v, it was %v", now, before)
	}
	is("e1", "172.18.0.31 a, "+good+", "+alone)
	create("e3", "172.18.0.33")
	is("e3", "172.18.0.33 a, "+good)

	close(held.open)
	is("e3", "172.18.0.33 a, "+good+", "+younger)
	is("e2", "172.18.0.32 a, "+good+", "+younger)
	if now := selects(t, p, "e2"); now != before {
		t.Errorf("nothing changed, and the condition was written: %v, it was %v", now, before)
	}
}

// addPod creates a Pod with an address of its node.
func addPod(t *testing.T, p *controlPlane, name, node string) {
	t.Helper()
	var subnet string
	soon(t, 30*time.Second, func() string {
		n, err := p.client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
		noError(t, err)
		if subnet = n.Spec.PodCIDR; subnet == "" {
			return node + " has no addresses for Pods"
		}
		return ""
	})
	pods := p.client.CoreV1().Pods("default")
	var pod *corev1.Pod
	soon(t, 30*time.Second, func() string { // a controller makes its namespace's service account
		var err error
		pod, err = pods.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			return err.Error()
		}
		return ""
	})
	pod.Status.PodIP = netip.MustParsePrefix(subnet).Addr().Next().Next().Next().String()
	pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
	_, err := pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	noError(t, err)
}

// selects returns the condition of an EgressIP about the Pods that it selects.
func selects(t *testing.T, p *controlPlane, name string) metav1.Condition {
	t.Helper()
	text, err := raw(t, p.client, "GET", watch.EgressIPPath()+"/"+name, "")
	noError(t, err)
	var e v1.EgressIP
	noError(t, json.Unmarshal(text, &e))
	for _, c := range e.Status.Conditions {
		if c.Type == v1.ConditionSelects {
			return c
		}
	}
	return metav1.Condition{}
}
