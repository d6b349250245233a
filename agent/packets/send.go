package packets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hairpin/apply/inside"
	"hairpin/cluster"
	"hairpin/report"
	"hairpin/walk/explain"
)

// Send makes one TCP handshake, or sends a datagram until a reply comes. It sends once a
// second, like the retransmissions of a handshake.
func Send(ctx context.Context, r *report.Send) (explain.Sent, error) {
	s := explain.Sent{Protocol: r.Protocol.String(), To: r.To, Outcome: explain.Silent}
	if r.Protocol != cluster.TCP && r.Protocol != cluster.UDP {
		return s, fmt.Errorf("%s cannot be sent, only tcp and udp", r.Protocol)
	}
	if !r.To.IsValid() || r.Timeout <= 0 || r.Timeout > time.Minute {
		return s, errors.New("request: to or timeout makes no sense")
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	begin := time.Now()
	err := inside.Do(r.Netns, func() error { return exchange(ctx, &s) })
	s.Millis = float64(time.Since(begin).Microseconds()) / 1000
	switch {
	case err == nil:
		s.Outcome = explain.Answered
	case errors.Is(err, syscall.ECONNREFUSED):
		s.Outcome, s.Detail = explain.Refused, "connection refused"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		s.Detail = "within " + r.Timeout.String()
	default:
		s.Detail = err.Error()
	}
	return s, nil
}

// exchange sends from the calling thread's network namespace.
func exchange(ctx context.Context, s *explain.Sent) error {
	dialer := net.Dialer{KeepAlive: -1, Control: func(_, _ string, c syscall.RawConn) error { return bindPort(c, s) }}
	conn, err := dialer.DialContext(ctx, s.Protocol, s.To.String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the packet has been sent
	if from, err := netip.ParseAddrPort(conn.LocalAddr().String()); err == nil {
		s.From = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	}
	if s.Protocol == cluster.TCP.String() {
		return nil
	}
	for {
		if _, err := conn.Write([]byte("hairpin explain --send\n")); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		_, err := conn.Read(make([]byte, 2048))
		if !errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil {
			return err
		}
	}
}

// bindPort binds the socket to a free port before it connects, so that the port is known even if no
// reply comes.
func bindPort(c syscall.RawConn, s *explain.Sent) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		var unspecified unix.Sockaddr = &unix.SockaddrInet4{}
		if s.To.Addr().Is6() {
			unspecified = &unix.SockaddrInet6{}
		}
		if failed = unix.Bind(int(fd), unspecified); failed != nil {
			return
		}
		var is unix.Sockaddr
		if is, failed = unix.Getsockname(int(fd)); failed != nil {
			return
		}
		switch is := is.(type) {
		case *unix.SockaddrInet4:
			s.From = netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(is.Port))
		case *unix.SockaddrInet6:
			s.From = netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(is.Port))
		}
	})
	return errors.Join(err, failed)
}
