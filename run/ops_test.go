package run

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/cluster"
	"hairpin/report"
)

func silent() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// TestVitals: what each endpoint answers, in the life of an agent.
func TestVitals(t *testing.T) {
	begin := time.Now()
	v := &vitals{}
	for _, c := range []struct {
		name     string
		at       time.Duration
		do       func(now time.Time)
		livez    bool
		readyz   bool
		neglects string
	}{
		{"started", 0, func(time.Time) {}, true, false, "not known yet"},
		{"set up", 0, func(now time.Time) { v.tell(now, "being set up", "being set up", false) }, true, false, "being set up"},
		{"in order", time.Second, func(now time.Time) { v.tell(now, "", "", false) }, true, true, ""},
		{"a daemon restarts", 2 * time.Second, func(now time.Time) { v.tell(now, "", "ovs is away", false) }, true, true, ""},
		{"for long", 2*time.Second + lapse, func(now time.Time) { v.tell(now, "", "ovs is away", false) }, true, false, "ovs is away"},
		{"it is back", time.Minute, func(now time.Time) { v.tell(now, "", "", false) }, true, true, ""},
		{"a long round", time.Minute, func(now time.Time) { v.busy = now }, true, true, ""},
		{"too long", 2*time.Minute + time.Second, func(time.Time) {}, false, false, "the main loop works since 1m1s"},
		{"over", 3 * time.Minute, func(time.Time) { v.busy = time.Time{} }, true, true, ""},
	} {
		now := begin.Add(c.at)
		c.do(now)
		if got := v.dead(now); (got == "") != c.livez {
			t.Errorf("%s: livez: %q", c.name, got)
		}
		if got := v.notReady(now); (got == "") != c.readyz {
			t.Errorf("%s: readyz: %q", c.name, got)
		}
		if got := v.neglected(now); got != c.neglects {
			t.Errorf("%s: neglected: %q", c.name, got)
		}
	}
	v.tell(time.Now(), "", "", true)
	mux := http.NewServeMux()
	v.add(mux)
	for path, want := range map[string]int{"/livez": 200, "/readyz": 200, "/healthz": 503} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != want {
			t.Errorf("leaving: %s is %d %s", path, w.Code, w.Body)
		}
	}
}

func TestLocalStates(t *testing.T) {
	owner := func(name string) cluster.Owner {
		return cluster.Owner{Kind: "Service", Namespace: "default", Name: name}
	}
	at := func(node, address string, ready bool) cluster.Backend {
		return cluster.Backend{Addr: netip.MustParseAddr(address), Port: 80, Node: node, Ready: ready, Serving: true}
	}
	web := cluster.Frontend{Owner: owner("web"), PortName: "a", HealthCheckNodePort: 30001, ExternalLocal: true, Backends: []cluster.Backend{
		at("n", "10.244.1.1", true), at("n", "10.244.1.2", true), at("n", "10.244.1.3", false), at("m", "10.244.2.1", true)}}
	web2, web6 := web, web
	web2.PortName = "b"
	web6.Family, web6.Backends = cluster.IPv6, []cluster.Backend{at("n", "fd00::1", true)}
	thief := cluster.Frontend{Owner: owner("xthief"), HealthCheckNodePort: 30001, ExternalLocal: true}
	spread := cluster.Frontend{Owner: owner("spread"), HealthCheckNodePort: 30002, Backends: web.Backends}
	all, problems := localStates([]*cluster.Frontend{&spread, &web, &web2, &web6, &thief, &thief}, "n")
	want := map[uint16]localState{30001: {owner("web"), 2}}
	if diff := cmp.Diff(want, all, cmp.AllowUnexported(localState{})); diff != "" {
		t.Error(diff)
	}
	if got := fmt.Sprint(problems); got != "[Service/default/xthief: spec.healthCheckNodePort: port 30001 is that of Service/default/web]" {
		t.Error(got)
	}
}

