package watch_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"hairpin/kubeapi"
	"hairpin/lab"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually polls until done returns that nothing is missing.
func eventually(t testing.TB, limit time.Duration, done func() (missing string)) {
	t.Helper()
	var missing string
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if missing = done(); missing == "" {
			return
		}
	}
	t.Fatalf("after %s still: %s", limit, missing)
}

// api is a real API server in its own network namespace.
type api struct {
	config lab.APIServerConfig
	server *lab.APIServer
}

func startAPI(t testing.TB) *api {
	t.Helper()
	l := lab.Start(t, lab.Config{}) // skips where there is no root
	host, err := l.StartHost(t.Context(), lab.HostConfig{Name: "api"})
	check(t, err)
	binary, err := lab.BuildKube(t.Context(), "/var/cache/hairpin", func(line string) { t.Log(line) })
	check(t, err)
	a := &api{config: lab.APIServerConfig{
		Binary: binary, Dir: t.TempDir(), Address: host.Addresses()[0].Addr(), Netns: host.Netns(), DieWithCaller: true,
	}}
	a.start(t)
	t.Cleanup(func() { check(t, a.server.Stop()) })
	return a
}

func (a *api) start(t testing.TB) {
	t.Helper()
	begin := time.Now()
	var err error
	a.server, err = lab.StartAPIServer(t.Context(), a.config)
	check(t, err)
	t.Logf("API server is ready after %s", time.Since(begin).Round(time.Millisecond))
}

func (a *api) restConfig(t testing.TB) *rest.Config {
	t.Helper()
	c, err := a.server.RESTConfig()
	check(t, err)
	c.ContentType = "application/vnd.kubernetes.protobuf"
	c.WarningHandlerWithContext = rest.NoWarnings{}
	return c
}

// client returns an administrator's client.
func (a *api) client(t testing.TB) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(a.restConfig(t))
	check(t, err)
	return client
}

// agent connects as the agent does, through gates, if any.
func (a *api) agent(t testing.TB, gates ...*gate) *kubeapi.Client {
	t.Helper()
	c := a.restConfig(t)
	for _, g := range gates {
		g.guard(c)
	}
	client, err := kubeapi.New(c)
	check(t, err)
	return client
}

// gate is the network between a client and the API server, which can be interrupted.
type gate struct {
	mu    sync.Mutex
	shut  bool
	conns []net.Conn
}

var errCut = errors.New("the network is cut")

func (g *gate) guard(c *rest.Config) {
	dial := c.Dial
	c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.shut {
			return nil, errCut
		}
		conn, err := dial(ctx, network, address)
		if err == nil {
			g.conns = append(g.conns, conn)
		}
		return conn, err
	}
}

// cut closes all connections, and blocks new ones until mend.
func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
	for _, c := range g.conns {
		_ = c.Close() // it may be closed already
	}
	g.conns = nil
}

func (g *gate) mend() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = false
}

// wantNoGoroutines waits until no goroutine of a watch runs any more.
func wantNoGoroutines(t *testing.T) {
	t.Helper()
	eventually(t, 20*time.Second, func() string {
		buf := make([]byte, 1<<20)
		for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(g, "hairpin/watch.") || strings.Contains(g, "client-go/tools/cache") ||
				strings.Contains(g, "fsnotify") {
				return g
			}
		}
		return ""
	})
}
