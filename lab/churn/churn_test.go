package churn

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"hairpin/lab"
	"hairpin/lab/demo"
)

var (
	churnFor  = flag.Duration("churn-for", 15*time.Second, "how long Services change at random")
	churnSeed = flag.Uint64("churn-seed", 1, "which changes; 0 = others every time")
	churnMode = flag.String("churn-mode", "shared,local,detached", "gateway mode of the nodes, or one for each")
	churnBy   = flag.String("churn-engine", "", "what serves pods: ovn or openflow, or one for each node")
)

// slots is the maximum number of Services.
const slots = 8

// churn is the test's state.
type churn struct {
	t        *testing.T
	begin    time.Time
	api      kubernetes.Interface
	nodes    []*lab.Node
	places   []*place // places of clients
	hosts    []*place // those of nodes, in the order of nodes
	servers  []*place
	services []*service
	second   []atomic.Pointer[[2]netip.Addr] // second addresses of hosts with served NodePorts
	coming   []*[2]netip.Addr                // and expected second addresses
	marks    int

	mu     sync.Mutex
	story  []string       // the last changes
	faults []string       // failures
	counts map[string]int // number of requests by kind

	longs, pings atomic.Int64
}

// TestChurn changes Services in every way, at random, while clients everywhere connect to them. A
// Service with an endpoint before and after a change must always reply, from an endpoint of before
// or after. Connections to endpoints that keep serving must survive. At rest, nodes must be in
// sync, and replies must be those that docs/user/services.md requires. First, keep holds
// connections of every kind through changes that must not end them.
func TestChurn(t *testing.T) {
	seed := *churnSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d, modes %s, engines %q, for %v", seed, *churnMode, *churnBy, *churnFor)
	c := start(t)
	r := rand.New(rand.NewPCG(seed, 0))
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer func() { stop(); clients.Wait(); c.report(seed) }()
	c.keep(ctx)
	for i := range 16 {
		r := rand.New(rand.NewPCG(seed, uint64(1+i)))
		clients.Go(func() {
			for ctx.Err() == nil {
				c.ask(ctx, r)
				time.Sleep(time.Millisecond) // do not spin if there is nothing to ask
			}
		})
	}
	for i := range 12 {
		r := rand.New(rand.NewPCG(seed, uint64(1001+i)))
		clients.Go(func() { c.long(ctx, r) })
	}
	for end := time.Now().Add(*churnFor); time.Now().Before(end) && c.good(20); {
		for range 1 + r.IntN(6) {
			if err := c.change(ctx, r); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond) // changes come at any time
		}
		c.rest(ctx)
		time.Sleep(time.Duration(r.IntN(400)) * time.Millisecond) // let clients connect at rest
	}
}

// rest waits until everything is in place, and checks it.
func (c *churn) rest(ctx context.Context) {
	c.t.Helper()
	begin := time.Now()
	if err := c.settle(ctx); err != nil {
		c.t.Fatalf("%v\nthe last changes:\n%s", err, strings.Join(c.story, "\n"))
	}
	c.say("at rest after %d ms", time.Since(begin).Milliseconds())
	var dead []string
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		seen, now, err := c.connections()
		if err != nil {
			c.t.Fatal(err)
		}
		c.mu.Lock()
		c.counts["UDP entries seen at rest"] += seen
		c.mu.Unlock()
		if dead = now; len(dead) == 0 {
			return
		}
		if time.Now().After(end) {
			break
		}
	}
	c.fault(begin, "conntrack at rest:\n  "+strings.Join(dead, "\n  "))
}

// say records a change.
func (c *churn) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.story = append(c.story, fmt.Sprintf("%8.3f %s", time.Since(c.begin).Seconds(), fmt.Sprintf(format, args...)))
	c.counts["changes"]++
}

func (c *churn) fault(begin time.Time, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, fmt.Sprintf("from %.3f to %.3f: %s", begin.Sub(c.begin).Seconds(),
		time.Since(c.begin).Seconds(), text))
	c.story = append(c.story, c.faults[len(c.faults)-1])
}

// good reports whether there were fewer faults than a limit.
func (c *churn) good(faults int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.faults) < faults
}

func (c *churn) count(protocol, kind string, a answer) {
	want := "answered"
	if a.refused {
		want = "refused"
	} else if a.dropped {
		want = "dropped"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[protocol+" "+want]++
	c.counts["by "+kind]++
}

// report logs the last changes and the faults.
func (c *churn) report(seed uint64) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var words []string
	for k, n := range c.counts {
		words = append(words, fmt.Sprintf("%s %d", k, n))
	}
	slices.Sort(words)
	c.t.Logf("seed %d: %s; long connections %d, asked %d times", seed, strings.Join(words, ", "), c.longs.Load(),
		c.pings.Load())
	if len(c.faults) > 0 {
		c.t.Errorf("%d faults with seed %d, modes %s; \n%s\n\nthe end of the story:\n%s", len(c.faults), seed,
			*churnMode, strings.Join(c.faults, "\n"), strings.Join(c.story[max(0, len(c.story)-60):], "\n"))
	}
}

