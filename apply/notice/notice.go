// Package notice listens for the kernel's netlink notifications and signals, coalesced, that
// something changed.
package notice

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hairpin/apply/inside"
	"hairpin/signal"
)

// Config describes what to listen to.
type Config struct {
	NetNS    string // path of a network namespace; empty = the caller's
	Protocol int    // such as unix.NETLINK_ROUTE
	Groups   []int  // such as unix.RTNLGRP_LINK
	// Relevant reports whether to signal a message. It is called from one goroutine.
	Relevant func(syscall.NetlinkMessage) bool
	// Lost is called when messages were lost, because the kernel sent faster than this process
	// read. Changed signals that, too.
	Lost func()
}

// Listener signals messages on Changed.
type Listener struct {
	config  Config
	changed signal.Signal
	mu      sync.Mutex
	file    *os.File
	closed  bool
	done    chan struct{}
}

// bufferSize is the kernel's queue for the socket in bytes: some ten thousand messages.
const bufferSize = 8 << 20

// pause is the time between attempts to open a socket again.
const pause = 100 * time.Millisecond

// Listen opens the socket. The Listener signals all events from then on.
func Listen(c Config) (*Listener, error) {
	l := &Listener{config: c, changed: signal.New(), done: make(chan struct{})}
	f, err := l.open()
	if err != nil {
		return nil, err
	}
	l.file = f
	go l.run(f)
	return l, nil
}

// Changed signals that there were relevant messages since the last signal.
func (l *Listener) Changed() <-chan struct{} { return l.changed.C() }

// Notify makes Changed signal.
func (l *Listener) Notify() {
	l.changed.Notify()
}

// Close stops the Listener.
func (l *Listener) Close() {
	l.mu.Lock()
	l.closed = true
	_ = l.file.Close()
	l.mu.Unlock()
	<-l.done
}

func (l *Listener) open() (*os.File, error) {
	var file *os.File
	err := inside.Do(l.config.NetNS, func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, l.config.Protocol)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		// Without CAP_NET_ADMIN the system's limit applies; messages are lost sooner. Changed
		// signals that.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bufferSize)
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		for _, g := range l.config.Groups {
			if err == nil {
				err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g)
			}
		}
		if err != nil {
			_ = unix.Close(fd)
			return os.NewSyscallError("bind", err)
		}
		file = os.NewFile(uintptr(fd), "netlink")
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listen to netlink: %w", err)
	}
	return file, nil
}

func (l *Listener) run(f *os.File) {
	defer close(l.done)
	buffer := make([]byte, 256<<10)
	for {
		n, err := f.Read(buffer)
		if l.isClosed() {
			return
		}
		if err == nil {
			l.read(buffer[:n])
			continue
		}
		if !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			if f = l.reopen(); f == nil {
				return
			}
		}
		if l.config.Lost != nil {
			l.config.Lost()
		}
		l.Notify()
	}
}

func (l *Listener) read(b []byte) {
	// ParseNetlinkMessage copies nothing; a message is valid until Relevant returns.
	messages, err := syscall.ParseNetlinkMessage(b)
	relevant := err != nil
	for _, m := range messages {
		if l.config.Relevant(m) {
			relevant = true
		}
	}
	if relevant {
		l.Notify()
	}
}

func (l *Listener) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// reopen retries until it has a socket again; it returns nil if the Listener was closed.
func (l *Listener) reopen() *os.File {
	for {
		if l.isClosed() {
			return nil
		}
		f, err := l.open()
		if err != nil {
			time.Sleep(pause)
			continue
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.closed {
			_ = f.Close()
			return nil
		}
		l.file = f
		return f
	}
}
