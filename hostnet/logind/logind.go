// Package logind learns from systemd-logind that the machine shuts down, and delays that: the
// inhibitor locks of https://systemd.io/INHIBITOR_LOCKS.
package logind

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/godbus/dbus/v5"

	"hairpin/retry"
)

// Bus is the address of the machine's D-Bus.
const Bus = "unix:path=/run/dbus/system_bus_socket"

const (
	service  = "org.freedesktop.login1"
	object   = "/org/freedesktop/login1"
	manager  = "org.freedesktop.login1.Manager"
	shutdown = "PrepareForShutdown" // a signal; true: a shutdown begins, false: it was canceled
)

// Watch calls f with whether the machine shuts down: at its beginning, and when that changes.
// While f runs, the shutdown waits, for at most InhibitDelayMaxSec of logind.conf, which is 5 s by
// default. Without logind, f is called once, with false, and Watch looks for logind until ctx ends.
func Watch(ctx context.Context, bus string, log *slog.Logger, f func(ctx context.Context, down bool)) {
	called := false
	call := func(ctx context.Context, down bool) {
		called = true
		f(ctx, down)
	}
	for backoff := (retry.Backoff{}); ctx.Err() == nil; backoff.Sleep(ctx) {
		err := watch(ctx, bus, call)
		if !called {
			call(ctx, false)
		}
		if backoff.Pause() == 0 && ctx.Err() == nil { // the first failure
			log.Info("cannot learn of shutdowns from systemd-logind", "error", err)
		}
	}
}

// watch is Watch for one connection. It returns why that ended.
func watch(ctx context.Context, bus string, f func(ctx context.Context, down bool)) error {
	conn, err := dbus.Connect(bus, dbus.WithContext(ctx))
	if err != nil {
		return err
	}
	defer conn.Close() // an error does not matter: it is only read
	signals := make(chan *dbus.Signal, 8)
	conn.Signal(signals)
	if err := conn.AddMatchSignalContext(ctx, dbus.WithMatchSender(service), dbus.WithMatchInterface(manager),
		dbus.WithMatchMember(shutdown)); err != nil {
		return err
	}
	login := conn.Object(service, object)
	lock, err := inhibit(ctx, login)
	down := false
	if failed := login.StoreProperty(manager+".PreparingForShutdown", &down); failed != nil {
		err = failed
	} else if down {
		err = nil // of inhibit: logind gives no lock during a shutdown
	}
	for err == nil {
		f(ctx, down)
		if down {
			release(lock)
			lock = nil
		}
		if down, err = next(ctx, signals); err == nil && !down && lock == nil {
			lock, err = inhibit(ctx, login)
		}
	}
	release(lock)
	return err
}

// next waits for a shutdown, or for its cancellation. A connection gets other signals, too, such as
// that of its own name.
func next(ctx context.Context, signals <-chan *dbus.Signal) (down bool, err error) {
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case s, open := <-signals:
			if !open {
				return false, errors.New("the connection to D-Bus was closed")
			}
			if s.Name == manager+"."+shutdown {
				err = dbus.Store(s.Body, &down)
				return down, err
			}
		}
	}
}

// release releases a lock, if there is one.
func release(lock *os.File) {
	if lock != nil {
		_ = lock.Close() // of a pipe that nothing was written to
	}
}

// inhibit returns a lock that delays shutdowns until it is closed.
func inhibit(ctx context.Context, login dbus.BusObject) (*os.File, error) {
	var fd dbus.UnixFD
	err := login.CallWithContext(ctx, manager+".Inhibit", 0, "shutdown", "Hairpin",
		"other nodes take over egress and load balancer addresses", "delay").Store(&fd)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "inhibitor lock"), nil
}
