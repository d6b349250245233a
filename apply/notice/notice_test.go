package notice_test

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/apply/inside"
	"hairpin/apply/inside/insidetest"
	"hairpin/apply/notice"
)

// addresses adds and removes loopback addresses, n times.
func addresses(t *testing.T, ns string, n int) {
	t.Helper()
	err := inside.Do(ns, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		for i := range n {
			a, err := netlink.ParseAddr(fmt.Sprintf("127.1.%d.%d/32", i>>8&255, i&255))
			if err != nil {
				return err
			}
			if err := h.AddrAdd(lo, a); err != nil {
				return err
			}
			if err := h.AddrDel(lo, a); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestLostMessages checks that the loss of messages is signalled when the kernel is faster than the
// reader, and that the listener continues.
func TestLostMessages(t *testing.T) {
	ns := insidetest.NetNS(t)
	var lost, seen atomic.Int32
	hold := make(chan struct{})
	l, err := notice.Listen(notice.Config{
		NetNS: ns, Protocol: unix.NETLINK_ROUTE, Groups: []int{unix.RTNLGRP_IPV4_IFADDR},
		Relevant: func(m syscall.NetlinkMessage) bool {
			<-hold
			return m.Header.Type == unix.RTM_NEWADDR && seen.Add(1) > 0
		},
		Lost: func() { lost.Add(1) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addresses(t, ns, 20000)
	close(hold)
	for deadline := time.Now().Add(10 * time.Second); lost.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("nothing was lost of 40000 messages, %d were seen", seen.Load())
		}
	}
	for quiet := false; !quiet; {
		select {
		case <-l.Changed():
		case <-time.After(200 * time.Millisecond):
			quiet = true
		}
	}
	before := seen.Load()
	addresses(t, ns, 1)
	select {
	case <-l.Changed():
	case <-time.After(10 * time.Second):
		t.Fatal("after messages were lost, a change is not told within 10 s")
	}
	if seen.Load() != before+1 {
		t.Errorf("one address is %d messages", seen.Load()-before)
	}
}

func TestClose(t *testing.T) {
	ns := insidetest.NetNS(t)
	l, err := notice.Listen(notice.Config{
		NetNS: ns, Protocol: unix.NETLINK_ROUTE, Groups: []int{unix.RTNLGRP_LINK},
		Relevant: func(syscall.NetlinkMessage) bool { return true },
	})
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() { l.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(5 * time.Second):
		t.Fatal("Close does not return")
	}
	if _, err := notice.Listen(notice.Config{NetNS: "/nowhere", Protocol: unix.NETLINK_ROUTE}); err == nil {
		t.Error("a namespace that does not exist is listened to")
	}
}
