package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// startTimeout limits the start of a daemon or a network, which takes a moment on an idle machine.
const startTimeout = 2 * time.Minute

// The daemons of every node, by the names that Start, Kill and Restart take.
const (
	OVSDB      = "ovsdb-server"   // of Open vSwitch: /run/openvswitch/db.sock
	VSwitchd   = "ovs-vswitchd"   //
	NB         = "ovn-nb"         // /run/ovn/ovnnb_db.sock
	SB         = "ovn-sb"         // /run/ovn/ovnsb_db.sock
	Northd     = "ovn-northd"     //
	Controller = "ovn-controller" //
)

// AllDaemons returns the daemons of a node in an order in which they can be started.
func AllDaemons() []string { return []string{OVSDB, NB, SB, VSwitchd, Northd, Controller} }

// daemon describes how a daemon is run. Its files have the paths of Debian's start scripts, so that
// the tools find them without options.
type daemon struct {
	database, schema string // created if missing
	pidFile          string
	logFile          string
	args             []string
}

// knownDaemon returns a daemon of every node; these detach themselves and return when they serve.
func knownDaemon(name string) (daemon, bool) {
	db := func(file, schema, sock, ctl, pid, log string, more ...string) daemon {
		args := append([]string{"ovsdb-server", file, "--remote=punix:" + sock, "--unixctl=" + ctl}, more...)
		return daemon{database: file, schema: schema, pidFile: pid, logFile: log, args: args}
	}
	switch name {
	case OVSDB:
		return db("/etc/openvswitch/conf.db", "/usr/share/openvswitch/vswitch.ovsschema", "/run/openvswitch/db.sock",
			"/run/openvswitch/ovsdb-server.ctl", "/run/openvswitch/ovsdb-server.pid",
			"/var/log/openvswitch/ovsdb-server.log",
			"--remote=db:Open_vSwitch,Open_vSwitch,manager_options"), true
	case NB:
		return db("/var/lib/ovn/ovnnb_db.db", "/usr/share/ovn/ovn-nb.ovsschema", "/run/ovn/ovnnb_db.sock",
			"/run/ovn/ovnnb_db.ctl", "/run/ovn/ovnnb_db.pid", "/var/log/ovn/ovsdb-server-nb.log"), true
	case SB:
		return db("/var/lib/ovn/ovnsb_db.db", "/usr/share/ovn/ovn-sb.ovsschema", "/run/ovn/ovnsb_db.sock",
			"/run/ovn/ovnsb_db.ctl", "/run/ovn/ovnsb_db.pid", "/var/log/ovn/ovsdb-server-sb.log"), true
	case VSwitchd:
		return daemon{pidFile: "/run/openvswitch/ovs-vswitchd.pid", logFile: "/var/log/openvswitch/ovs-vswitchd.log",
			args: []string{"ovs-vswitchd", "unix:/run/openvswitch/db.sock"}}, true
	case Northd:
		return daemon{pidFile: "/run/ovn/ovn-northd.pid", logFile: "/var/log/ovn/ovn-northd.log",
			args: []string{"ovn-northd", "--ovnnb-db=unix:/run/ovn/ovnnb_db.sock",
				"--ovnsb-db=unix:/run/ovn/ovnsb_db.sock"}}, true
	case Controller:
		return daemon{pidFile: "/run/ovn/ovn-controller.pid", logFile: "/var/log/ovn/ovn-controller.log",
			args: []string{"ovn-controller", "unix:/run/openvswitch/db.sock"}}, true
	}
	return daemon{}, false
}

// Start starts a daemon of the node, or restarts one of StartDaemon. It returns when the daemon
// serves (one of StartDaemon: when it runs). It leaves a running daemon unchanged.
func (n *Node) Start(ctx context.Context, name string) error {
	defer n.hold(name)()
	if n.Pid(name) != 0 {
		return nil
	}
	d, known := knownDaemon(name)
	if !known {
		args, ok := n.started(name)
		if !ok {
			return fmt.Errorf("%s: start %s: no such daemon", n.name, name)
		}
		return n.startOther(ctx, name, args)
	}
	if d.database != "" {
		create := fmt.Sprintf("[ -f %[1]s ] || ovsdb-tool create %[1]s %[2]s", d.database, d.schema)
		if _, err := n.Exec(ctx, "sh", "-c", create); err != nil {
			return fmt.Errorf("create database of %s: %w", name, err)
		}
	}
	// As Debian's start scripts (ovs-ctl, ovn-ctl) do: at this priority, and with a monitor that
	// restarts a daemon after a fault (SIGSEGV, a failed assertion), but not after a kill.
	// ovn-controller 25.03 has such faults.
	args := append([]string{"nice", "-n", "-10"}, d.args...)
	args = append(args, "--pidfile="+d.pidFile, "--log-file="+d.logFile, "-vconsole:off", "--detach", "--monitor",
		"--no-chdir")
	if _, err := n.Exec(ctx, args...); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	return nil
}

// hold serializes starts and ends of one daemon. Those of different daemons run in parallel:
// ovs-vswitchd, for example, has not started before its database serves.
func (n *Node) hold(name string) (release func()) {
	mu, _ := n.daemons.LoadOrStore(name, &sync.Mutex{})
	mu.(*sync.Mutex).Lock()
	return mu.(*sync.Mutex).Unlock
}