// TestProgramming: which changes of endpoints are measured, and when.
func TestProgramming(t *testing.T) {
	begin := time.Now()
	p := newProgramming(begin)
	front := func(name, port string, after time.Duration) *cluster.Frontend {
		return &cluster.Frontend{Owner: cluster.Owner{Kind: "Service", Name: name}, PortName: port, Family: cluster.IPv4, Triggered: begin.Add(after)}
	}
	old, a, b := front("a", "", -time.Second), front("b", "x", time.Second), front("b", "y", time.Second)
	for _, c := range []struct {
		name string
		now  []*cluster.Frontend
		want []time.Duration
	}{
		{"older than the agent", []*cluster.Frontend{old}, nil},
		{"one change, two ports", []*cluster.Frontend{old, a, b}, []time.Duration{time.Second}},
		{"nothing new", []*cluster.Frontend{old, a, b}, nil},
		{"same time, other fact", []*cluster.Frontend{old, new(*a), b}, nil},
		{"changed", []*cluster.Frontend{front("a", "", 2*time.Second), a, b}, []time.Duration{2 * time.Second}},
		{"gone", []*cluster.Frontend{a}, nil},
		{"and others come", []*cluster.Frontend{a, front("c", "", 3*time.Second), front("d", "", 4*time.Second)}, []time.Duration{3 * time.Second, 4 * time.Second}},
		{"all gone", nil, nil},
	} {
		p.plan(c.now)
		var got []time.Duration
		for _, x := range p.planned {
			got = append(got, x.at.Sub(begin))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, not %v", c.name, got, c.want)
		}
		p.planned = nil
	}

	// A wait that fails is made again; then everything written so far is measured.
	ctx, cancel := context.WithCancel(t.Context())
	tries, measured := 0, make(chan cluster.Family, 2)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.run(ctx, func(context.Context) error {
			if tries++; tries == 1 {
				return io.ErrUnexpectedEOF
			}
			return nil
		}, func(f cluster.Family, _ time.Duration) { measured <- f })
	}()
	p.plan([]*cluster.Frontend{front("e", "", time.Second)})
	p.applied()
	if f := <-measured; f != cluster.IPv4 || tries != 2 {
		t.Errorf("%s after %d tries", f, tries)
	}
	cancel()
	<-done
}

// TestDoors: an address that is taken is told, and used as soon as it can be had.
func TestDoors(t *testing.T) {
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := netip.MustParseAddrPort(taken.Addr().String())
	d := &doors{log: silent()}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.open(ctx, "test", []netip.AddrPort{address}, http.NotFoundHandler())
	}()
	wait := func(what string, ok func(err string) bool) {
		t.Helper()
		last := ""
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			for _, r := range d.report() {
				if last = r.Error; ok(last) {
					return
				}
			}
		}
		t.Fatalf("%s: %q", what, last)
	}
	wait("taken", func(err string) bool { return strings.Contains(err, "address already in use") })
	_ = taken.Close()
	wait("free", func(err string) bool { return err == "" })
	answer, err := http.Get("http://" + address.String())
	if err != nil || answer.StatusCode != http.StatusNotFound {
		t.Errorf("%v %v", answer, err)
	}
	cancel()
	<-done
}

