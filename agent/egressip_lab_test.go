package agent_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/probe"
)

// carried is the EgressIP of pod-a1, with a status as the controller writes it.
func carried(selector string, items ...string) string {
	return carriedAs([]string{"172.18.0.33", "172.18.0.44", "fc00:f853:ccd::33", "fc00:f853:ccd::44"}, selector,
		items...)
}

// carriedAs is the same with other addresses.
func carriedAs(addresses []string, selector string, items ...string) string {
	text := `apiVersion: v1
kind: Namespace
metadata: {name: default, labels: {kubernetes.io/metadata.name: default}}
---
apiVersion: k8s.ovn.org/v1
kind: EgressIP
metadata: {name: egressip-prod, creationTimestamp: "2026-01-01T00:00:00Z"}
spec:
  egressIPs: ["` + strings.Join(addresses, `", "`) + `"]
  namespaceSelector: {}
  podSelector: {matchLabels: {` + selector + `}}
status:
  items:
`
	for _, i := range items {
		address, node, _ := strings.Cut(i, " ")
		text += fmt.Sprintf("  - {egressIP: %q, node: %s}\n", address, node)
	}
	return text
}

// TestEgressIP: pods leave with the address that an administrator chose. No other pods do, and only
// packets that leave the cluster.
func TestEgressIP(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{cluster.ModeShared, cluster.ModeLocal, cluster.ModeDetached} {
		for _, engine := range []string{cluster.EngineOVN, cluster.EngineOpenFlow} {
			t.Run(mode+"-"+engine, func(t *testing.T) { testEgressIP(t, mode, engine) })
		}
	}
}

