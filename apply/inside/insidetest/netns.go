// Package insidetest makes network namespaces for tests.
package insidetest

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// NetNS makes a network namespace, with its loopback up, that ends with the test, and returns its
// path. It skips the test without root privileges.
func NetNS(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a network namespace")
	}
	type made struct {
		ns  netns.NsHandle
		err error
	}
	done := make(chan made)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		ns, err := netns.New()
		if err == nil {
			var lo netlink.Link
			if lo, err = netlink.LinkByName("lo"); err == nil {
				err = netlink.LinkSetUp(lo)
			}
		}
		done <- made{ns, err}
	}()
	m := <-done
	if m.err != nil {
		t.Fatalf("make a network namespace: %v", m.err)
	}
	t.Cleanup(func() { _ = m.ns.Close() })
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(m.ns))
}
