package agent_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/demo"
	"hairpin/report"
)

// agent is the name under which labs run `hairpin node`.
const agent = "hairpin"

// settings is the path of the configuration of a demo's agents.
const settings = "/etc/hairpin/hairpin.conf"

var (
	ready = flag.String("hairpin", "", "the binary under test, where it is not to be built")
	slow  = flag.Int("slow", 1, "how many times longer than usual labs may take")
)

// binary builds hairpin, once.
var binary = sync.OnceValues(func() (string, error) {
	if *ready != "" {
		return filepath.Abs(*ready)
	}
	return lab.BuildHairpin(context.Background())
})

// build returns the binary under test.
func build(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a lab needs root")
	}
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// startDemo starts the three nodes of the demo, with manifests; it ends with the test.
func startDemo(t *testing.T) *lab.Lab { return startDemoIn(t, cluster.ModeShared) }

// startDemoIn starts the demo in a gateway mode. Labs wait most of the time, so tests run in
// parallel, except those that send hundreds of requests a second and count what fails, or start a
// machine with a disk, which favour excludes.
func startDemoIn(t *testing.T, mode string, config ...string) *lab.Lab {
	t.Helper()
	hairpin := build(t)
	name := demoName()
	t.Cleanup(func() {
		if err := lab.Remove(name); err != nil {
			t.Error(err)
		}
	})
	favour(t)
	_, err := demo.Start(t.Context(), demo.Options{
		Name: name, Objects: "../examples/demo", Hairpin: hairpin, Mode: mode, Slow: *slow, DieWithCaller: true,
		Out:    logged{t},
		Config: strings.Join(config, "\n"),
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := lab.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	// If clients with the same port come through the gateway router, one of them gets another port.
	// Which one may differ after a restart that loses the connection tracking.
	sysctl := "net.ipv4.ip_local_port_range"
	_, err = l.Node("node-a").Exec(t.Context(), "sysctl", "-qw", sysctl+"=40000 60999")
	if err == nil {
		_, err = l.Host("client").Exec(t.Context(), "sysctl", "-qw", sysctl+"=20000 39999")
	}
	if err != nil {
		t.Fatal(err)
	}
	l.Raceless(t, agent)
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range l.Nodes() {
				t.Logf("%s: end of the agent's log:\n%s", n.Name(), tail(n.LogFile(agent)))
			}
		}
	})
	return l
}

// demoName returns a name for the lab of a demo.
func demoName() string { return fmt.Sprintf("run%d-%d", os.Getpid(), demos.Add(1)) }

// demos counts the demos of this process.
var demos atomic.Int32

// favoured counts the labs with the priority of lab.Favour, which belongs to the process.
var favoured struct {
	sync.Mutex
	labs int
	end  func() error
}

// favour gives the process the priority of lab.Favour until the last test that asked for it ends.
// Each lab that runs in parallel with others needs it: next to labs with that priority, one without
// it gets a twentieth of the processor.
func favour(t testing.TB) {
	t.Helper()
	f := &favoured
	f.Lock()
	defer f.Unlock()
	if f.labs == 0 {
		end, err := lab.Favour()
		if err != nil {
			t.Logf("times are those of a busy machine: %v", err)
			return
		}
		f.end = end
	}
	f.labs++
	t.Cleanup(func() {
		f.Lock()
		defer f.Unlock()
		if f.labs--; f.labs > 0 {
			return
		}
		if err := f.end(); err != nil {
			t.Error(err)
		}
	})
}

// logged writes to a test's log.
type logged struct{ t testing.TB }

func (l logged) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

// tail returns the end of a file.
func tail(file string) string {
	const keep = 6000
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-keep):])
}

// ask sends a request to an agent's socket.
func ask(ctx context.Context, n *lab.Node, path string) (string, error) {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", n.Path("/run/hairpin/agent.sock"))
		},
	}}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return "", err
	}
	answer, err := client.Do(q)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, body)
	}
	return string(body), err
}

// report returns the report of an agent.
func reportOf(ctx context.Context, n *lab.Node) (r report.Report, err error) {
	body, err := ask(ctx, n, "/report")
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal([]byte(body), &r)
}

// mustReport is report; the agent must reply.
func mustReport(t testing.TB, n *lab.Node) report.Report {
	t.Helper()
	r, err := reportOf(t.Context(), n)
	if err != nil {
		t.Fatalf("%s: report: %v", n.Name(), err)
	}
	return r
}

// part returns one part of a report.
func part(t testing.TB, r report.Report, system string) report.Part {
	t.Helper()
	for _, p := range r.Parts {
		if p.System == system {
			return p
		}
	}
	t.Fatalf("the report has no %q", system)
	return report.Part{}
}

// well reports whether an agent reports that everything is in order, and why not.
func well(ctx context.Context, n *lab.Node) (bool, string) {
	r, err := reportOf(ctx, n)
	if err != nil {
		return false, err.Error()
	}
	if !r.Ready {
		return false, r.Reason
	}
	for _, p := range r.Parts {
		if !p.InSync {
			return false, p.System + ": " + p.Error
		}
	}
	return true, ""
}

// waitWell waits until the agent of a node reports that everything is in order.
func waitWell(t testing.TB, n *lab.Node) {
	t.Helper()
	eventually(t, 20*time.Second, n.Name()+" is well", func() (bool, string) { return well(t.Context(), n) })
}

// waitServes is waitWell, and also waits until the flows of br-int are in place.
func waitServes(t testing.TB, n *lab.Node) {
	t.Helper()
	waitWell(t, n)
	sh(t, n, "ovn-nbctl --wait=hv --timeout=20 sync")
}

// eventually waits until done returns true, and returns the time that took. The test ends if that
// is longer than limit.
func eventually(t testing.TB, limit time.Duration, what string, done func() (bool, string)) time.Duration {
	t.Helper()
	// What is waited for needs the processor, too.
	return polled(t, 20*time.Millisecond, limit, what, done)
}

// polled is eventually with another pause between two calls.
func polled(t testing.TB, pause, limit time.Duration, what string, done func() (bool, string)) time.Duration {
	t.Helper()
	begin := time.Now()
	limit *= time.Duration(*slow)
	for {
		ok, why := done()
		took := time.Since(begin)
		if ok {
			return took
		}
		if took > limit || t.Context().Err() != nil {
			t.Fatalf("%s: not within %v: %s", what, limit, why)
		}
		time.Sleep(pause)
	}
}

// sh runs a shell script in a node.
func sh(t testing.TB, n *lab.Node, script string) string {
	t.Helper()
	out, err := n.Exec(t.Context(), "sh", "-ec", script)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
