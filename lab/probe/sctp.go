package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// HasSCTP reports whether this machine's kernel has SCTP sockets.
func HasSCTP() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	return true
}

// sctpSocket makes a one-to-one socket (RFC 6458, section 4) that is bound to one address. A socket
// without an address announces all addresses of its host to the peer, and these are not NATed.
func sctpSocket(local netip.AddrPort) (*os.File, error) {
	family := unix.AF_INET
	if local.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return nil, fmt.Errorf("SCTP socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), "sctp")
	if err := unix.Bind(fd, sockaddr(local)); err != nil {
		return nil, errors.Join(fmt.Errorf("bind SCTP socket to %s: %w", local, err), f.Close())
	}
	return f, nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// dialSCTP connects. Package net treats the socket as TCP, which has the same calls.
func dialSCTP(ctx context.Context, from netip.Addr, to netip.AddrPort) (net.Conn, error) {
	if !from.IsValid() {
		var err error
		if from, err = sourceFor(to); err != nil {
			return nil, err
		}
	}
	f, err := sctpSocket(netip.AddrPortFrom(from, 0))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if end, ok := ctx.Deadline(); ok {
		limit := unix.NsecToTimeval(max(time.Until(end), time.Millisecond).Nanoseconds())
		if err := unix.SetsockoptTimeval(int(f.Fd()), unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
			return nil, fmt.Errorf("limit of SCTP connect: %w", err)
		}
	}
	switch err := unix.Connect(int(f.Fd()), sockaddr(to)); {
	case errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EAGAIN):
		return nil, fmt.Errorf("dial sctp %s: i/o timeout", to)
	case err != nil:
		return nil, fmt.Errorf("dial sctp %s: %w", to, err)
	}
	return net.FileConn(f)
}

// sourceFor returns the source address that the kernel uses for a destination.
func sourceFor(to netip.AddrPort) (netip.Addr, error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	return addrPort(conn.LocalAddr()).Addr(), nil
}

// listenSCTP listens on each current address of the machine, not on later ones.
func listenSCTP(port uint16) ([]net.Listener, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var list []net.Listener
	for _, a := range addresses {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		l, err := listenSCTPOn(netip.AddrPortFrom(p.Addr(), port))
		if err != nil {
			for _, l := range list {
				_ = l.Close()
			}
			return nil, err
		}
		list = append(list, l)
	}
	return list, nil
}

func listenSCTPOn(local netip.AddrPort) (net.Listener, error) {
	f, err := sctpSocket(local)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := unix.Listen(int(f.Fd()), 128); err != nil {
		return nil, fmt.Errorf("listen on SCTP %s: %w", local, err)
	}
	return net.FileListener(f)
}
