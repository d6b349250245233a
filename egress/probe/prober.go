// Package probe determines which nodes are reachable: it probes their health service, and serves
// one.
package probe

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"hairpin/config"
	"hairpin/signal"
)

// discard is a port without a listener, to which a running kernel replies with a reset (RFC 863
// assigns it to a service).
const discard = 9

// Prober probes nodes, all at once and independently. One goroutine receives all results and
// decides; there are no locks to wait for.
type Prober struct {
	config    config.EgressProbing
	transport credentials.TransportCredentials
	identity  *identity             // nil: probes are not encrypted
	problem   atomic.Pointer[error] // why identity cannot be used now
	log       *slog.Logger
	hold      func() bool // while it returns true, no node becomes unreachable; may be nil
	Changed   signal.Signal

	mu         sync.Mutex
	targets    map[string]netip.Addr
	newTargets signal.Signal // targets changed

	lost      atomic.Pointer[map[string]bool]
	replying  atomic.Pointer[map[string]bool] // for each probed node, whether it replied to the last probes
	disturbed atomic.Pointer[time.Time]
}

// Off reports whether probing is disabled.
func (b *Prober) Off() bool { return b.config.Timeout == 0 }

// New returns a Prober without targets. While hold returns true, no node becomes unreachable;
// nil: it never does.
func New(p config.EgressProbing, log *slog.Logger, hold func() bool) *Prober {
	b := &Prober{
		config: p, identity: newIdentity(p), transport: insecure.NewCredentials(), log: log, hold: hold,
		Changed: signal.New(), newTargets: signal.New(),
	}
	b.lost.Store(&map[string]bool{})
	b.replying.Store(&map[string]bool{})
	b.disturbed.Store(&time.Time{})
	if b.identity != nil {
		b.transport = credentials.NewTLS(b.identity.config())
		b.checkIdentity()
	}
	return b
}

// SetTargets sets the nodes to probe, and their addresses. The same targets again change nothing.
func (b *Prober) SetTargets(targets map[string]netip.Addr) {
	b.mu.Lock()
	same := maps.Equal(b.targets, targets)
	b.targets = targets
	b.mu.Unlock()
	if same {
		return
	}
	b.newTargets.Notify()
}

// Unreachable returns the nodes that do not reply. The map must not be changed.
func (b *Prober) Unreachable() map[string]bool { return *b.lost.Load() }

// Replies reports whether a node is probed, and replied to the last probes.
func (b *Prober) Replies(name string) bool { return (*b.replying.Load())[name] }

// Disturbed returns when a probed node last did not reply, or probing itself had stalled or began.
// Changed is notified when such a time begins.
func (b *Prober) Disturbed() time.Time { return *b.disturbed.Load() }

// connections has the connections to the health services of nodes.
type connections map[string]*grpc.ClientConn

// probeResult is the result of one probe.
type probeResult struct {
	name string
	from replyFrom
	err  error
	conn *grpc.ClientConn // a connection that no longer works
}

// Run probes until ctx ends. With a timeout of 0 it probes nothing.
func (b *Prober) Run(ctx context.Context) {
	go b.watchIdentity(ctx)
	if b.Off() {
		<-ctx.Done()
		return
	}
	w := proberLoop{Prober: b, reach: newReach(b.config), results: make(chan probeResult),
		targets: map[string]netip.Addr{}, conns: connections{}}
	defer w.end()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.newTargets.C():
			b.mu.Lock()
			w.targets = b.targets
			b.mu.Unlock()
			w.reach.set(time.Now(), slices.Sorted(maps.Keys(w.targets)))
			b.forget(w.conns, w.targets)
		case r := <-w.results:
			w.record(r)
		case <-timer.C:
		}
		timer.Reset(max(time.Until(w.round(ctx)), time.Millisecond))
	}
}

// proberLoop is the state of a running Prober, in its one goroutine.
type proberLoop struct {
	*Prober
	reach     *reach
	results   chan probeResult
	open      sync.WaitGroup // probes in progress
	targets   map[string]netip.Addr
	conns     connections
	lastErr   error
	isolation isolationLog
}

// isolationLog is what the log says about isolation (reach.isolated). On a busy machine the state
// changes several times a second: its end is logged once it has lasted for isolationLogDelay.
type isolationLog struct {
	logged bool      // the last message is that this prober is isolated
	last   time.Time // when it was isolated last
}

const isolationLogDelay = 10 * time.Second

// record records the state, and reports whether logged has changed.
func (i *isolationLog) record(now time.Time, isolated bool) bool {
	if isolated {
		i.last = now
	}
	was := i.logged
	i.logged = isolated || was && now.Sub(i.last) < isolationLogDelay
	return i.logged != was
}

// end waits for probes in progress; their context has ended.
func (w *proberLoop) end() {
	w.open.Wait()
	w.forget(w.conns, nil)
}

// record records the result of a probe.
func (w *proberLoop) record(r probeResult) {
	w.reach.recordReply(time.Now(), r.name, r.from)
	if r.err != nil {
		w.lastErr = r.err
	}
	if r.conn != nil && w.conns[r.name] == r.conn {
		_ = r.conn.Close()
		delete(w.conns, r.name)
	}
}

