package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// TB has the methods of *testing.T and *testing.B that a lab needs.
type TB interface {
	Helper()
	Name() string
	Failed() bool
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
	Cleanup(func())
	TempDir() string
	Context() context.Context
}

// Start starts a lab that ends with the test, and also when the test's process is killed. The test
// is skipped where namespaces cannot be made. When the test fails, it prints the end of every log.
func Start(t TB, cfg Config) *Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skipf("a lab needs root")
	}
	if _, err := RemoveStale(); err != nil {
		t.Logf("%v", err)
	}
	cfg.DieWithCaller = true
	if cfg.Name == "" {
		cfg.Name = fmt.Sprintf("t%d-%d", os.Getpid(), time.Now().UnixNano()%1e9)
	}
	l, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			l.logLogs(t)
		}
		if err := l.Close(); err != nil {
			t.Logf("%v", err)
		}
	})
	return l
}

// Raceless makes the test fail if a daemon that was built with the race detector has found a race
// on a node of the lab.
func (l *Lab) Raceless(t TB, daemon string) {
	t.Cleanup(func() {
		for _, n := range l.Nodes() {
			text, err := os.ReadFile(n.LogFile(daemon))
			if _, race, found := strings.Cut(string(text), "WARNING: DATA RACE"); err == nil && found {
				t.Errorf("%s: a data race:\n%s", n.Name(), race[:min(len(race), 4000)])
			}
		}
	})
}

// StartNode starts a lab with one node; both end with the test.
func StartNode(t TB, cfg NodeConfig) *Node {
	t.Helper()
	return Start(t, Config{}).Add(t, cfg)
}

// StartAPI starts a lab with a host that has an API server; all end with the test.
func StartAPI(t TB) (*APIServer, *Host) {
	t.Helper()
	l := Start(t, Config{})
	host, err := l.StartHost(t.Context(), HostConfig{Name: "api"})
	if err != nil {
		t.Fatalf("%v", err)
	}
	binary, err := BuildKube(t.Context(), "/var/cache/hairpin", func(line string) { t.Logf("%s", line) })
	if err != nil {
		t.Fatalf("%v", err)
	}
	server, err := StartAPIServer(t.Context(), APIServerConfig{Binary: binary, Dir: t.TempDir(),
		Address: host.Addresses()[0].Addr(), Netns: host.Netns(), DieWithCaller: true})
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Errorf("%v", err)
		}
	})
	return server, host
}

// Add starts another node in a lab of a test.
func (l *Lab) Add(t TB, cfg NodeConfig) *Node {
	t.Helper()
	n, err := l.StartNode(t.Context(), cfg)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return n
}

// logLogs prints the end of every log of every node.
func (l *Lab) logLogs(t TB) {
	const keep = 1500
	for _, pattern := range []string{"*/holder.log", "*/log/*.log", "*/log/*/*.log"} {
		files, _ := filepath.Glob(filepath.Join(l.Dir(), pattern)) // the pattern is valid
		for _, f := range files {
			if strings.HasSuffix(f, "/alternatives.log") {
				continue
			}
			data, err := os.ReadFile(f)
			if err == nil && len(data) > 0 {
				t.Logf("end of %s:\n%s", f, data[max(0, len(data)-keep):])
			}
		}
	}
}

// Difference returns the lines that only one of two texts has.
func Difference(before, after string) string {
	var b strings.Builder
	for _, d := range []struct{ sign, text, other string }{{"-", before, after}, {"+", after, before}} {
		for line := range strings.Lines(d.text) {
			if !strings.Contains(d.other, line) {
				b.WriteString(d.sign + line)
			}
		}
	}
	return b.String()
}
