package ofctl

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"hairpin/apply/late"
	"hairpin/claims"
)

// monitor runs `ovs-ofctl monitor`, which prints a line for each change of a flow, and of a group where those are ours, and starts it again
// whenever it ends.
type monitor struct {
	cfg    Config
	bridge string
	groups bool // of the bridge are watched
	log    *slog.Logger
	tell   func()

	mu       sync.Mutex
	up       bool // the switch has answered: every change from now on is printed
	mark     mark
	barriers int           // that were printed
	turn     chan struct{} // closed and made anew when one of the above changes
	held     bool          // notices of changes are not told
}

// mark is a point in what the monitor printed.
type mark struct {
	session int // how many times the monitor was started
	events  int // how many changes of flows and groups were printed
}

// Times between two looks for the switch. A look is one connect to a socket of this machine. A monitor that ends at
// once though the switch is there (no ovs-ofctl, no room for a control socket) is started at longer and longer intervals.
const (
	minRetry = 5 * time.Millisecond
	maxRetry = 50 * time.Millisecond
	maxPause = 5 * time.Second
)

// settleTimeout limits the wait for the monitor; without it the flows are simply read.
const settleTimeout = 3 * time.Second

func newMonitor(cfg Config, bridge string, log *slog.Logger, tell func()) *monitor {
	return &monitor{cfg: cfg, bridge: bridge, groups: bridge != cfg.Bridge, log: log, tell: tell, turn: make(chan struct{})}
}

// run keeps a monitor running. It tells when the switch comes and when it goes.
func (m *monitor) run(ctx context.Context) {
	retry, pause := minRetry, minRetry
	for ctx.Err() == nil {
		if m.cfg.reachable(ctx, m.bridge) {
			retry = minRetry
			err := m.session(ctx)
			if m.isUp() {
				pause = minRetry
			}
			m.change(func() { m.up = false })
			m.tell()
			if ctx.Err() == nil {
				m.log.Warn("flow monitor ended", "error", err)
			}
			m.sleep(ctx, pause)
			pause = min(2*pause, maxPause)
			continue
		}
		m.sleep(ctx, retry)
		retry = min(2*retry, maxRetry)
	}
}

func (m *monitor) sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
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

// session is the life of one ovs-ofctl.
func (m *monitor) session(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.change(func() { m.mark.session++ })
	cmd := m.cfg.Command(ctx, "ovs-ofctl", "-O", openFlow, "--unixctl="+m.control(), "monitor", "unix:"+m.cfg.socket(m.bridge), "watch:!initial,!actions")
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start monitor: %w", err)
	}
	defer func() { _ = r.Close() }()
	// Answers go to its standard output, what it was not asked for to its standard error. One pipe keeps their order.
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		return fmt.Errorf("start monitor: %w", err)
	}
	last, answered, lines := "", false, bufio.NewScanner(r)
	var begin sync.WaitGroup
	lines.Buffer(nil, longest)
	for lines.Scan() {
		if last = lines.Text(); !answered && strings.Contains(last, answer) {
			answered = true
			begin.Go(func() { m.begin(ctx, cancel) }) // the pipe must be read meanwhile
		}
		m.line(last)
	}
	cancel()
	begin.Wait()
	err = cmd.Wait()
	_ = os.Remove(m.cfg.Path(m.control()))
	return fmt.Errorf("monitor: %w: %s", err, last)
}

// answer is in the first line of what the switch says of flows.
const answer = "FLOW_MONITOR reply"

// longest is more than ovs-ofctl prints of a group, whose message has 64 kB.
const longest = 1 << 20

// begin makes the switch forward what others change of groups: flow monitors tell nothing of them. From then on every change is printed.
func (m *monitor) begin(ctx context.Context, end func()) {
	for begun := time.Now(); m.groups; m.sleep(ctx, minRetry) { // ovs-ofctl takes commands a moment after the first answer
		_, err := call(ctx, m.cfg.Path(m.control()), "ofctl/send", hex.EncodeToString(groupsForwarded()))
		if err == nil {
			break
		}
		if ctx.Err() != nil || time.Since(begun) > settleTimeout {
			m.log.Debug("watch groups", "error", err)
			end()
			return
		}
	}
	m.change(func() { m.up = true })
	m.tell()
}

