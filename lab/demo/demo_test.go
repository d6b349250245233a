package demo

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const demoObjects = "../../examples/demo"

// Every case can be tried in the demo: its places, Services and sources exist, and it has a reason.
func TestCasesResolve(t *testing.T) {
	w := worldOfManifests(t)
	seen := map[[3]string]bool{}
	for _, c := range Cases() {
		if key := [3]string{c.From, c.To, c.Path}; seen[key] {
			t.Errorf("%v is given twice", key)
		} else {
			seen[key] = true
		}
		if c.Why == "" {
			t.Errorf("%+v has no reason", c)
		}
		for _, f := range families() {
			if to, err := w.target(c, f); err != nil || !to.IsValid() || to.Port() == 0 {
				t.Errorf("%+v over IPv%s: target %v, %v", c, f.name, to, err)
			}
			if c.Saw == "" { // no server
				continue
			}
			if saw, err := w.sources(c.Saw, f); err != nil || !saw[0].IsValid() || saw[0].Is4() != (f.name == "4") {
				t.Errorf("%+v over IPv%s: source %v, %v", c, f.name, saw, err)
			}
		}
	}
}

// Every Service of the examples is in the matrix; those without policies by ClusterIP and by
// NodePort.
func TestEveryServiceIsTried(t *testing.T) {
	tried := map[string]bool{}
	for _, c := range Cases() {
		path, _, _ := strings.Cut(c.Path, " ")
		tried[c.To+" "+path], tried[c.To] = true, true
	}
	o, err := readObjects(demoObjects)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range o.services {
		if !tried[s.Name] {
			t.Errorf("Service %s is not tried", s.Name)
		}
		if s.Spec.ExternalTrafficPolicy != "" || s.Spec.InternalTrafficPolicy != nil ||
			s.Spec.Type == corev1.ServiceTypeLoadBalancer {
			continue
		}
		for _, path := range []string{"ClusterIP", "NodePort"} {
			if !tried[s.Name+" "+path] {
				t.Errorf("Service %s is not tried by %s", s.Name, path)
			}
		}
	}
}

func TestSources(t *testing.T) {
	w := worldOfManifests(t)
	for saw, want := range map[string][2]string{
		"masquerade":  {"169.254.169.1", "fd69::1"},
		"hairpin":     {"169.254.169.5", "fd69::5"},
		"join node-b": {"100.64.0.3", "fd98::3"},
		"mp0 node-c":  {"10.244.3.2", "fd00:10:244:3::2"},
		"host-b":      {"172.18.0.4", "fc00:f853:ccd::4"},
		"pod-a2":      {"10.244.1.4", "fd00:10:244:1::4"},
	} {
		for i, f := range families() {
			if got, err := w.source(saw, f); err != nil || got.String() != want[i] {
				t.Errorf("%s: %v, %v; want %s", saw, got, err, want[i])
			}
		}
	}
	if _, err := w.source("nobody", families()[0]); err == nil {
		t.Error("an unknown word has an address")
	}
}

func TestWrongAnswer(t *testing.T) {
	by := func(names ...string) map[string]bool {
		m := map[string]bool{}
		for _, n := range names {
			m[n] = true
		}
		return m
	}
	for _, c := range []struct {
		want string
		by   map[string]bool
		good bool
	}{
		{"pod-a1", by("pod-a1"), true},
		{"pod-a1", by("pod-b1"), false},
		{"one pod", by("pod-b1"), true},
		{"one pod", by("pod-b1", "pod-b2"), false},
		{"some pods", by("pod-b1", "pod-b2"), true},
		{"some pods", by("pod-b1"), false},
	} {
		if got := wrongAnswer(c.want, c.by); (got == "") != c.good {
			t.Errorf("%s, answered by %v: %q", c.want, c.by, got)
		}
	}
}

func TestTableEndsWithTheCount(t *testing.T) {
	var out bytes.Buffer
	tab := &table{out: &out}
	tab.tell(Result{Case: Cases()[0], Protocol: "tcp4", Got: "100.64.0.2", Want: "100.64.0.2", Millis: 1})
	tab.tell(Result{Case: Cases()[1], Protocol: "udp6", Want: "fd98::2", Problem: "timed\nout"})
	tab.end()
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 4 || lines[3] != "1 passed, 1 failed" || !strings.Contains(lines[2], "FAILED: timed; out") {
		t.Errorf("the table is\n%s", out.String())
	}
}

// worldOfManifests returns the world as the manifests describe it, without a lab.
func worldOfManifests(t *testing.T) *world {
	t.Helper()
	o, err := readObjects(demoObjects)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{endpoints: map[string]endpoint{}, nodes: map[string]nodeFacts{}, services: map[string]serviceFacts{}}
	for i := range o.nodes {
		n := &o.nodes[i]
		if w.nodes[n.Name], err = factsOfNode(n); err != nil {
			t.Fatal(err)
		}
		ips, err := addresses(n)
		if err != nil {
			t.Fatal(err)
		}
		w.endpoints[hostPlace(n.Name)] = endpoint{nil, plain(ips), hostPort}
	}
	for _, p := range o.pods {
		var ips []netip.Addr
		for _, ip := range p.Status.PodIPs {
			ips = append(ips, netip.MustParseAddr(ip.IP))
		}
		w.endpoints[p.Name] = endpoint{nil, ips, podPort}
	}
	w.endpoints[clientName] = endpoint{nil,
		[]netip.Addr{netip.MustParseAddr("172.18.0.100"), netip.MustParseAddr("fc00:f853:ccd::64")}, clientPort}
	for i := range o.services {
		if w.services[o.services[i].Name], err = factsOfService(&o.services[i]); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func TestEndpointCounts(t *testing.T) {
	o, err := readObjects(demoObjects)
	if err != nil {
		t.Fatal(err)
	}
	want := (&Demo{objects: o}).endpointCounts()
	a := netip.MustParseAddr
	if want[a("10.96.1.1")] != 1 || want[a("fd00:10:96::103")] != 1 || want[a("10.96.1.11")] != 6 {
		t.Errorf("the endpoints are %v", want)
	}
	if n, there := want[a("10.96.2.5")]; there {
		t.Errorf("a Service with internalTrafficPolicy Local has %d endpoints on every node", n)
	}
	vips := "10.96.1.11:80=10.244.1.3:8080,10.244.1.4:8080\n\n[fd00:10:96::103]:80=[fd69::2]:8081\n10.96.1.1:80=\n172.18.0.3:30001=10.244.1.3:8080\n"
	got := countBackends(vips, want)
	if got[a("10.96.1.11")] != 2 || got[a("fd00:10:96::103")] != 1 || got[a("10.96.1.1")] != 0 || len(got) != 3 {
		t.Errorf("the backends are %v", got)
	}
}
