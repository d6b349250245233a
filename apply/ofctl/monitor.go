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
	notify func()

	mu        sync.Mutex
	conn      net.Conn // of the current session
	up        bool     // the switch has replied: it reports every change from now on
	mark      mark
	requested uint32                // the last barrier requested in this session
	replied   uint32                // the last barrier that the switch replied to
	rejected  *openflow.SwitchError // the first one since the last barrier request
	changed   signal.Broadcast      // a field above changed
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

// replyTimeout limits the wait for the monitor. After it, flows are read without a mark.
const replyTimeout = 3 * time.Second

func newMonitor(cfg Config, bridge string, log *slog.Logger, notify func()) *monitor {
	return &monitor{cfg: cfg, bridge: bridge, groups: bridge != cfg.Bridge, log: log, notify: notify}
}

// run keeps a monitor running. It calls notify when the switch comes up and when it goes away.
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
			m.notify()
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
	m.change(func() { m.mark.session++; m.conn, m.requested, m.replied = conn, 1, 0 })
	if _, err := conn.Write(m.opening()); err != nil {
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
			err = m.recordRejection(openflow.ParseError(xid, body))
		default:
			m.handle(kind, xid, body)
		}
		if err != nil {
			return err
		}
	}
}

// opening requests reports of flow changes, without actions. It also requests that the switch
// forwards other clients' group changes, because flow monitors do not report them.
func (m *monitor) opening() []byte {
	b := openflow.FlowMonitor(openflow.Message(nil, openflow.Hello, 0), 0)
	if m.groups {
		b = openflow.ForwardGroupMods(b, 0)
	}
	return openflow.Message(b, openflow.BarrierRequest, 1)
}

// handle processes one message.
func (m *monitor) handle(kind openflow.Type, xid uint32, body []byte) {
	switch {
	case kind == openflow.Hello, kind == openflow.BundleControl:
	case kind == openflow.BarrierReply:
		m.change(func() { m.replied, m.up = max(m.replied, xid), true })
		if xid == 1 {
			m.notify()
		}
	case kind == openflow.RequestForward:
		m.countChanges(1)
	default:
		if kind == openflow.MultipartReply {
			// Learned flows are not compared, and there may be many.
			changes, ok := openflow.Updates(body, claims.CookieLearnedMask, claims.CookieLearned)
			if ok {
				m.countChanges(changes)
				return
			}
		}
		// A pause of the monitor (the switch sends faster than this process reads) or an unknown
		// message: changes may be unreported.
		m.change(func() { m.mark.session++ })
		m.notify()
	}
}

// countChanges counts reported changes.
func (m *monitor) countChanges(changes int) {
	if changes == 0 {
		return
	}
	m.change(func() { m.mark.events += changes })
	m.notify()
}

// recordRejection records the rejection of a bundle message. Any other rejection ends the session.
func (m *monitor) recordRejection(r *openflow.SwitchError) error {
	if r.XID < firstChange {
		return r
	}
	m.change(func() {
		if m.rejected == nil {
			m.rejected = r
		}
	})
	return nil
}

func (m *monitor) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	m.changed.Notify()
}

func (m *monitor) isUp() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.up
}

// waitUp waits, up to replyTimeout, until a session is up.
func (m *monitor) waitUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	for {
		changed := m.changed.Next()
		m.mu.Lock()
		up := m.up
		m.mu.Unlock()
		if up {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// current waits until the switch has reported everything that happened before the call, and returns
// the mark of that point. It returns false when that cannot be known.
func (m *monitor) current(ctx context.Context) (mark, bool) {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	now, err := m.exchange(ctx, nil)
	return now, err == nil
}

// exchange sends messages and waits until the switch has executed or rejected them, and has
// reported all earlier changes. It returns the mark of that point. Without a reply in time it ends
// the session, because part of the messages may have been sent.
func (m *monitor) exchange(ctx context.Context, b []byte) (mark, error) {
	m.mu.Lock()
	m.requested++
	m.rejected = nil
	conn, up, session, want := m.conn, m.up, m.mark.session, m.requested
	m.mu.Unlock()
	if !up {
		return mark{}, errEnded
	}
	late.For(ctx, vswitchdName)
	go func() { // a hanging switch reads nothing; the end of the switch ends the session
		_, _ = conn.Write(openflow.Message(b, openflow.BarrierRequest, want))
	}()
	for {
		changed := m.changed.Next()
		m.mu.Lock()
		now, reached, gone, rejected := m.mark, m.replied >= want, !m.up || m.mark.session != session, m.rejected
		m.mu.Unlock()
		switch {
		case gone:
			_ = conn.Close() // even if only reports were lost: a bundle may be half done
			return mark{}, errEnded
		case reached && rejected != nil:
			return now, rejected
		case reached:
			return now, nil
		}
		select {
		case <-changed:
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
	_, _ = conn.Write(bundleControl(nil, openflow.BundleDiscard)) // a closed connection has no bundles
}

// command prepares a program in this process's namespaces. Cancelling ctx sends SIGTERM, for a
// clean exit.
func command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return cmd
}