// StartDaemon starts a program in the node that does not detach itself, such as the agent, and
// records it by name for Start, Kill and Restart. Its output goes to /var/log/NAME.log. It returns
// when the program has been executed.
func (n *Node) StartDaemon(ctx context.Context, name string, args ...string) error {
	if _, known := knownDaemon(name); known || !validName.MatchString(name) || len(args) == 0 {
		return fmt.Errorf("%s: start %q: not a name for a further daemon, or no program", n.name, name)
	}
	if err := n.remember(name, args); err != nil {
		return err
	}
	return n.Start(ctx, name)
}

// startOther runs a program under setsid; its shell writes the process id before it becomes the
// program.
func (n *Node) startOther(ctx context.Context, name string, args []string) error {
	join := ""
	if n.disk != "" {
		join = joinScript
	}
	script := join +
		fmt.Sprintf(`exec </dev/null >>/var/log/%[1]s.log 2>&1; echo $$ >%[2]s.new; mv %[2]s.new %[2]s; exec "$@"`,
			name, pidFile(name))
	if _, err := n.Exec(ctx, append([]string{"sh", "-c", "rm -f " + pidFile(name) + `; exec setsid --fork sh -c "$@"`,
		"sh", script, name}, args...)...); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err := Poll(ctx, time.Millisecond, func() (bool, error) {
		_, err := os.Stat(n.Path(pidFile(name)))
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%s: wait until %s runs: %w", n.name, name, err)
	}
	return nil
}

// pidFile returns the path of a daemon's PID file in the node.
func pidFile(name string) string {
	if d, ok := knownDaemon(name); ok {
		return d.pidFile
	}
	return "/run/lab/" + name + ".pid"
}

// LogFile returns the path of a daemon's log on the machine.
func (n *Node) LogFile(name string) string {
	file := "/var/log/" + name + ".log"
	if d, ok := knownDaemon(name); ok {
		file = d.logFile
	}
	return filepath.Join(n.Dir(), "log", strings.TrimPrefix(file, "/var/log/"))
}

// Pid returns a daemon's process ID in the node's process namespace; 0 when it does not run.
func (n *Node) Pid(name string) int {
	text, err := os.ReadFile(n.Path(pidFile(name)))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid < 2 || !n.hasProcess(pid) {
		return 0
	}
	return pid
}

func (n *Node) procDir(pid int) string { return n.Path("/proc/" + strconv.Itoa(pid)) }

// hasProcess reports whether a process of the node exists. A zombie counts until the node's first
// process has reaped it: its other threads may still hold locks and sockets.
func (n *Node) hasProcess(pid int) bool {
	_, err := os.Stat(n.procDir(pid))
	return err == nil
}

// Signal sends a signal to a running daemon.
func (n *Node) Signal(name string, sig syscall.Signal) error {
	pid := n.Pid(name)
	if pid == 0 {
		return fmt.Errorf("%s: %s does not run", n.name, name)
	}
	// The /proc directory of a process serves as its pidfd, so its PID in this process namespace
	// need not be known.
	dir, err := os.Open(n.procDir(pid))
	if err != nil {
		return fmt.Errorf("%s: signal %s: %w", n.name, name, err)
	}
	defer dir.Close()
	if err := unix.PidfdSendSignal(int(dir.Fd()), sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("%s: signal %s: %w", n.name, name, err)
	}
	return nil
}

// Kill sends a signal that ends the daemon (SIGTERM or SIGKILL) and waits until it is gone, 10 s at
// most.
func (n *Node) Kill(ctx context.Context, name string, sig syscall.Signal) error {
	defer n.hold(name)()
	pid := n.Pid(name)
	if err := n.Signal(name, sig); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err := Poll(ctx, time.Millisecond, func() (bool, error) { return !n.hasProcess(pid), nil })
	if err != nil {
		return fmt.Errorf("%s: wait until %s is gone: %w", n.name, name, err)
	}
	return nil
}

// Restart is Kill and Start.
func (n *Node) Restart(ctx context.Context, name string, sig syscall.Signal) error {
	if err := n.Kill(ctx, name, sig); err != nil {
		return err
	}
	return n.Start(ctx, name)
}

// remember records a daemon of StartDaemon, so that it can start again, also by a later process.
func (n *Node) remember(name string, args []string) error {
	return n.change(func(r *nodeRecord) { r.Daemons[name] = args })
}

func (n *Node) started(name string) (args []string, ok bool) {
	n.lab.mu.Lock()
	defer n.lab.mu.Unlock()
	args, ok = n.recorded().Daemons[name]
	return args, ok
}

// change changes the record of the node.
func (n *Node) change(f func(*nodeRecord)) error {
	n.lab.mu.Lock()
	defer n.lab.mu.Unlock()
	f(n.recorded())
	return n.lab.record.save()
}

// recorded returns the node's record, an empty one when the node was stopped; the caller holds the
// lab's lock.
func (n *Node) recorded() *nodeRecord {
	for _, h := range n.lab.record.Hosts {
		if h.Name == n.name && h.Node != nil {
			return h.Node
		}
	}
	return &nodeRecord{Daemons: map[string][]string{}}
}

// DaemonNames returns the names of the node's daemons: those of every node, then those of
// StartDaemon, sorted.
func (n *Node) DaemonNames() []string {
	n.lab.mu.Lock()
	defer n.lab.mu.Unlock()
	return append(AllDaemons(), slices.Sorted(maps.Keys(n.recorded().Daemons))...)
}
