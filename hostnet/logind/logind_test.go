package logind_test

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"hairpin/hostnet/logind"
)

const busConfig = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path=SOCKET</listen><auth>EXTERNAL</auth><policy context="default">
<allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>
`

// startLogind starts a real dbus-daemon and systemd-logind, which do not reach the machine's
// systemd, and returns a connection to the bus and its address.
func startLogind(t *testing.T) (*dbus.Conn, string) {
	t.Helper()
	const daemon, login = "/usr/bin/dbus-daemon", "/lib/systemd/systemd-logind"
	for _, p := range []string{daemon, login} {
		if _, err := os.Stat(p); err != nil {
			t.Skip(err)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir, err := os.MkdirTemp("", "bus") // the path of a socket is limited
	noError(t, err)
	t.Cleanup(func() { noError(t, os.RemoveAll(dir)) })
	socket, file := filepath.Join(dir, "s"), filepath.Join(dir, "bus.conf")
	noError(t, os.WriteFile(file, []byte(strings.Replace(busConfig, "SOCKET", socket, 1)), 0o600))
	start(t, exec.Command(daemon, "--config-file="+file, "--nofork", "--nopidfile"))
	soon(t, "the bus", func() bool { _, err := os.Stat(socket); return err == nil })
	c := exec.Command("/bin/sh", "-c", "mount -t tmpfs tmpfs /run && mkdir /run/systemd && exec "+login)
	c.Env = append(os.Environ(), "DBUS_SYSTEM_BUS_ADDRESS=unix:path="+socket)
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	start(t, c)
	bus := "unix:path=" + socket
	conn, err := dbus.Connect(bus)
	noError(t, err)
	t.Cleanup(func() { noError(t, conn.Close()) })
	soon(t, "logind", func() bool {
		var has bool
		noError(t, conn.BusObject().Call("org.freedesktop.DBus.NameHasOwner", 0, "org.freedesktop.login1").Store(&has))
		return has
	})
	return conn, bus
}

// start starts a program that ends with the test.
func start(t *testing.T, c *exec.Cmd) {
	t.Helper()
	c.Stderr = t.Output()
	noError(t, c.Start())
	t.Cleanup(func() {
		noError(t, c.Process.Signal(syscall.SIGTERM))
		_ = c.Wait() // it was terminated
	})
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

// TestWatch: a reboot waits while the function runs; without logind, the function is called once.
func TestWatch(t *testing.T) {
	conn, bus := startLogind(t)
	s := systemd{make(chan string, 1)}
	const manager = "org.freedesktop.systemd1.Manager"
	noError(t, conn.Export(s, "/org/freedesktop/systemd1", manager))
	noError(t, conn.Export(s, "/org/freedesktop/systemd1/unit/reboot_2etarget", "org.freedesktop.DBus.Properties"))
	_, err := conn.RequestName("org.freedesktop.systemd1", dbus.NameFlagDoNotQueue)
	noError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	calls, done := make(chan bool), make(chan struct{})
	go func() {
		defer close(done)
		logind.Watch(ctx, bus, slog.New(slog.DiscardHandler), func(ctx context.Context, down bool) {
			select {
			case calls <- down: // the reader decides when the function returns
			case <-ctx.Done():
			}
		})
	}()
	defer func() { cancel(); <-done }()
	if <-calls {
		t.Fatal("the machine shuts down at the beginning")
	}
	login := conn.Object("org.freedesktop.login1", "/org/freedesktop/login1")
	locked := func() bool {
		var list [][]any
		noError(t, login.Call("org.freedesktop.login1.Manager.ListInhibitors", 0).Store(&list))
		return len(list) == 1 && list[0][0] == "shutdown" && list[0][3] == "delay"
	}
	soon(t, "the lock", locked)
	noError(t, login.Call("org.freedesktop.login1.Manager.Reboot", 0, false).Err)
	soon(t, "the preparation", func() bool {
		v, err := login.GetProperty("org.freedesktop.login1.Manager.PreparingForShutdown")
		noError(t, err)
		return v.Value() == true
	})
	if !locked() {
		t.Error("the shutdown does not wait")
	}
	select {
	case u := <-s.started:
		t.Errorf("%s was started before the function returned", u)
	default:
	}
	if !<-calls {
		t.Error("the function was not called for the shutdown")
	}
	if u := <-s.started; u != "reboot.target" {
		t.Errorf("%s was started", u)
	}
}

// TestWithoutLogind: the function is called, so that an old announcement is removed.
func TestWithoutLogind(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	logind.Watch(ctx, "unix:path=/nonexistent", slog.New(slog.DiscardHandler), func(_ context.Context, down bool) {
		if n++; down {
			t.Error("it shuts down")
		}
		cancel()
	})
	if n != 1 {
		t.Errorf("called %d times", n)
	}
}

func soon(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("timeout: " + what)
		}
	}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