// start starts the lab: three nodes, an API server, an external client, and six pods, but no
// Services.
func start(t *testing.T) *churn {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a lab needs root")
	}
	dir, ctx := t.TempDir(), t.Context()
	objects, binary := filepath.Join(dir, "examples", "objects"), filepath.Join(dir, "hairpin")
	noError(t, os.MkdirAll(objects, 0o755))
	// The demo reads Hairpin's resource definitions from there.
	noError(t, os.CopyFS(filepath.Join(dir, "charts", "hairpin", "crds"), os.DirFS("../../charts/hairpin/crds")))
	for _, f := range []string{"nodes.yaml", "pods.yaml"} {
		text, err := os.ReadFile("../../examples/demo/" + f)
		noError(t, err)
		noError(t, os.WriteFile(filepath.Join(objects, f), text, 0o644))
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "hairpin/cmd/hairpin")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build hairpin: %v\n%s", err, out)
	}
	name := fmt.Sprintf("churn%d", os.Getpid())
	t.Cleanup(func() { noError(t, lab.Remove(name)) })
	d, err := demo.Start(ctx, demo.Options{Name: name, Objects: objects, Hairpin: binary, API: demo.Kubernetes,
		Mode: *churnMode, Engine: *churnBy, DieWithCaller: true, Out: logged{t}})
	noError(t, err)
	c := &churn{t: t, begin: time.Now(), nodes: d.Lab().Nodes(), counts: map[string]int{}}
	noError(t, err)
	server, err := lab.OpenAPIServer(d.Lab().APIServerDir())
	noError(t, err)
	config, err := server.RESTConfig()
	noError(t, err)
	config.WarningHandler = rest.NoWarnings{} // external IPs are deprecated
	c.api, err = kubernetes.NewForConfig(config)
	noError(t, err)
	c.find(ctx, d.Lab())
	t.Cleanup(func() {
		for _, n := range c.nodes {
			if log, err := os.ReadFile(n.LogFile("hairpin")); err == nil && t.Failed() {
				t.Logf("end of the log of %s's agent:\n%s", n.Name(), log[max(0, len(log)-2000):])
			}
			logs, _ := filepath.Glob(filepath.Join(n.Dir(), "log", "*", "*.log")) // the pattern is valid
			for _, f := range logs {
				text, _ := os.ReadFile(f)
				for line := range strings.Lines(string(text)) {
					if strings.Contains(line, "died") || strings.Contains(line, "EMER") ||
						strings.Contains(line, "killed") {
						t.Logf("%s: %s", f, line)
					}
				}
			}
		}
	})
	return c
}

// find records the lab's places, and adds a server on each host and routes at the external client.
func (c *churn) find(ctx context.Context, l *lab.Lab) {
	add := func(at lab.Place, node string, host bool, ips []netip.Addr) *place {
		p := &place{Place: at, node: node, host: host, ips: [2]netip.Addr(ips)}
		p.from.place = len(c.places)
		c.places = append(c.places, p)
		// Otherwise the kernel sometimes uses one of them for another connection of the node.
		noError(c.t, lab.Do(at, func() error {
			return os.WriteFile("/proc/sys/net/ipv4/ip_local_reserved_ports", []byte(p.from.all()), 0)
		}))
		return p
	}
	addresses := func(h *lab.Host) (ips []netip.Addr) {
		for _, a := range h.Addresses() {
			ips = append(ips, a.Addr())
		}
		return ips
	}
	client := l.Host("client")
	add(client, "", false, addresses(client))
	for i, n := range c.nodes {
		p := add(n.Host, n.Name(), true, addresses(n.Host))
		c.hosts, c.servers = append(c.hosts, p), append(c.servers, p)
		_, err := lab.Serve(ctx, n.Host, n.Name(), serverPort)
		noError(c.t, err)
		for _, pod := range n.Pods() {
			c.servers = append(c.servers, add(pod, n.Name(), false, pod.IPs()))
		}
		for j, prefix := range []string{fmt.Sprintf("198.51.100.%d/26", 64*i),
			fmt.Sprintf("2001:db8:51::%x/122", 64*i)} {
			_, err := client.Exec(ctx, "ip", "route", "replace", prefix, "via", p.ips[j].String())
			noError(c.t, err)
		}
	}
	c.second, c.coming = make([]atomic.Pointer[[2]netip.Addr], len(c.nodes)), make([]*[2]netip.Addr, len(c.nodes))
	for i := range slots {
		c.services = append(c.services, &service{slot: i, versions: []version{{}}})
	}
}

// logged writes to the test's log.
type logged struct{ t *testing.T }

func (l logged) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
