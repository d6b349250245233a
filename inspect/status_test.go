package inspect

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/report"
)

// TestStatusText checks the table of a cluster.
func TestStatusText(t *testing.T) {
	since := time.Now().Add(-90 * time.Second)
	part := func(system, err string) report.Part {
		return report.Part{System: system, InSync: err == "", Since: since, Reads: 3, Applies: 2, Written: 40, Drift: 1,
			Error: err}
	}
	good := &report.Report{Node: "node-a", Version: "v1", Ready: true, Pods: 2, Services: 7,
		NetworkPolicies: 3, ClusterNetworkPolicies: 2, IsolatedPods: 2,
		Parts:    []report.Part{part("ovn", ""), part("nft", "")},
		Switch:   &report.Switch{Version: "3.5.0", Userspace: true, Faults: []string{"a", "b"}},
		Redirect: &report.Redirect{Requests: 12, Replies: 11, Fragments: 2, NoRoute: 1}}
	bad := &report.Report{Node: "node-b", Version: "v2", Ready: true, Pods: 1, Services: 7, Restarts: 1,
		Engine: "openflow", Parts: []report.Part{part("ovn", "refused\nand more")}, IsolatedPods: 1, NetworkPolicies: 3,
		Switch: &report.Switch{Version: "3.5.0", Userspace: true, Faults: []string{"a", "b"}},
		API:    &report.API{Unreachable: true, Since: since, Error: "no route"}, Problems: []string{"Service/x: y"},
		Listeners: []report.Listener{{For: "metrics", Address: "127.0.0.1:1", Error: "in use"},
			{For: "healthz", Address: "[::]:2"}}}
	s := &ClusterStatus{Nodes: []NodeStatus{{"node-a", "", good}, {"node-b", "", bad},
		{"node-c", "no agent's pod", nil}},
		Controller: &LeaderStatus{Holder: "host", Since: since}}
	var b strings.Builder
	if err := s.printText(&b, true); err != nil {
		t.Fatal(err)
	}
	const totals = `3 nodes: 1 ready, 1 without the API, 1 no answer
controller: host leads since 1m30s
3 pods, 7 service frontends, 3 NetworkPolicies, 2 ClusterNetworkPolicies, isolated pods: 3
hairpin v1 v2; Open vSwitch 3.5.0 (userspace datapath), restarts repaired: 1; node-a: load balancers of OVN serve Services (service-engine = ovn)
`
	const hints = `hint: node-a and 1 more: TSO is off, so streams are slow; it needs userspaceTSO=true and Open vSwitch newer than 3.5.0
hint: node-a and 1 more: Open vSwitch 3.5.0 (userspace datapath) has known faults (2): docs/reference/compatibility.md
`
	want := `
NODE    COMPONENT   STATE        SINCE  READS  APPLIES  WRITTEN  DRIFT REPAIRED  ERRORS  LAST ERROR
node-a  agent       ready
node-a  ovn         in sync      1m30s  3      2        40       1               0
node-a  nft         in sync      1m30s  3      2        40       1               0
node-b  agent       ready
node-b  api         unreachable  1m30s                                                   no route
node-b  metrics     closed                                                               127.0.0.1:1: in use
node-b  ovn         not in sync  1m30s  3      2        40       1               0       refused
node-c  agent       no answer                                                            no agent's pod
host    controller  leading      1m30s
problem: Service/x: y (on node-b)
` + totals + `node-a: packets of clients outside redirected: 12 requests, 11 replies; left to the host: 2 fragments, 1 replies without a route
` + hints + "  a\n  b\n"
	same(t, want, b.String())
	b.Reset()
	if err := s.printText(&b, false); err != nil {
		t.Fatal(err)
	}
	same(t, `
NODE    COMPONENT  STATE        SINCE  REASON
node-b  api        unreachable  1m30s  no route
node-b  metrics    closed              127.0.0.1:1: in use
node-b  ovn        not in sync  1m30s  refused
node-c  agent      no answer           no agent's pod
problem: Service/x: y (on node-b)
`+totals+hints, b.String())
	if s.withoutProblems() || !(&ClusterStatus{Nodes: s.Nodes[:1], Controller: s.Controller}).withoutProblems() {
		t.Error("which nodes are without problems?")
	}
	for i, spoil := range []func(*report.Report){
		func(r *report.Report) { r.Ready = false }, func(r *report.Report) { r.Degraded = "x" },
		func(r *report.Report) { r.API = &report.API{Unreachable: true} },
		func(r *report.Report) { r.Listeners = []report.Listener{{Error: "x"}} },
		func(r *report.Report) { r.Parts = []report.Part{{}} },
	} {
		r := *good
		spoil(&r)
		if r.Healthy() {
			t.Errorf("%d is healthy", i)
		}
	}
	r := *good
	r.Problems = []string{"Service/x: y"} // any tenant can cause one
	s = &ClusterStatus{Nodes: []NodeStatus{{"node-a", "", &r}}}
	for wait, want := range map[time.Duration]error{0: report.ErrProblems, time.Minute: nil} {
		if err := s.print(io.Discard, StatusOptions{All: true, Wait: wait}); !errors.Is(err, want) {
			t.Errorf("with a problem of an object, --wait=%s: %v, not %v", wait, err, want)
		}
	}
	if s.withoutProblems() || !s.healthy() {
		t.Error("a problem of an object makes a component unhealthy, or is none")
	}
}

