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

// monitor has a connection on which the switch reports each change of a flow, and, on Hairpin's
// bridges, of a group. It reconnects whenever the connection ends.
type monitor struct {
	cfg    Config
	bridge string
	groups bool // of the bridge are monitored, too
	log    *slog.Logger
	tell   func()

	mu       sync.Mutex
	conn     net.Conn // of the current session
	up       bool     // the switch has replied: it reports every change from now on
	mark     mark
	asked    uint32                // barriers requested in this session,
	answered uint32                // and barriers replied to
	refused  *openflow.SwitchError // the first one since the last barrier request
	turn     signal.Broadcast      // when a field above changed
}

// mark is a point in the sequence of reported changes.
type mark struct {
	session int // number of connects, and of losses of reports
	events  int // number of reported changes of flows and groups
}

// Times between two checks for the switch. A check is one connect to a local socket. While the
// switch listens but sessions end at once, the pauses grow to maxPause.
const (
	minRetry = 5 * time.Millisecond
	maxRetry = 50 * time.Millisecond
	maxPause = 5 * time.Second
)

// settleTimeout limits the wait for the monitor. After it, flows are read without a mark.
const settleTimeout = 3 * time.Second

func newMonitor(cfg Config, bridge string, log *slog.Logger, tell func()) *monitor {
	return &monitor{cfg: cfg, bridge: bridge, groups: bridge != cfg.Bridge, log: log, tell: tell}
}

// run keeps a monitor running. It calls tell when the switch comes up and when it goes away.
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

// reachable reports whether the switch listens for OpenFlow connections to a bridge.
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

// session runs one connection.
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
			err = m.refuses(openflow.ParseError(xid, body))
		default:
			m.heard(kind, xid, body)
		}
		if err != nil {
			return err
		}
	}
}

// greeting requests reports of flow changes, without actions. It also requests that the switch
// forwards other clients' group changes, because flow monitors do not report them.
func (m *monitor) greeting() []byte {
	b := openflow.FlowMonitor(openflow.Message(nil, openflow.Hello, 0), 0)
	if m.groups {
		b = openflow.ForwardGroupMods(b, 0)
	}
	return openflow.Message(b, openflow.BarrierRequest, 1)
}

// heard handles one message.
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
			// Learned flows are not compared, and there may be many.
			changes, ok := openflow.Updates(body, claims.CookieLearnedMask, claims.CookieLearned)
			if ok {
				m.happened(changes)
				return
			}
		}
		// A pause of the monitor (the switch sends faster than this process reads) or an unknown
		// message: changes may be unreported.
		m.change(func() { m.mark.session++ })
		m.tell()
	}
}

// happened counts changes.
func (m *monitor) happened(changes int) {
	if changes == 0 {
		return
	}
	m.change(func() { m.mark.events += changes })
	m.tell()
}

// refuses records the rejection of a bundle message. Any other rejection ends the session.
func (m *monitor) refuses(r *openflow.SwitchError) error {
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

// wait waits, up to settleTimeout, until the switch has replied.
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

// settle waits until the switch has reported everything that happened before the call, and returns
// the mark of that point. It returns false when that cannot be known.
func (m *monitor) settle(ctx context.Context) (mark, bool) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	now, err := m.exchange(ctx, nil)
	return now, err == nil
}

// exchange sends messages and waits until the switch has executed or rejected them, and has
// reported all earlier changes. It returns the mark of that point. Without a reply in time it ends
// the session, because part of the messages may have been sent.
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
	go func() { // a hanging switch reads nothing; the end of the switch ends the session
		_, _ = conn.Write(openflow.Message(b, openflow.BarrierRequest, want))
	}()
	for {
		turn := m.turn.Next()
		m.mu.Lock()
		now, reached, gone, refused := m.mark, m.answered >= want, !m.up || m.mark.session != session, m.refused
		m.mu.Unlock()
		switch {
		case gone:
			_ = conn.Close() // even if only reports were lost: a bundle may be half done
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

// errEnded is the error of a wait for a reply without a connection, or on one that has ended.
var errEnded = errors.New("the connection to ovs-vswitchd has ended")

// discard makes the switch discard a bundle that was not committed.
func (m *monitor) discard() {
	m.mu.Lock()
	conn := m.conn
	m.mu.Unlock()
	_, _ = conn.Write(step(nil, openflow.BundleDiscard)) // a closed connection has no bundles
}

// command prepares a program in this process's namespaces. Cancelling ctx sends SIGTERM, for a
// clean exit.
func command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return cmd
}