func testEgressIP(t *testing.T, mode, engine string) {
	t.Parallel()
	l := startDemoIn(t, mode, "[default]", "service-engine = "+engine)
	pods := map[string]lab.Place{}
	for _, n := range l.Nodes() {
		waitWell(t, n)
		if flows := strings.Contains(sh(t, n, "ovs-vsctl list-br"),
			claims.ServiceBridge); flows != (engine == cluster.EngineOpenFlow) {
			t.Fatalf("%s has %s: %v", n.Name(), claims.ServiceBridge, flows)
		}
		for _, p := range n.Pods() {
			pods[p.Name()] = p
		}
	}
	client, host := []string{"172.18.0.100:9000", "[fc00:f853:ccd::64]:9000"},
		[]string{"172.18.0.4:8081", "[fc00:f853:ccd::4]:8081"}
	patience := 3 * time.Second // the first packet to a neighbor may be lost
	saw := func(from, to string) string {
		a := lab.Get(t.Context(), pods[from],
			probe.Request{Protocol: "tcp", To: netip.MustParseAddrPort(to), Timeout: patience})
		if a.Error != "" {
			return a.Error
		}
		return a.Saw.Addr().String()
	}
	see := func(what, from string, to []string, want ...string) {
		t.Helper()
		for i, x := range to {
			if got := saw(from, x); got != want[i] {
				t.Errorf("%s: %s from %s is seen as %s, not %s", what, x, from, got, want[i])
			}
		}
	}
	until := func(from string, want ...string) {
		t.Helper()
		for i, x := range client {
			took := eventually(t, 20*time.Second, from+" is seen as "+want[i],
				func() (bool, string) { got := saw(from, x); return got == want[i], got })
			t.Logf("%s is seen as %s after %v", from, want[i], took.Round(time.Millisecond))
		}
	}
	nodeA, nodeB := []string{"172.18.0.3", "fc00:f853:ccd::3"}, []string{"172.18.0.4", "fc00:f853:ccd::4"}
	egress := []string{"172.18.0.33", "fc00:f853:ccd::33"}
	see("before", "pod-a1", client, nodeA...)

	put(t, l, "egressip.yaml", carried("target: podlocal", "172.18.0.33 node-b", "fc00:f853:ccd::33 node-b"))
	until("pod-a1", egress...)
	see("not selected", "pod-a2", client, nodeA...)
	see("to a node", "pod-a1", host, nodeA...)
	see("to a pod", "pod-a1", []string{"10.244.2.3:8080", "[fd00:10:244:2::3]:8080"}, "10.244.1.3", "fd00:10:244:1::3")

	// A Service of policy Local keeps the client's address: the reply looks like a pod's packet to
	// the outside of the cluster.
	for to, want := range map[string]string{"172.18.0.3:30020": "172.18.0.100",
		"[fc00:f853:ccd::3]:30020": "fc00:f853:ccd::64"} {
		for _, protocol := range []string{"tcp", "udp"} {
			eventually(t, 20*time.Second, "policy Local by "+protocol, func() (bool, string) {
				a := lab.Get(t.Context(), l.Host("client"),
					probe.Request{Protocol: protocol, To: netip.MustParseAddrPort(to), Timeout: time.Second})
				return a.Error == "" && a.Saw.Addr().String() == want,
					fmt.Sprintf("%s is seen as %s: %s", to, a.Saw, a.Error)
			})
		}
	}

	// The address moves. The client has the old node's Ethernet address in its cache, and must
	// receive the new one.
	mac := func() string {
		out, err := l.Host("client").Exec(t.Context(), "sh", "-c",
			"ip neighbor show to 172.18.0.33; ip neighbor show to fc00:f853:ccd::33")
		if err != nil {
			t.Error(err)
		}
		return out
	}
	if had := mac(); strings.Count(had, "lladdr 02:42:ac:12:00:04") != 2 {
		t.Errorf("the client's cache has %s", had)
	}
	put(t, l, "egressip.yaml", carried("target: podlocal", "172.18.0.33 node-c", "fc00:f853:ccd::33 node-c"))
	took := eventually(t, 20*time.Second, "the client has heard",
		func() (bool, string) { has := mac(); return strings.Count(has, "lladdr 02:42:ac:12:00:05") == 2, has })
	t.Logf("the client heard of the new node after %v", took.Round(time.Millisecond))
	until("pod-a1", egress...)

	put(t, l, "egressip.yaml", carried("app: web", "172.18.0.33 node-b", "fc00:f853:ccd::33 node-b"))
	until("pod-b1", egress...)
	see("to a pod of another node that has it as well", "pod-a1",
		[]string{"10.244.2.3:8080", "[fd00:10:244:2::3]:8080"}, "10.244.1.3", "fd00:10:244:1::3")
	see("from the node that carries it to another", "pod-b1", []string{"172.18.0.3:8081", "[fc00:f853:ccd::3]:8081"},
		nodeB...)

	put(t, l, "egressip.yaml", carried("app: web", "172.18.0.33 node-b", "fc00:f853:ccd::33 node-b",
		"172.18.0.44 node-a", "fc00:f853:ccd::44 node-a"))
	for _, from := range []string{"pod-a1", "pod-b1"} {
		for i, x := range client {
			seen := map[string]bool{}
			want := []string{[]string{"172.18.0.33", "fc00:f853:ccd::33"}[i],
				[]string{"172.18.0.44", "fc00:f853:ccd::44"}[i]}
			eventually(t, 20*time.Second, from+" is seen as both", func() (bool, string) {
				got := saw(from, x)
				seen[got] = true
				return seen[want[0]] && seen[want[1]], fmt.Sprint(seen)
			})
			for got := range seen {
				// A connection made during the change may be lost.
				if _, err := netip.ParseAddr(got); err == nil && !slices.Contains(want, got) {
					t.Errorf("%s was seen as %s", from, got)
				}
			}
		}
	}
	patience = 500 * time.Millisecond
	leaks(t, l, mode, saw, client)
	patience = 3 * time.Second
	if engine == cluster.EngineOpenFlow { // the rest is the same with the other engine
		labelsChange(t, l, until, egress, nodeA)
		podRemade(t, l, pods, until, egress)
	}
	put(t, l, "egressip.yaml", "# nothing\n")
	until("pod-a1", nodeA...)
}

