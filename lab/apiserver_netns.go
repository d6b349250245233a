package lab

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// withNetns calls do on a thread that is in the network namespace at path; an empty path means the
// current one. Sockets and processes that do creates belong to that namespace; goroutines that it
// starts do not run in it.
func withNetns(path string, do func() error) (err error) {
	if path == "" {
		return do()
	}
	target, err := netns.GetFromPath(path)
	if err != nil {
		return fmt.Errorf("opening network namespace %s: %w", path, err)
	}
	defer func() { _ = target.Close() }()
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("opening the present network namespace: %w", err)
	}
	defer func() { _ = home.Close() }()
	if err := netns.Set(target); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("entering network namespace %s: %w", path, err)
	}
	defer func() {
		if back := netns.Set(home); back != nil {
			// The thread stays locked: it must never run another goroutine.
			err = fmt.Errorf("returning from network namespace %s: %w", path, back)
			return
		}
		runtime.UnlockOSThread()
	}()
	return do()
}

// dialer returns a dial function for connections from the network namespace at path. It works for
// IP addresses, not for names (the resolver uses goroutines of its own).
func dialer(path string) func(ctx context.Context, network, address string) (net.Conn, error) {
	d := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = withNetns(path, func() (err error) {
			conn, err = d.DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
}

// raiseLoopback sets lo up in the network namespace at path: without it, even a local address does
// not reply.
func raiseLoopback(path string) error {
	return withNetns(path, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("finding lo: %w", err)
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return fmt.Errorf("setting lo up: %w", err)
		}
		return nil
	})
}
