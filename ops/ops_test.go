package ops

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
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"hairpin/cluster"
)

var update = flag.Bool("update", false, "rewrite docs/reference/metrics.md")

func silent() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// TestHealth checks the responses of each endpoint during the life of an agent.
func TestHealth(t *testing.T) {
	begin := time.Now()
	v := &Health{}
	for _, c := range []struct {
		name     string
		at       time.Duration
		do       func(now time.Time)
		livez    bool
		readyz   bool
		degraded string
	}{
		{"started", 0, func(time.Time) {}, true, false, "not known yet"},
		{"set up", 0, func(now time.Time) { v.Set(now, "being set up", "being set up", false) }, true, false,
			"being set up"},
		{"in order", time.Second, func(now time.Time) { v.Set(now, "", "", false) }, true, true, ""},
		{"a daemon restarts", 2 * time.Second, func(now time.Time) { v.Set(now, "", "ovs is away", false) }, true, true,
			""},
		{"long", 2*time.Second + degradedTime, func(now time.Time) { v.Set(now, "", "ovs is away", false) }, true,
			false,
			"ovs is away"},
		{"it is back", time.Minute, func(now time.Time) { v.Set(now, "", "", false) }, true, true, ""},
		{"a long round", time.Minute, func(now time.Time) { v.busy = now }, true, true, ""},
		{"too long", 2*time.Minute + time.Second, func(time.Time) {}, false, false, "the main loop has not paused for 1m1s"},
		{"over", 3 * time.Minute, func(time.Time) { v.busy = time.Time{} }, true, true, ""},
	} {
		now := begin.Add(c.at)
		c.do(now)
		if got := v.Dead(now); (got == "") != c.livez {
			t.Errorf("%s: livez: %q", c.name, got)
		}
		if got := v.NotReady(now); (got == "") != c.readyz {
			t.Errorf("%s: readyz: %q", c.name, got)
		}
		if got := v.DataplaneError(now); got != c.degraded {
			t.Errorf("%s: degraded: %q", c.name, got)
		}
	}
	v.Set(time.Now(), "", "", true)
	mux := http.NewServeMux()
	v.Register(mux)
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
	web := cluster.Frontend{Owner: owner("web"), PortName: "a", HealthCheckNodePort: 30001, ExternalLocal: true,
		Backends: []cluster.Backend{
			at("n", "10.244.1.1", true), at("n", "10.244.1.2", true), at("n", "10.244.1.3", false),
			at("m", "10.244.2.1", true)}}
	web2, web6 := web, web
	web2.PortName = "b"
	web6.Family, web6.Backends = cluster.IPv6, []cluster.Backend{at("n", "fd00::1", true)}
	thief := cluster.Frontend{Owner: owner("xthief"), HealthCheckNodePort: 30001, ExternalLocal: true}
	spread := cluster.Frontend{Owner: owner("spread"), HealthCheckNodePort: 30002, Backends: web.Backends}
	host := cluster.Frontend{Owner: owner("ztail"), HealthCheckNodePort: 30003, ExternalLocal: true,
		Backends: []cluster.Backend{
			at("", "172.18.0.3", true), at("", "172.18.0.4", true), at("m", "172.18.0.3", true)}}
	node := &cluster.Node{Name: "n", HostAddresses: []netip.Prefix{netip.MustParsePrefix("172.18.0.3/16")}}
	all, problems := LocalStates([]*cluster.Frontend{&spread, &web, &web2, &web6, &thief, &thief, &host}, node)
	want := map[uint16]LocalState{30001: {owner("web"), 2}, 30003: {owner("ztail"), 1}}
	if diff := cmp.Diff(want, all, cmp.AllowUnexported(LocalState{})); diff != "" {
		t.Error(diff)
	}
	if got := fmt.Sprint(problems); got != "[Service/default/xthief: spec.healthCheckNodePort: port 30001 belongs "+
		"to Service/default/web]" {
		t.Error(got)
	}
}

// TestBearerToken: the name of a scheme has no case (RFC 9110, 11.1).
func TestBearerToken(t *testing.T) {
	for header, want := range map[string]string{"": "", "Bearer": "", "Bearer ": "", "Bearer x": "x", "bearer x ": "x",
		"Basic x": "", "Bearerx": ""} {
		q := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		q.Header.Set("Authorization", header)
		if got := new(authorized).token(q); got != want {
			t.Errorf("%q: %q, not %q", header, got, want)
		}
	}
}

// TestListeners checks that an address in use is reported, and used as soon as it is free.
func TestListeners(t *testing.T) {
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := netip.MustParseAddrPort(taken.Addr().String())
	d := NewListeners(silent())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.Serve(ctx, "test", []netip.AddrPort{address}, http.NotFoundHandler())
	}()
	wait := func(what string, ok func(err string) bool) {
		t.Helper()
		last := ""
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			for _, r := range d.Report() {
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

// TestMetricsDocument: docs/reference/metrics.md is generated from the metrics (`go test ./ops -run
// MetricsDocument -update`).
func TestMetricsDocument(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Metrics\n\nThis page lists every metric. " +
		"[monitoring.md](../operations/monitoring.md#prometheus) describes how to\n" +
		"scrape them, and [configuration.md](configuration.md#metrics-by-tls) where agent and " +
		"controller serve them. Both\n" +
		"also have the metrics of every Go program (`go_*`, `process_*`). Durations are in seconds. To read the\n" +
		"values of one node by hand:\n\n```\n" +
		"kubectl -n hairpin exec POD -c agent -- hairpin probe metrics\n```\n")
	for _, of := range []struct{ of, title string }{{ofBoth, "Agent and controller"}, {OfAgent, "Agent"},
		{OfController, "Controller"}} {
		fmt.Fprintf(&b, "\n## %s\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n", of.title)
		for _, m := range Metrics() {
			if m.Of == of.of {
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, m.Kind, strings.Join(m.Labels, ", "), m.Help)
			}
		}
	}
	b.WriteString("\n<!-- Made by `go test ./ops -run MetricsDocument -update`. -->\n")
	const path = "../docs/reference/metrics.md"
	if *update {
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
}
