package ops

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"hairpin/ops/opstest"
)

// TestSlowClientsHTTP checks that a client that opens many connections loses only its own. A probe
// is answered at once, and the resources for connections are bounded.
func TestSlowClientsHTTP(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- ServeHTTP(ctx, l, http.HandlerFunc(func(w http.ResponseWriter,
			_ *http.Request) {
			fmt.Fprint(w, "ok")
		}))
	}()
	defer func() { end(); <-done }()
	patient := opstest.Dial(t, "127.0.0.1", l.Addr().String()) // of a scraper, opened before the limitedListener
	before := runtime.NumGoroutine()
	slow := opstest.SlowClients(t, l.Addr().String(), "GET /livez HTTP/1.1\r\nHost: a\r\nX: ", 4*maxClients)
	if got := runtime.NumGoroutine() - before; got > 2*maxClients {
		t.Errorf("%d goroutines for %d slow clients, more than %d", got, len(slow), 2*maxClients)
	}
	if !opstest.Closed(slow[0], 5*time.Second) {
		t.Error("the oldest of the limitedListener is open")
	}
	for _, c := range []net.Conn{patient, opstest.Dial(t, "127.0.0.1", l.Addr().String())} {
		_, _ = io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if answer, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200") {
			t.Errorf("a probe beside the limitedListener: %q, %v", answer, err)
		}
	}
}

// TestHeaderLimit checks that a request with a header of megabytes is rejected while it arrives.
func TestHeaderLimit(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- ServeHTTP(ctx, l, http.NotFoundHandler()) }()
	defer func() { end(); <-done }()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("X-Long", strings.Repeat("a", 64<<10))
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	_ = a.Body.Close()
	if a.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a header of 64 kB: %s", a.Status)
	}
}

// TestLimitUnix checks a Unix socket, as of the controller's probe: its clients have no address.
func TestLimitUnix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "probe.sock")
	inner, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l := LimitListener(inner, 1)
	t.Cleanup(func() { _ = l.Close() })
	for range 2 {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := l.Accept(); err != nil {
			t.Fatal(err)
		}
	}
}
