//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/lab"
	"hairpin/lab/cluster"
	"hairpin/lab/probe"
)

var (
	clusterName = flag.String("cluster", cluster.DefaultName, "name of the cluster's lab")
	apiAway     = flag.Duration("api-away", 2*time.Minute, "how long the API server is away")
)

// e2e is a test's view of the cluster.
type e2e struct {
	*testing.T
	*cluster.Cluster
}

// open returns the running cluster; the test must revert its changes.
func open(t *testing.T) *e2e {
	t.Helper()
	c, err := cluster.Open(cluster.Options{Name: *clusterName, Root: "../..", Out: t.Output()})
	if err != nil {
		t.Fatalf("%v (make cluster starts it)", err)
	}
	return &e2e{t, c}
}

func (e *e2e) check(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

// kubectl runs kubectl and returns what it prints.
func (e *e2e) kubectl(args ...string) string {
	e.Helper()
	out, err := e.Kubectl(e.Context(), "", args...)
	e.check(err)
	return out
}

// apply creates objects and deletes them at the end of the test.
func (e *e2e) apply(manifest string) {
	e.Helper()
	_, err := e.Kubectl(e.Context(), manifest, "apply", "-f", "-")
	e.check(err)
	e.Cleanup(func() {
		if _, err := e.Kubectl(context.Background(), manifest, "delete", "--ignore-not-found", "--wait", "-f",
			"-"); err != nil {
			e.Error(err)
		}
	})
}

// until waits for a condition.
func (e *e2e) until(what string, patience time.Duration, ok func() (bool, error)) time.Duration {
	e.Helper()
	begin := time.Now()
	var last error
	for {
		good, err := ok()
		if good && err == nil {
			return time.Since(begin)
		}
		last = err
		if time.Since(begin) > patience {
			e.Fatalf("%s: not within %s: %v", what, patience, last)
		}
		select {
		case <-e.Context().Done():
			e.Fatal(e.Context().Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// pods returns the running pods of a label, by name.
func (e *e2e) pods(app string) []corev1.Pod {
	e.Helper()
	list, err := e.Client().CoreV1().Pods(metav1.NamespaceDefault).List(e.Context(),
		metav1.ListOptions{LabelSelector: "app=" + app})
	e.check(err)
	var run []corev1.Pod
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil && cluster.Ready(&p) {
			run = append(run, p)
		}
	}
	return run
}

// containers returns the IDs of the containers in the ready pods of a node.
func (e *e2e) containers(node string) []string {
	e.Helper()
	list, err := e.Client().CoreV1().Pods("").List(e.Context(),
		metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	e.check(err)
	var ids []string
	for _, p := range list.Items {
		for _, s := range p.Status.ContainerStatuses {
			if cluster.Ready(&p) && s.State.Running != nil {
				ids = append(ids, s.ContainerID)
			}
		}
	}
	return ids
}

// agent returns the name of Hairpin's pod on a node.
func (e *e2e) agent(node string) string { return e.podOf("node", node) }

func (e *e2e) podOf(component, node string) (name string) {
	e.Helper()
	options := metav1.ListOptions{FieldSelector: "spec.nodeName=" + node,
		LabelSelector: "app.kubernetes.io/component=" + component}
	// A probe of a busy machine may fail.
	e.until(node+" has a ready pod of component "+component, time.Minute, func() (bool, error) {
		list, err := e.Client().CoreV1().Pods(namespace).List(e.Context(), options)
		if err != nil {
			return false, err
		}
		i := slices.IndexFunc(list.Items,
			func(p corev1.Pod) bool { return p.DeletionTimestamp == nil && cluster.Ready(&p) })
		if i >= 0 {
			name = list.Items[i].Name
		}
		return i >= 0, nil
	})
	return name
}

// ovs returns the name of Open vSwitch's pod on a node.
func (e *e2e) ovs(node string) string { return e.podOf("openvswitch", node) }

// service returns the addresses of a Service.
func (e *e2e) service(name string) []netip.Addr {
	e.Helper()
	s, err := e.Client().CoreV1().Services(metav1.NamespaceDefault).Get(e.Context(), name, metav1.GetOptions{})
	e.check(err)
	var list []netip.Addr
	for _, ip := range s.Spec.ClusterIPs {
		list = append(list, netip.MustParseAddr(ip))
	}
	return list
}

// ask sends one request from a place. It retries UDP once, as programs do: a busy machine loses
// datagrams.
func (e *e2e) ask(from lab.Place, protocol string, to netip.AddrPort) error {
	r := probe.Request{Protocol: protocol, To: to, Timeout: 5 * time.Second}
	a := lab.Get(e.Context(), from, r)
	if a.Error != "" && protocol == "udp" {
		e.Logf("%s → %s %s: %s; tried again", from.Name(), protocol, to, a.Error)
		a = lab.Get(e.Context(), from, r)
	}
	if a.Error != "" {
		return fmt.Errorf("%s → %s %s: %s", from.Name(), protocol, to, a.Error)
	}
	return nil
}

// askByName sends requests to every address of a name from a pod, and returns the answers.
func (e *e2e) askByName(pod, protocol, to string) ([]probe.Answer, error) {
	out, err := e.Kubectl(e.Context(), "", "exec", pod, "--", "/bin/pod", "get", "--proto", protocol, "--to", to)
	if err != nil {
		return nil, err
	}
	var all []probe.Answer
	for line := range strings.Lines(out) {
		var a probe.Answer
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			return nil, fmt.Errorf("%w: %s", err, line)
		}
		all = append(all, a)
	}
	return all, nil
}

// clientPod returns the pod of DaemonSet client on a node.
func (e *e2e) clientPod(node string) corev1.Pod {
	e.Helper()
	for _, p := range e.pods("client") {
		if p.Spec.NodeName == node {
			return p
		}
	}
	e.Fatalf("no ready client pod on %s", node)
	return corev1.Pod{}
}

// place returns a pod as a place of traffic.
func (e *e2e) place(pod string) lab.Place {
	e.Helper()
	p, err := e.Pod(e.Context(), metav1.NamespaceDefault, pod)
	e.check(err)
	return p
}
