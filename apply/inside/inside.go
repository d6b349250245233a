// Package inside runs a function inside a network namespace.
package inside

import (
	"fmt"
	"runtime"

	"github.com/vishvananda/netns"
)

// Do runs f in the network namespace of a path such as "/proc/123/ns/net", or in the caller's if
// the path is empty. Processes that f starts, and sockets and files (below /proc/sys/net) that it
// opens, belong to that namespace. Goroutines that f starts do not.
func Do(path string, f func() error) error {
	if path == "" {
		return f()
	}
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return fmt.Errorf("network namespace %s: %w", path, err)
	}
	defer func() { _ = ns.Close() }()
	done := make(chan error)
	go func() {
		// Never unlocked: the thread ends with the goroutine, so nothing else runs in the foreign
		// namespace.
		runtime.LockOSThread()
		if err := netns.Set(ns); err != nil {
			done <- fmt.Errorf("enter network namespace %s: %w", path, err)
			return
		}
		done <- f()
	}()
	return <-done
}