// TestStatusText: the table of a cluster.
func TestStatusText(t *testing.T) {
	since := time.Now().Add(-90 * time.Second)
	part := func(system, err string) report.Part {
		return report.Part{System: system, InSync: err == "", Since: since, Reads: 3, Applies: 2, Written: 40, Drift: 1, Error: err}
	}
	good := &report.Report{Node: "node-a", Version: "v1", Ready: true, Pods: 2, Services: 7, Parts: []report.Part{part("ovn", ""), part("nft", "")}}
	bad := &report.Report{Node: "node-b", Version: "v2", Ready: true, Pods: 1, Services: 7, Restarts: 1, Parts: []report.Part{part("ovn", "refused\nand more")},
		API: &report.API{Away: true, Since: since, Error: "no route"}, Problems: []string{"Service/x: y"},
		Doors: []report.Listener{{For: "metrics", Address: "127.0.0.1:1", Error: "in use"}, {For: "healthz", Address: "[::]:2"}}}
	s := &ClusterStatus{Nodes: []NodeStatus{{"node-a", "", good}, {"node-b", "", bad}, {"node-c", "no agent's pod", nil}},
		Controller: &LeaderStatus{Holder: "host", Since: since}}
	var b strings.Builder
	if err := s.print(&b); err != nil {
		t.Fatal(err)
	}
	want := `
NODE    PART        STATE        SINCE  READS  APPLIES  WRITTEN  DRIFT REPAIRED  ERRORS  LAST ERROR
node-a  agent       ready
node-a  ovn         in sync      1m30s  3      2        40       1               0
node-a  nft         in sync      1m30s  3      2        40       1               0
node-b  agent       ready
node-b  api         away         1m30s                                                   no route
node-b  metrics     closed                                                               127.0.0.1:1: in use
node-b  ovn         not in sync  1m30s  3      2        40       1               0       refused
node-c  agent       no answer                                                            no agent's pod
host    controller  leading      1m30s
2 of 3 nodes answer, 3 pods, 7 service frontends, Open vSwitch restarts repaired: 1, hairpin v1 v2
problem: Service/x: y (on node-b)
`
	var lines []string
	for _, l := range strings.Split(b.String(), "\n") {
		lines = append(lines, strings.TrimRight(l, " "))
	}
	if diff := cmp.Diff(strings.Split(strings.TrimPrefix(want, "\n"), "\n"), lines); diff != "" {
		t.Error(diff)
	}
	if s.well() || !(&ClusterStatus{Nodes: s.Nodes[:1], Controller: s.Controller}).well() {
		t.Error("who is well?")
	}
	for i, spoil := range []func(*report.Report){
		func(r *report.Report) { r.Ready = false }, func(r *report.Report) { r.Neglected = "x" }, func(r *report.Report) { r.Problems = []string{"x"} },
		func(r *report.Report) { r.API = &report.API{Away: true} }, func(r *report.Report) { r.Doors = []report.Listener{{Error: "x"}} }, func(r *report.Report) { r.Parts = []report.Part{{}} },
	} {
		r := *good
		spoil(&r)
		if r.Well() {
			t.Errorf("%d is well", i)
		}
	}
}

func TestChoosePod(t *testing.T) {
	pod := func(name, node string, age time.Duration, running bool) corev1.Pod {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-age))}, Spec: corev1.PodSpec{NodeName: node}}
		if running {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: agentContainer, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		}
		return p
	}
	pods := []corev1.Pod{pod("old", "a", 2*time.Hour, true), pod("new", "a", time.Hour, true), pod("newest", "a", 0, false), pod("starts", "b", 0, false)}
	for node, want := range map[string]string{"a": "new", "b": "pod starts: container agent does not run", "c": "no agent's pod"} {
		p, why := choosePod(pods, node)
		if p != nil {
			why = p.Name
		}
		if why != want {
			t.Errorf("%s: %q, not %q", node, why, want)
		}
	}
}

// updateMetrics rewrites docs/metrics.md. (The flag -update is that of the tests outside of the package, in this binary.)
func updateMetrics() bool {
	f := flag.Lookup("update")
	return f != nil && f.Value.String() == "true"
}

// TestMetricsDocument: docs/metrics.md is generated from the metrics (`go test ./run -run MetricsDocument -update`), and each
// can be read.
func TestMetricsDocument(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Metrics\n\nThis page lists every metric. The agent serves them on `metrics-bind-address`, the controller on `controller-metrics-bind-address` and on its socket\n" +
		"([configuration.md](configuration.md)). Both also have the metrics of every Go program (`go_*`, `process_*`). Durations are in seconds.\n")
	for _, of := range []struct{ of, title string }{{both, "Agent and controller"}, {ofAgent, "Agent"}, {ofController, "Controller"}} {
		fmt.Fprintf(&b, "\n## %s\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n", of.title)
		for _, m := range Metrics() {
			if m.Of == of.of {
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, m.Kind, strings.Join(m.Labels, ", "), m.Help)
			}
		}
	}
	b.WriteString("\n<!-- Made by `go test ./run -run MetricsDocument -update`. -->\n")
	const path = "../docs/metrics.md"
	if updateMetrics() {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(text), "\n"), strings.Split(b.String(), "\n")); diff != "" {
		t.Errorf("%s is out of date:\n%s", path, diff)
	}
	w := newWatched(&apiReach{}, silent())
	w.leads(true)
	w.sees(3, 1)
	answer := httptest.NewRecorder()
	w.meters.handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{"hairpin_controller_leader 1", "hairpin_controller_nodes 3", "hairpin_problems 1", "hairpin_api_reachable 0", `hairpin_build_info{`} {
		if !strings.Contains(answer.Body.String(), "\n"+want) {
			t.Errorf("no %s in\n%s", want, answer.Body)
		}
	}
}
