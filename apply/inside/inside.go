// Package inside runs a function inside a network namespace.
package inside

import (
	"errors"
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
	err = errors.New("the function has ended its goroutine")
	done := make(chan struct{})
	go func() {
		defer close(done) // also if f ends the goroutine, as a failed test does
		// Never unlocked: the thread ends with the goroutine, so nothing else runs in the foreign
		// namespace.
		runtime.LockOSThread()
		if e := netns.Set(ns); e != nil {
			err = fmt.Errorf("enter network namespace %s: %w", path, e)
			return
		}
		err = f()
	}()
	<-done
	return err
}