// same compares an output with the lines after the first of want, without trailing spaces.
func same(t *testing.T, want, got string) {
	t.Helper()
	var lines []string
	for _, l := range strings.Split(got, "\n") {
		lines = append(lines, strings.TrimRight(l, " "))
	}
	if diff := cmp.Diff(strings.Split(strings.TrimPrefix(want, "\n"), "\n"), lines); diff != "" {
		t.Error(diff)
	}
}

// TestNotReady: while the agent is not ready, only components with an error are listed.
func TestNotReady(t *testing.T) {
	since := time.Now().Add(-time.Minute)
	s := &ClusterStatus{Nodes: []NodeStatus{{Node: "node-a", Report: &report.Report{Node: "node-a", Version: "v1",
		Engine: "openflow", Reason: "the cluster is not known yet", Switch: &report.Switch{Version: "4.0.0"},
		Parts: []report.Part{{System: "ovn", Since: since}, {System: "nft", Since: since, Error: "refused"}}}}}}
	var b strings.Builder
	if err := s.printText(&b, false); err != nil {
		t.Fatal(err)
	}
	text, _, _ := strings.Cut(b.String(), "node-a: ")
	same(t, `
NODE    COMPONENT  STATE        SINCE  REASON
node-a  agent      not ready           the cluster is not known yet
node-a  nft        not in sync  1m0s   refused
`, text)
}

