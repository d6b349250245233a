package podside_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"hairpin/selftest/podside"
)

// output is the log of a pod.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) text() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Clone(o.b.Bytes())
}

// start runs a pod's work, and returns its output. The pod ends with the test.
func start(t *testing.T, k podside.Work) *output {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	out, ended := &output{}, make(chan error, 1)
	go func() { ended <- k.Run(ctx, out) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return out
}

// results waits for the results of n checks.
func results(t *testing.T, out *output, n int) []podside.Result {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		list, done, err := podside.Results(out.text(), n)
		if err != nil || time.Now().After(end) {
			t.Fatalf("%v\n%s", err, out.text())
		}
		if done {
			by := make([]podside.Result, n)
			for _, r := range list {
				by[r.Check] = r
			}
			return by
		}
	}
}

// TestChecks checks each kind of check against real servers: one that passes and one that fails.
func TestChecks(t *testing.T) {
	const port, other, sink, closed = 39180, 39181, 39182, 39183
	at := func(ip string, port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(ip), port) }
	start(t, podside.Work{Name: "server-1", Serve: []uint16{port, other}, Sink: sink})
	const answers, full, blocked = podside.Answers, podside.Full, podside.Blocked
	list := []struct {
		check podside.Check
		want  string // part of the error
	}{
		{podside.Check{Kind: answers, Protocol: "tcp", To: at("127.0.0.1", port), Server: "server-1", Source: true},
			""},
		{podside.Check{Kind: answers, Protocol: "udp", To: at("::1", port), Server: "server-1", Source: true}, ""},
		{podside.Check{Kind: answers, Protocol: "tcp", To: at("127.0.0.1", port), Server: "server-2"},
			`server "server-1" answers, not server-2`},
		{podside.Check{Kind: answers, Protocol: "tcp", To: at("127.0.0.1", closed), Server: "server-1"},
			"connection refused"},
		{podside.Check{Kind: podside.Accepts, To: at("127.0.0.1", sink)}, ""},
		{podside.Check{Kind: podside.Accepts, To: at("127.0.0.1", closed)}, "connection refused"},
		{podside.Check{Kind: blocked, Protocol: "tcp", To: at("127.0.0.1", closed)}, ""},
		{podside.Check{Kind: blocked, Protocol: "udp", To: at("127.0.0.1", other)},
			`server "server-1" answers, although a policy drops the packet`},
		{podside.Check{Kind: full, Protocol: "udp", To: at("127.0.0.1", port)}, ""},
		{podside.Check{Kind: full, Protocol: "udp", To: at("::1", port)}, ""},
		{podside.Check{Kind: full, Protocol: "tcp", To: at("127.0.0.1", other)}, ""},
		{podside.Check{Kind: full, Protocol: "tcp", To: at("127.0.0.1", sink)}, "read the greeting"},
		{podside.Check{Kind: podside.Resolves, Host: "127.0.0.5", Want: []netip.Addr{netip.MustParseAddr("127.0.0.5")}},
			""},
		{podside.Check{Kind: podside.Resolves, Host: "127.0.0.5", Want: []netip.Addr{netip.MustParseAddr("127.0.0.6")}},
			"127.0.0.5 has the addresses [127.0.0.5], not [127.0.0.6]"},
		{podside.Check{Kind: podside.Measures, Protocol: "tcp", To: at("127.0.0.1", port), Sink: sink,
			For: 100 * time.Millisecond}, ""},
		{podside.Check{Kind: podside.Measures, Protocol: "tcp", To: at("127.0.0.1", port), Sink: closed,
			For: 100 * time.Millisecond}, "throughput: "},
		{podside.Check{Kind: "new"}, `kind of check "new" is unknown`},
	}
	work := podside.Work{Name: "client-0", Patience: 300 * time.Millisecond}
	for _, c := range list {
		work.Checks = append(work.Checks, c.check)
	}
	for i, r := range results(t, start(t, work), len(list)) {
		c := list[i]
		if (r.Error == "") != (c.want == "") || !strings.Contains(r.Error, c.want) || r.Attempts < 1 {
			t.Errorf("%+v: %+v, want error %q", c.check, r, c.want)
		}
		if m := r.Measured; c.check.Kind == podside.Measures && c.want == "" {
			if m == nil || m.ConnectMs <= 0 || m.RoundTripMs <= 0 || m.MegabitsPS < 1 {
				t.Errorf("measured %+v", m)
			}
			t.Logf("loopback: %+v", *m)
		}
		if c.check.Kind == full && c.check.Protocol == "udp" && !strings.HasPrefix(r.Note, "MTU ") {
			t.Errorf("%+v: note %q", c.check, r.Note)
		}
	}
}

// TestPatience checks that a check waits for a server that comes late, and that a busy port ends a
// pod with its reason.
func TestPatience(t *testing.T) {
	const port = 39190
	to := netip.MustParseAddrPort(fmt.Sprintf("127.0.0.1:%d", port))
	early, err := net.Listen("tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	client := start(t, podside.Work{Name: "client", Patience: time.Minute,
		Checks: []podside.Check{{Kind: podside.Answers, Protocol: "tcp", To: to, Server: "late"}}})
	conn, err := early.Accept() // the first attempt fails: nothing answers
	if err := errors.Join(err, conn.Close(), early.Close()); err != nil {
		t.Fatal(err)
	}
	start(t, podside.Work{Name: "late", Serve: []uint16{port}})
	if r := results(t, client, 1)[0]; r.Error != "" || r.Attempts < 2 {
		t.Errorf("%+v", r)
	}
	err = podside.Work{Name: "second", Serve: []uint16{port}}.Run(t.Context(), &output{})
	if err == nil || !strings.Contains(err.Error(), "second: serve: ") ||
		!strings.Contains(err.Error(), "address already in use") {
		t.Error(err)
	}
}

// TestResults checks that output that is incomplete or wrong is no success.
func TestResults(t *testing.T) {
	for text, want := range map[string]string{
		"": "0 false <nil>", `{"check":0}`: "1 false <nil>", `{"check":0}` + "\n" + `{"check":1,"err`: "1 false <nil>",
		`{"check":1}{"check":0}{"done":true}`: "2 true <nil>",
		`{"check":1}{"done":true}`:            "1 false result: 1 of 2 are missing",
		`{"check":2}`:                         "0 false result: there is no check 2, or a second result of it",
		`{"check":0}{"check":0}`:              "1 false result: there is no check 0, or a second result of it",
		"panic":                               "0 false result: invalid character 'p' looking for beginning of value",
	} {
		list, done, err := podside.Results([]byte(text), 2)
		if got := fmt.Sprint(len(list), done, err); got != want {
			t.Errorf("%q: %s, not %s", text, got, want)
		}
	}
}
