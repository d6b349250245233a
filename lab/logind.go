package lab

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
)

const logindBus = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path=SOCKET</listen><auth>EXTERNAL</auth><policy context="default">
<allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>
`

// Logind is a real systemd-logind of a machine that can be rebooted, as far as logind knows.
type Logind struct {
	Units <-chan string // that logind starts for a shutdown
	t     TB
	login dbus.BusObject
}

// systemd is as much of PID 1 as logind needs for a shutdown: a unit that is loaded and can be
// started.
type systemd struct{ started chan string }

func (s systemd) Get(_, property string) (dbus.Variant, *dbus.Error) {
	return dbus.MakeVariant(map[string]string{"LoadState": "loaded"}[property]), nil
}

func (s systemd) StartUnit(name, _ string) (dbus.ObjectPath, *dbus.Error) {
	s.started <- name
	return "/org/freedesktop/systemd1/job/1", nil
}

func (s systemd) Subscribe() *dbus.Error { return nil }

// StartLogind starts a dbus-daemon with a socket, and systemd-logind, which do not reach the
// machine's systemd. They end with the test.
func StartLogind(t TB, socket string) *Logind {
	t.Helper()
	const daemon, login = "/usr/bin/dbus-daemon", "/lib/systemd/systemd-logind"
	for _, p := range []string{daemon, login} {
		if _, err := os.Stat(p); err != nil {
			t.Skipf("%v", err)
		}
	}
	if os.Getuid() != 0 {
		t.Skipf("needs root")
	}
	file := filepath.Join(t.TempDir(), "bus.conf")
	must(t, os.WriteFile(file, []byte(strings.Replace(logindBus, "SOCKET", socket, 1)), 0o600))
	startProgram(t, exec.Command(daemon, "--config-file="+file, "--nofork", "--nopidfile"))
	soon(t, "the bus", func() bool { _, err := os.Stat(socket); return err == nil })
	c := exec.Command("/bin/sh", "-c", "mount -t tmpfs tmpfs /run && mkdir /run/systemd && exec "+login)
	c.Env = append(os.Environ(), "DBUS_SYSTEM_BUS_ADDRESS=unix:path="+socket)
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	startProgram(t, c)
	conn, err := dbus.Connect("unix:path=" + socket)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	s := systemd{make(chan string, 1)}
	must(t, conn.Export(s, "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"))
	must(t, conn.Export(s, "/org/freedesktop/systemd1/unit/reboot_2etarget", "org.freedesktop.DBus.Properties"))
	_, err = conn.RequestName("org.freedesktop.systemd1", dbus.NameFlagDoNotQueue)
	must(t, err)
	soon(t, "logind", func() bool {
		var has bool
		must(t, conn.BusObject().Call("org.freedesktop.DBus.NameHasOwner", 0, "org.freedesktop.login1").Store(&has))
		return has
	})
	return &Logind{s.started, t, conn.Object("org.freedesktop.login1", "/org/freedesktop/login1")}
}

// AwaitLock waits until a program delays shutdowns.
func (m *Logind) AwaitLock() {
	m.t.Helper()
	soon(m.t, "the lock", m.Locked)
}

// Locked reports whether a program delays shutdowns.
func (m *Logind) Locked() bool {
	m.t.Helper()
	var list [][]any
	must(m.t, m.login.Call("org.freedesktop.login1.Manager.ListInhibitors", 0).Store(&list))
	return len(list) == 1 && list[0][0] == "shutdown" && list[0][3] == "delay"
}

// Reboot requests a reboot, and waits until logind prepares it.
func (m *Logind) Reboot() {
	m.t.Helper()
	must(m.t, m.login.Call("org.freedesktop.login1.Manager.Reboot", 0, false).Err)
	soon(m.t, "the preparation", func() bool {
		v, err := m.login.GetProperty("org.freedesktop.login1.Manager.PreparingForShutdown")
		must(m.t, err)
		return v.Value() == true
	})
}

// startProgram starts a program that ends with the test.
func startProgram(t TB, c *exec.Cmd) {
	t.Helper()
	must(t, c.Start())
	t.Cleanup(func() {
		must(t, c.Process.Signal(syscall.SIGTERM))
		_ = c.Wait() // it was terminated
	})
}

func soon(t TB, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	if err := Poll(ctx, 20*time.Millisecond, func() (bool, error) { return is(), nil }); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func must(t TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}