// round probes the due targets, and decides which nodes are unreachable. It returns the time of the
// next round.
func (w *proberLoop) round(ctx context.Context) time.Time {
	now := time.Now()
	names, next := w.reach.due(now)
	for _, n := range names {
		for _, probe := range w.probes(n) {
			w.open.Go(func() {
				select {
				case w.results <- probe(ctx):
				case <-ctx.Done():
				}
			})
		}
	}
	hold := w.hold != nil && w.hold() || w.Problem() != nil
	if w.reach.update(now, hold) {
		w.publish(w.reach.lost(), w.lastErr)
	}
	if d := w.reach.disturbed; d.Sub(*w.disturbed.Swap(&d)) > w.config.ReplyTimeout() {
		w.Changed.Notify()
	}
	if s := w.reach.replying(); !maps.Equal(s, *w.replying.Load()) {
		w.replying.Store(&s)
	}
	if w.isolation.record(now, w.reach.isolated) {
		if w.isolation.logged {
			w.log.Warn("most nodes do not answer: assuming this prober is isolated, and giving up none")
		} else {
			w.log.Info("most nodes answer again")
		}
	}
	return next
}

// probes returns the probes of a node to run now: of its health service and, if the last probe has
// no reply yet, of its kernel. If the health service is not used, only the kernel is probed.
func (w *proberLoop) probes(name string) []func(context.Context) probeResult {
	q := probeRequest{name: name, to: w.targets[name], port: w.config.Port,
		limit: max(w.config.ReplyTimeout(), 100*time.Millisecond)}
	if q.port == 0 {
		q.port = discard
		return []func(context.Context) probeResult{q.tcpProbe}
	}
	q.conn = w.connection(w.conns, name, q.to)
	if w.reach.late(name) {
		return []func(context.Context) probeResult{q.check, q.tcpProbe}
	}
	return []func(context.Context) probeResult{q.check}
}

// publish publishes the unreachable nodes.
func (b *Prober) publish(lost map[string]bool, err error) {
	old := b.Unreachable()
	for n := range lost {
		if !old[n] {
			b.log.Warn("node does not answer", "target", n, "after", b.config.ReplyTimeout(), "lastError", err)
		}
	}
	for n := range old {
		if !lost[n] {
			b.log.Info("node answers again, or is no longer probed", "target", n)
		}
	}
	b.lost.Store(&lost)
	b.Changed.Notify()
}

// forget closes connections to former targets and addresses.
func (b *Prober) forget(conns connections, targets map[string]netip.Addr) {
	for n, c := range conns {
		if a, ok := targets[n]; !ok || c.Target() != b.target(a) {
			_ = c.Close()
			delete(conns, n)
		}
	}
}

func (b *Prober) target(a netip.Addr) string {
	return "passthrough:///" + net.JoinHostPort(a.String(), strconv.Itoa(b.config.Port))
}

// connection returns the connection to a node, which need not be established; nil if it cannot be
// made at all.
func (b *Prober) connection(conns connections, name string, to netip.Addr) *grpc.ClientConn {
	if c := conns[name]; c != nil {
		return c
	}
	soon := backoff.Config{BaseDelay: b.config.ProbeInterval(), Multiplier: 1, MaxDelay: b.config.ProbeInterval()}
	c, err := grpc.NewClient(b.target(to), grpc.WithTransportCredentials(b.transport), grpc.WithDisableServiceConfig(),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: soon, MinConnectTimeout: b.config.ReplyTimeout()}))
	if err != nil {
		b.log.Error("probe a node's health", "target", name, "error", err)
		return nil
	}
	conns[name] = c
	return c
}

// probeRequest is one probe of one node.
type probeRequest struct {
	name  string
	to    netip.Addr
	port  int
	conn  *grpc.ClientConn // to the health service
	limit time.Duration
}

// check probes the health service.
func (q probeRequest) check(ctx context.Context) probeResult {
	r := probeResult{name: q.name}
	if q.conn == nil {
		return r
	}
	ctx, cancel := context.WithTimeout(ctx, q.limit)
	defer cancel()
	answer, err := grpc_health_v1.NewHealthClient(q.conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	switch {
	case err == nil && answer.Status == grpc_health_v1.HealthCheckResponse_SERVING:
		r.from = replyService
	case err == nil:
		r.from, r.err = replyMachine, errors.New("its agent says that it does not serve")
	default:
		r.err = err
		if status.Code(err) == codes.DeadlineExceeded {
			r.conn = q.conn
		}
	}
	return r
}

// tcpProbe opens a connection and closes it. A refused connection also shows that the kernel runs.
// Without a health service, that counts as a reply of the service.
func (q probeRequest) tcpProbe(ctx context.Context) probeResult {
	r := probeResult{name: q.name, from: replyMachine}
	if q.port == discard {
		r.from = replyService
	}
	ctx, cancel := context.WithTimeout(ctx, q.limit)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", netip.AddrPortFrom(q.to, uint16(q.port)).String())
	switch {
	case err == nil:
		_ = c.Close()
	case !errors.Is(err, unix.ECONNREFUSED):
		r.from, r.err = replyNone, err
	}
	return r
}
