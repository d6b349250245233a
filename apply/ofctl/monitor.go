package ofctl

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"hairpin/apply/late"
	"hairpin/claims"
	"hairpin/openflow"
	"hairpin/retry"
	"hairpin/signal"
)

// monitor has a connection on which the switch tells each change of a flow, and of a group where
// those are ours. It connects again whenever that ends.
type monitor struct {
	cfg    Config
	bridge string
	groups bool // of the bridge are watched
	log    *slog.Logger
	tell   func()

	mu       sync.Mutex
	conn     net.Conn // of this session
	up       bool     // the switch has answered: every change from now on is told
	mark     mark
	asked    uint32            // barriers that were asked for in this session,
	answered uint32            // and those that were answered
	refused  *openflow.Refusal // the first since the last barrier was asked for
	turn     signal.Broadcast  // of a change of one of the above
}

// mark is a point in what the monitor was told.
type mark struct {
	session int // how many times it has connected
	events  int // how many changes of flows and groups it was told
}

// Times between two looks for the switch. A look is one connect to a socket of this machine. A
// monitor that ends at once though the switch is there is started at longer and longer intervals.
const (
	minRetry = 5 * time.Millisecond
	maxRetry = 50 * time.Millisecond
	maxPause = 5 * time.Second
)

// settleTimeout limits the wait for the monitor; without it the flows are simply read.
const settleTimeout = 3 * time.Second

func newMonitor(cfg Config, bridge string, log *slog.Logger, tell func()) *monitor {
	return &monitor{cfg: cfg, bridge: bridge, groups: bridge != cfg.Bridge, log: log, tell: tell}
}

// run keeps a monitor running. It tells when the switch comes and when it goes.
func (m *monitor) run(ctx context.Context) {
	absent, ended := retry.Backoff{Min: minRetry, Max: maxRetry}, retry.Backoff{Min: minRetry, Max: maxPause}
	for ctx.Err() == nil {
		if m.cfg.reachable(ctx, m.bridge) {
			absent.Done()
			err := m.session(ctx)
			if m.isUp() {
				ended.Done()
			}
			m.change(func() { m.up = false })
			m.tell()
			if ctx.Err() == nil {
				m.log.Warn("flow monitor ended", "error", err)
			}
			ended.Sleep(ctx)
			continue
		}
		absent.Sleep(ctx)
	}
}

// reachable reports whether the switch listens for OpenFlow of a bridge.
func (cfg *Config) reachable(ctx context.Context, bridge string) bool {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", cfg.Path(cfg.socket(bridge)))
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

func (cfg *Config) socket(bridge string) string { return filepath.Join(cfg.RunDir, bridge+".mgmt") }

// session is the life of one connection.
func (m *monitor) session(ctx context.Context) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", m.cfg.Path(m.cfg.socket(m.bridge)))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	m.change(func() { m.mark.session++; m.conn, m.asked, m.answered = conn, 1, 0 })
	if _, err := conn.Write(m.greeting()); err != nil {
		return err
	}
	for r := bufio.NewReader(conn); ; {
		kind, xid, body, err := openflow.Receive(r)
		if err != nil {
			return err
		}
		switch kind {
		case openflow.EchoRequest:
			_, err = conn.Write(openflow.Message(nil, openflow.EchoReply, xid, body))
		case openflow.Error:
			err = m.refuses(openflow.ParseRefusal(xid, body))
		default:
			m.heard(kind, xid, body)
		}
		if err != nil {
			return err
		}
	}
}

// greeting asks to be told of changes of flows, but for what they do, and to forward what others
// change of groups: flow monitors tell nothing of them.
func (m *monitor) greeting() []byte {
	b := openflow.FlowMonitor(openflow.Message(nil, openflow.Hello, 0), 0)
	if m.groups {
		b = openflow.ForwardGroupMods(b, 0)
	}
	return openflow.Message(b, openflow.BarrierRequest, 1)
}

// heard understands one message.
func (m *monitor) heard(kind openflow.Type, xid uint32, body []byte) {
	switch {
	case kind == openflow.Hello, kind == openflow.BundleControl:
	case kind == openflow.BarrierReply:
		m.change(func() { m.answered, m.up = max(m.answered, xid), true })
		if xid == 1 {
			m.tell()
		}
	case kind == openflow.RequestForward:
		m.happened(1)
	default:
		if kind == openflow.MultipartReply {
			// Flows that Open vSwitch makes by itself are not ours to compare, and there may be
			// many.
			changes, ok := openflow.Updates(body, claims.CookieLearnedMask, claims.CookieLearned)
			if ok {
				m.happened(changes)
				return
			}
		}
		// A pause (the switch is faster than we), or what we know nothing of: things may have
		// changed that are not told.
		m.change(func() { m.mark.session++ })
		m.tell()
	}
}

// happened notes changes.
func (m *monitor) happened(changes int) {
	if changes == 0 {
		return
	}
	m.change(func() { m.mark.events += changes })
	m.tell()
}

// refuses notes that a message of a bundle was refused. Any other that is ends the session.
func (m *monitor) refuses(r *openflow.Refusal) error {
	if r.XID < firstChange {
		return r
	}
	m.change(func() {
		if m.refused == nil {
			m.refused = r
		}
	})
	return nil
}

func (m *monitor) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	m.turn.Notify()
}

func (m *monitor) isUp() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.up
}

// wait waits until the switch has answered, for a while.
func (m *monitor) wait(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	for {
		turn := m.turn.Next()
		m.mu.Lock()
		up := m.up
		m.mu.Unlock()
		if up {
			return
		}
		select {
		case <-turn:
		case <-ctx.Done():
			return
		}
	}
}

// settle waits until everything that happened in the switch before the call was told, and gives the
// mark of that. It gives false when that cannot be known.
func (m *monitor) settle(ctx context.Context) (mark, bool) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	now, err := m.exchange(ctx, nil)
	return now, err == nil
}

// exchange sends messages and waits until the switch has done or refused them, and has told all
// that happened before. It gives the mark of that. Without an answer in time the session ends: what
// was sent may have been sent in part.
func (m *monitor) exchange(ctx context.Context, b []byte) (mark, error) {
	m.mu.Lock()
	m.asked++
	m.refused = nil
	conn, up, session, want := m.conn, m.up, m.mark.session, m.asked
	m.mu.Unlock()
	if !up {
		return mark{}, errEnded
	}
	late.For(ctx, vswitchd)
	go func() { // a switch that hangs reads nothing; one that ended ends the session
		_, _ = conn.Write(openflow.Message(b, openflow.BarrierRequest, want))
	}()
	for {
		turn := m.turn.Next()
		m.mu.Lock()
		now, reached, gone, refused := m.mark, m.answered >= want, !m.up || m.mark.session != session, m.refused
		m.mu.Unlock()
		switch {
		case gone:
			_ = conn.Close() // also where only notices were lost: a bundle may be half done
			return mark{}, errEnded
		case reached && refused != nil:
			return now, refused
		case reached:
			return now, nil
		}
		select {
		case <-turn:
		case <-ctx.Done():
			_ = conn.Close()
			return mark{}, ctx.Err()
		}
	}
}

// errEnded is the error of who waits for an answer on a connection that has ended, or has none.
var errEnded = errors.New("the connection to ovs-vswitchd has ended")

// discard makes the switch forget a bundle that was not committed.
func (m *monitor) discard() {
	m.mu.Lock()
	conn := m.conn
	m.mu.Unlock()
	_, _ = conn.Write(step(nil, openflow.BundleDiscard)) // one that ended has forgotten it
}

// command runs a program where this process is, and ends it so that it can clean up.
func command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return cmd
}