// TestStatusScreen checks that the output fits on a screen: a healthy cluster of 1000 nodes in few
// lines, one where everything is wrong in about 50.
func TestStatusScreen(t *testing.T) {
	since := time.Now().Add(-time.Hour)
	s := &ClusterStatus{Controller: &LeaderStatus{Holder: "node-7", Since: since}}
	for i := range 1000 {
		name := fmt.Sprintf("node-%d", i)
		r := &report.Report{Node: name, Version: "v1", Ready: true, Pods: 20, Services: 500, Engine: "openflow",
			Switch: &report.Switch{Version: "3.6.0"}}
		for _, system := range []string{"ovn", "openvswitch", "nft", "host", "connections"} {
			r.Parts = append(r.Parts, report.Part{System: system, InSync: true, Since: since})
		}
		s.Nodes = append(s.Nodes, NodeStatus{Node: name, Report: r})
	}
	for i := range 200 {
		s.Nodes[0].Report.Egress = append(s.Nodes[0].Report.Egress,
			report.Egress{EgressIP: fmt.Sprint("e-", i), Address: fmt.Sprint("192.0.2.", i), Node: "node-1"})
	}
	var b strings.Builder
	if err := s.printText(&b, false); err != nil || !s.withoutProblems() {
		t.Fatal(err, s.withoutProblems())
	}
	same(t, `
1000 nodes: 1000 ready
controller: node-7 leads since 1h0m0s
20000 pods, 500 service frontends
egress addresses: 200, 200 on a node
hairpin v1; Open vSwitch 3.6.0 (kernel datapath)
`, b.String())
	for i := range s.Nodes {
		r := s.Nodes[i].Report
		r.Ready, r.Reason = i%2 == 0, fmt.Sprint("reason ", i)
		r.Problems = []string{fmt.Sprint("Pod/p-", i, ": bad")}
	}
	for i := range s.Nodes[0].Report.Egress {
		s.Nodes[0].Report.Egress[i].Why = "it does not answer"
	}
	b.Reset()
	if err := s.printText(&b, false); err != nil || s.withoutProblems() {
		t.Fatal(err, s.withoutProblems())
	}
	for _, want := range []string{"\nand 480 more: see status -o wide\n",
		"\nand 980 more problems: see status -o wide\n",
		"\n1000 nodes: 500 ready, 500 not ready\n", "egress addresses: 200, 200 on a node, 200 with a reason"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q", want)
		}
	}
	if n := strings.Count(b.String(), "\n"); n > 70 {
		t.Errorf("%d lines:\n%s", n, &b)
	}
}

func TestChoosePod(t *testing.T) {
	pod := func(name, node string, age time.Duration, running bool) corev1.Pod {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name,
			CreationTimestamp: metav1.NewTime(time.Now().Add(-age))}, Spec: corev1.PodSpec{NodeName: node}}
		if running {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: agentContainer,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		}
		return p
	}
	pods := []corev1.Pod{pod("old", "a", 2*time.Hour, true), pod("new", "a", time.Hour, true),
		pod("newest", "a", 0, false), pod("starts", "b", 0, false)}
	a := &Agents{options: ClusterOptions{Namespace: "x"}}
	for node, want := range map[string]string{"a": "new",
		"b": "pod starts: container agent does not run in namespace x", "c": "no agent's pod in namespace x"} {
		n := a.choosePod(pods, node)
		got := fmt.Sprint(n.missing)
		if n.pod != nil {
			got = n.pod.Name
		}
		if got != want || (n.pod == nil) == (n.missing == nil) {
			t.Errorf("%s: %q, not %q", node, got, want)
		}
	}
}

// TestEgressText checks the table of the egress addresses.
func TestEgressText(t *testing.T) {
	var out strings.Builder
	list := []report.Egress{{EgressIP: "e", Address: "172.18.0.33", Node: "a", Next: "b", BGP: "a,c",
		Since: time.Now().Add(-150 * time.Minute)},
		{EgressIP: "e", Address: "172.18.0.44", Why: "no node has it"}}
	s := &ClusterStatus{Nodes: []NodeStatus{{}, {Report: &report.Report{Egress: list}}}}
	if err := printEgress(&out, s.egress()); err != nil {
		t.Fatal(err)
	}
	want := `EGRESSIP  ADDRESS      NODE  SINCE  NEXT  BGP  WHY
e         172.18.0.33  a     150m   b     a,c  
e         172.18.0.44  -     -      -     -    no node has it
`
	if out.String() != want {
		t.Errorf("%s", out.String())
	}
}

// TestUnhealthy checks which components of a node are listed, with their reasons.
func TestUnhealthy(t *testing.T) {
	n := NodeStatus{Node: "a", Report: &report.Report{Node: "a", Ready: true,
		Parts:     []report.Part{{System: "ovn", InSync: true}, {System: "nft", Error: "refused\nand more"}},
		Listeners: []report.Listener{{For: "metrics", Address: "127.0.0.1:1", Error: "in use"}}}}
	want := []string{"metrics: closed: 127.0.0.1:1: in use", "nft: not in sync: refused"}
	if diff := cmp.Diff(want, n.Unhealthy()); diff != "" {
		t.Error(diff)
	}
}