// groupsForwarded is the message for that (OFPT_SET_ASYNC of OpenFlow 1.5, 7.3.10): of what a switch may send unasked, group mods and nothing else.
func groupsForwarded() []byte {
	const version, setAsync, groupMods = 6, 28, 1
	// Which messages, each with a mask of reasons, for a controller that is no slave: packets, ports, flows removed, roles, tables, requests.
	masks := [][2]uint32{{1, 0}, {3, 0}, {5, 0}, {7, 0}, {9, 0}, {11, groupMods}}
	b := binary.BigEndian.AppendUint16([]byte{version, setAsync}, uint16(8+8*len(masks)))
	b = binary.BigEndian.AppendUint32(b, 1) // its number
	for _, x := range masks {
		b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, uint16(x[0])), 8)
		b = binary.BigEndian.AppendUint32(b, x[1])
	}
	return b
}

// line understands one line.
func (m *monitor) line(s string) {
	switch {
	case strings.HasPrefix(s, " event=") && learned(s): // not ours to compare, and there may be many
	case strings.HasPrefix(s, " event="), strings.HasPrefix(s, "OFPT_REQUESTFORWARD"):
		m.change(func() { m.mark.events++ })
		if !m.isHeld() {
			m.tell()
		}
	case strings.HasPrefix(s, "OFPT_BARRIER_REPLY"):
		m.change(func() { m.barriers++ })
	case strings.HasPrefix(s, " "), strings.HasPrefix(s, "send: "), strings.Contains(s, answer): // more of a message, and what begin sends
	default:
		// A pause (the switch is faster than we), an error: things may have changed that are not printed.
		m.change(func() { m.mark.session++ })
		m.tell()
	}
}

// learned reports whether a line tells of a flow that Open vSwitch made by itself.
func learned(s string) bool {
	_, cookie, _ := strings.Cut(s, " cookie=")
	cookie, _, _ = strings.Cut(cookie, " ")
	n, err := strconv.ParseUint(cookie, 0, 64)
	return err == nil && n&claims.CookieLearnedMask == claims.CookieLearned
}

func (m *monitor) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	close(m.turn)
	m.turn = make(chan struct{})
}

func (m *monitor) isUp() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.up
}

func (m *monitor) isHeld() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.held
}

// hold keeps notices back, while we change something.
func (m *monitor) hold(on bool) { m.change(func() { m.held = on }) }

// settle waits until everything that happened in the switch before the call was printed, and gives the mark of that. It
// gives false when that cannot be known.
func (m *monitor) settle(ctx context.Context) (mark, bool) {
	m.mu.Lock()
	up, session, want := m.up, m.mark.session, m.barriers+1
	m.mu.Unlock()
	if !up {
		return mark{}, false
	}
	late.For(ctx, vswitchd)
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	if _, err := call(ctx, m.cfg.Path(m.control()), "ofctl/barrier"); err != nil {
		m.log.Debug("barrier", "error", err)
		return mark{}, false
	}
	for {
		m.mu.Lock()
		now, reached, gone, turn := m.mark, m.barriers >= want, !m.up || m.mark.session != session, m.turn
		m.mu.Unlock()
		switch {
		case gone:
			return mark{}, false
		case reached:
			return now, true
		}
		select {
		case <-turn:
		case <-ctx.Done():
			return mark{}, false
		}
	}
}

// control is the path of the monitor's control socket, one of its own for each monitor of a process.
func (m *monitor) control() string {
	return filepath.Join(m.cfg.RunDir, fmt.Sprintf("hairpin-%d-%p.ctl", os.Getpid(), m))
}

// removeStale removes control sockets of monitors whose process was killed.
func removeStale(cfg Config) {
	left, _ := filepath.Glob(filepath.Join(cfg.Path(cfg.RunDir), "hairpin-*.ctl")) // the pattern is good
	for _, socket := range left {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			_ = os.Remove(socket)
			continue
		}
		_ = conn.Close()
	}
}

// command runs a program where this process is, and ends it so that it can clean up.
func command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return cmd
}
