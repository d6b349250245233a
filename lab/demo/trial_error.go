package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errorTrials returns trials that list the routers on a path, as traceroute does. The "time
// exceeded" of each must reach the client's socket, regardless of NAT. Errors of endpoints without
// a listener are rows of the matrix.
func errorTrials() []Trial {
	const a, b = "NodePort node-a", "NodePort node-b"
	var list []Trial
	for _, x := range []way{
		{"client", "podlocal", a}, {"client", "keeppod", a}, {"client", "podremote", a}, {"client", "hostself", a},
		{"client", "hostother", a}, {"client", "podlocal", b},
		{"host-a", "podlocal", "ClusterIP"}, {"host-a", "podremote", "ClusterIP"}, {"host-a", "hostself", "ClusterIP"},
		{"pod-a2", "podlocal", "ClusterIP"}, {"pod-a2", "podremote", "ClusterIP"}, {"pod-a2", "hostother", "ClusterIP"},
		{"pod-a2", "client", "direct"}, {"pod-a2", "pod-c1", "direct"},
	} {
		for _, f := range families() {
			list = append(list, Trial{Name: x.name("traceroute", "udp"+f.name), Group: "traceroute " + x.from,
				try: func(ctx context.Context, w *world) (string, error) {
					return w.trace(ctx, x, f)
				}})
		}
	}
	return list
}

func (w *world) trace(ctx context.Context, x way, f family) (string, error) {
	to, err := w.wayTo(x, f)
	if err != nil {
		return "", err
	}
	var hops []string
	for ttl := 1; ttl <= 6; ttl++ {
		limit := w.longer(6 * time.Second)
		mayBeSilent := w.silent(x, f, ttl)
		if mayBeSilent {
			limit = min(w.longer(time.Second/2), 5*time.Second) // slow machines must wait for many of these
		}
		hop, err := w.hop(ctx, x.from, to, f, ttl, limit)
		if err != nil && mayBeSilent {
			hops = append(hops, "*")
			continue
		}
		if err != nil {
			return "", fmt.Errorf("after %s, with time to live %d: %w", strings.Join(hops, ", "), ttl, err)
		}
		if !hop.IsValid() {
			return "by " + strings.Join(hops, ", "), nil
		}
		hops = append(hops, hop.String())
	}
	return "", fmt.Errorf("not reached, by %s", strings.Join(hops, ", "))
}

// silent reports whether the error for an expired time to live may be missing. OVN 25.03 sends it
// to IPv6 senders on the router's own network only. The gateway router has its host's address. The
// host accepts no packet from that: neither for itself nor, in the modes local and detached, for an
// external client. On the kernel datapath, an error of a router behind a load balancer is not
// un-NATed, so no socket gets it. ovs-vswitchd must set the ICMP type for the kernel, and then runs
// each action alone, which loses the conntrack state.
func (w *world) silent(x way, f family, ttl int) bool {
	byHost := x.from == clientName && !w.shared && ttl == 2
	behind := !w.userspace && x.path != "direct" && (ttl > 1 || strings.HasPrefix(x.from, "pod-"))
	return f.name == "6" || byHost || behind || strings.HasPrefix(x.from, "host-") && ttl == 1
}

// hop returns the source of the error for an expired time to live, or the zero Addr when the server
// replies.
func (w *world) hop(ctx context.Context, from string, to netip.AddrPort, f family, ttl int,
	limit time.Duration) (netip.Addr, error) {
	options := []option{{unix.IPPROTO_IP, unix.IP_TTL, ttl}, {unix.IPPROTO_IP, unix.IP_RECVERR, 1}}
	if f.name == "6" {
		options = []option{{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, ttl}, {unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1}}
	}
	conn, err := w.dial(ctx, from, "udp", f, netip.AddrPort{}, to, options...)
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	// Machines limit the rate of errors.
	for end := time.Now().Add(limit); ; {
		_, err := within(conn, []byte("get"), min(limit, w.patience()))
		if err == nil {
			return netip.Addr{}, nil
		}
		if errors.Is(err, unix.EHOSTUNREACH) {
			return offender(conn.(*net.UDPConn))
		}
		if time.Now().After(end) {
			return netip.Addr{}, err
		}
	}
}

// offender reads the sender of the error from the socket's error queue.
func offender(conn *net.UDPConn) (netip.Addr, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return netip.Addr{}, err
	}
	control := make([]byte, 512)
	var n int
	outer := raw.Control(func(fd uintptr) {
		_, n, _, _, err = unix.Recvmsg(int(fd), make([]byte, 64), control, unix.MSG_ERRQUEUE)
	})
	if err := errors.Join(outer, err); err != nil {
		return netip.Addr{}, fmt.Errorf("read error queue: %w", err)
	}
	messages, err := syscall.ParseSocketControlMessage(control[:n])
	if err != nil {
		return netip.Addr{}, err
	}
	for _, m := range messages { // struct sock_extended_err, 16 bytes, and the sockaddr of the error's sender
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_RECVERR && len(m.Data) >= 24:
			if kind := m.Data[5]; kind != 11 {
				return netip.Addr{}, fmt.Errorf("ICMP type %d", kind)
			}
			return netip.AddrFrom4([4]byte(m.Data[20:24])), nil
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_RECVERR && len(m.Data) >= 40:
			if kind := m.Data[5]; kind != 3 {
				return netip.Addr{}, fmt.Errorf("ICMPv6 type %d", kind)
			}
			return netip.AddrFrom16([16]byte(m.Data[24:40])), nil
		}
	}
	return netip.Addr{}, errors.New("the kernel does not say who sent the error")
}