// labelsChange: labels of a pod and its namespace change 15 times. The source of a new connection
// follows.
func labelsChange(t *testing.T, l *lab.Lab, until func(from string, want ...string), egress, own []string) {
	selected := carried("target: podlocal", "172.18.0.33 node-b", "fc00:f853:ccd::33 node-b")
	selected = strings.Replace(selected, "namespaceSelector: {}", "namespaceSelector: {matchLabels: {env: prod}}", 1)
	text, err := os.ReadFile(filepath.Join(l.Dir(), "manifests", "pods.yaml"))
	noError(t, err)
	for i := range 15 { // each change counts
		pod, space := i%4 != 1, i%4 != 3
		want, env, label := own, "dev", "target: podlocal"
		if pod && space {
			want = egress
		}
		if space {
			env = "prod"
		}
		if !pod {
			label = "target: another"
		}
		put(t, l, "pods.yaml", strings.ReplaceAll(string(text), "target: podlocal", label))
		put(t, l, "egressip.yaml", strings.Replace(selected, "labels: {", "labels: {env: "+env+", ", 1))
		until("pod-a1", want...)
	}
	put(t, l, "pods.yaml", string(text))
}

// podRemade: a pod is deleted and made again with its name, alternately on the node that carries
// the address and on another.
func podRemade(
	t *testing.T, l *lab.Lab, pods map[string]lab.Place, until func(from string, want ...string), egress []string,
) {
	put(t, l, "egressip.yaml", carried("target: again", "172.18.0.33 node-b", "fc00:f853:ccd::33 node-b"))
	for i := range 5 {
		n := l.Node([]string{"node-b", "node-c"}[i%2])
		config := lab.PodConfig{Namespace: "default", Name: "again", UID: fmt.Sprintf("uid-again-%d", i)}
		p, err := n.AddPod(t.Context(), config)
		noError(t, err)
		put(t, l, "again.yaml", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: again, namespace: default, uid: %s, labels: {target: again}}
spec: {nodeName: %s}
status:
  podIPs: [{ip: %q}, {ip: %q}]
`, config.UID, n.Name(), p.IPs()[0], p.IPs()[1]))
		pods["again"] = p
		until("again", egress...)
		noError(t, p.Delete(t.Context()))
		put(t, l, "again.yaml", "# nothing\n")
	}
}

// leaks removes the translation without the agents: no pod address, nor a node's in its place, is
// seen outside.
func leaks(t *testing.T, l *lab.Lab, mode string, saw func(from, to string) string, client []string) {
	b := l.Node("node-b")
	put(t, l, "egressip.yaml", carried("app: web", "172.18.0.33 node-b", "fc00:f853:ccd::33 node-b"))
	eventually(t, 20*time.Second, "pod-a1 leaves by node-b alone", func() (bool, string) {
		hops := sh(t, l.Node("node-a"), "ovn-nbctl lr-policy-list ovn_cluster_router | grep ' 100 '")
		return !strings.Contains(hops, ","), hops
	})
	sh(t, l.Node("node-a"), "ovn-nbctl --timeout=30 --wait=hv sync; ovs-appctl -T 30 revalidator/wait")
	script := "ovn-nbctl lr-nat-del GR_node-b snat 10.244.0.0/16; ovn-nbctl lr-nat-del GR_node-b snat fd00:10:244::/48"
	if mode == cluster.ModeDetached { // there, the host translates
		script = "ip rule del priority 6000 from 10.244.1.3; ip -6 rule del priority 6000 from fd00:10:244:1::3; " +
			"nft flush map inet hairpin egress4; nft flush map inet hairpin egress6"
	}
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default: // the agent restores them; until then some packets are not translated
				_, _ = b.Exec(t.Context(), "sh", "-c", script)
			}
		}
	}()
	lost := 0
	for range 10 {
		for i, x := range client {
			switch got := saw("pod-a1", x); {
			case got == []string{"172.18.0.33", "fc00:f853:ccd::33"}[i]:
			case strings.Contains(got, "timeout") || strings.Contains(got, "deadline"):
				lost++
			default:
				t.Errorf("without translation, pod-a1 is seen as %s", got)
			}
		}
	}
	close(stop)
	<-done
	t.Logf("%d of 20 were lost and none leaked", lost)
	waitWell(t, b)
}
