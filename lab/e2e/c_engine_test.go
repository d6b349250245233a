//go:build e2e

package e2e

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/claims"
	facts "hairpin/cluster"
)

// TestServiceEngine changes the service engine with the chart, under traffic, and back. Pods keep
// running with their addresses, and connections between pods stay open. New connections to Services
// fail for less than a second.
func TestServiceEngine(t *testing.T) {
	e := open(t)
	own, other := facts.EngineOVN, facts.EngineOpenFlow
	if e.onBridge("node-a", claims.ServiceBridge) > 0 {
		own, other = other, own
	}
	value := func(engine string) string { return "config.default.service-engine=" + engine }
	t.Cleanup(func() {
		if t.Failed() {
			if err := e.InstallHairpin(context.Background(), value(own)); err != nil {
				t.Error(err)
			}
		}
	})
	clients := e.besidePods() // creates a pod, which must also be unchanged
	for _, engine := range []string{other, own} {
		before := e.others()
		e.roll("to "+engine, clients, value(engine))
		e.unchanged(before)
		e.serves(engine)
		pod := "made-with-" + engine // and deleted with the cluster's own engine
		e.apply(podsManifest(pod, 1))
		e.until(pod+" is ready", time.Minute, func() (bool, error) { return len(e.pods(pod)) == 1, nil })
		for _, ip := range e.podIPs(pod + "-0") {
			if err := e.ask(e.place(e.clientPod("node-a").Name), "tcp", netip.AddrPortFrom(ip, 8080)); err != nil {
				t.Error(err)
			}
		}
		e.reachAll()
	}
}

// besidePods returns clients of Services, which may lose connections when the engine changes, and
// clients of pods.
func (e *e2e) besidePods() []client {
	e.Helper()
	e.makeVictim()
	from := e.place(e.clientPod("node-a").Name)
	at := func(pod string, family int) netip.AddrPort { return netip.AddrPortFrom(e.podIPs(pod)[family], 8080) }
	list := []client{
		{"host → ClusterIP", e.Lab().Node("node-c").Host, netip.AddrPortFrom(e.service("web")[0], 80), 25, reopened},
		{"pod → pod of its node", from, at("victim", 0), 25, none},
		{"pod → pod of its node", from, at("victim", 1), 25, none},
		{"pod → pod of another node", from, at(e.clientPod("node-b").Name, 0), 25, none},
	}
	for _, c := range e.toServices(false) {
		c.rate, c.may = 25, reopened
		list = append(list, c)
	}
	return list
}

// serves fails the test unless the engine serves every node: its bridge has all pods' ports, and
// OVN has load balancers if and only if it is the engine.
func (e *e2e) serves(engine string) {
	e.Helper()
	bridge := map[string]string{facts.EngineOVN: claims.IntegrationBridge,
		facts.EngineOpenFlow: claims.ServiceBridge}[engine]
	for _, n := range e.Lab().Nodes() {
		e.until(n.Name()+" has its pods on "+bridge, 30*time.Second,
			func() (bool, error) { return e.onBridge(n.Name(), bridge) == e.withNetwork(n.Name()), nil })
		list := e.kubectl("exec", "-n", namespace, e.agent(n.Name()), "-c", "zone", "--", "ovn-nbctl", "--bare",
			"--columns=name", "list", "Load_Balancer")
		if has := strings.TrimSpace(list) != ""; has != (engine == facts.EngineOVN) {
			e.Errorf("%s: with %s OVN has load balancers %q", n.Name(), engine, list)
		}
		e.kubectl("exec", "-n", namespace, e.agent(n.Name()), "-c", "agent", "--", "hairpin", "status", "--wait=1m")
	}
}

// onBridge counts the pods' ports on a bridge of a node.
func (e *e2e) onBridge(node, bridge string) int {
	e.Helper()
	list := e.kubectl("exec", "-n", namespace, e.ovs(node), "--", "sh", "-c", "ovs-vsctl br-exists "+bridge+
		" && ovs-vsctl list-ports "+bridge+"; true")
	return strings.Count("\n"+list, "\n"+claims.PodInterface)
}

// withNetwork counts the running pods of a node that have a network of their own.
func (e *e2e) withNetwork(node string) (count int) {
	e.Helper()
	list, err := e.Client().CoreV1().Pods("").List(e.Context(),
		metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	e.check(err)
	for _, p := range list.Items {
		if !p.Spec.HostNetwork && p.Status.Phase == corev1.PodRunning {
			count++
		}
	}
	return count
}
