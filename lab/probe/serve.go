package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Serve answers TCP and UDP on a port of all addresses of both families until ctx ends, and SCTP
// where the kernel has it. It calls ready when it listens. A machine without IPv6 serves IPv4 only.
func Serve(ctx context.Context, name string, port uint16, ready func()) error {
	return serve(ctx, name, port, HasSCTP(), ready)
}

// ServePlain is Serve without SCTP. The kernel of a machine without SCTP sockets may load a module
// when a program asks for one.
func ServePlain(ctx context.Context, name string, port uint16, ready func()) error {
	return serve(ctx, name, port, false, ready)
}

func serve(ctx context.Context, name string, port uint16, sctp bool, ready func()) error {
	address := fmt.Sprintf(":%d", port)
	var listeners []net.Listener
	var sockets []*net.UDPConn
	closeAll := func() {
		for _, l := range listeners {
			_ = l.Close()
		}
		for _, s := range sockets {
			_ = s.Close()
		}
	}
	defer closeAll()
	for _, family := range []string{"4", "6"} {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp"+family, address)
		if err == nil {
			listeners = append(listeners, l)
			var u net.PacketConn
			u, err = (&net.ListenConfig{Control: wantDestination}).ListenPacket(ctx, "udp"+family, address)
			if err == nil {
				sockets = append(sockets, u.(*net.UDPConn))
			}
		}
		if errors.Is(err, unix.EAFNOSUPPORT) && family == "6" {
			continue
		}
		if err != nil {
			return fmt.Errorf("serve: %w", err)
		}
	}
	if sctp {
		list, err := listenSCTP(port)
		if err != nil {
			return fmt.Errorf("serve: %w", err)
		}
		listeners = append(listeners, list...)
	}
	for _, l := range listeners {
		go serveTCP(l, name)
	}
	for _, s := range sockets {
		go serveUDP(s, name, port)
	}
	ready()
	<-ctx.Done()
	return nil
}

func serveTCP(l net.Listener, name string) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "accept:", err)
			continue
		}
		go func() {
			defer conn.Close()
			line, err := json.Marshal(Greeting{name, addrPort(conn.RemoteAddr()), addrPort(conn.LocalAddr())})
			if err != nil {
				return
			}
			if _, err := conn.Write(append(line, '\n')); err == nil {
				_, _ = io.Copy(conn, conn) // ends when the client does
			}
		}()
	}
}

func addrPort(a net.Addr) netip.AddrPort {
	var ap netip.AddrPort
	switch a := a.(type) {
	case *net.TCPAddr:
		ap = a.AddrPort()
	case *net.UDPAddr:
		ap = a.AddrPort()
	}
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
}

// wantDestination makes the kernel report the destination address of each datagram.
func wantDestination(network, _ string, conn syscall.RawConn) error {
	var err error
	outer := conn.Control(func(fd uintptr) {
		if strings.HasSuffix(network, "4") {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
		} else {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
		}
	})
	return errors.Join(outer, err)
}

func serveUDP(s *net.UDPConn, name string, port uint16) {
	buf, control := make([]byte, 65536), make([]byte, 256)
	for {
		n, cn, _, from, err := s.ReadMsgUDPAddrPort(buf, control)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error of an earlier answer
		}
		local, back := answerFrom(control[:cn])
		data := buf[:n]
		if size, ok := wanted("want", data); ok {
			data = sized(fmt.Sprintf("got %d", n), size)
		} else if n, ok := wanted("many", data); ok {
			for i := range n {
				if i%10 == 9 {
					time.Sleep(time.Millisecond) // so no queue on the path must hold all
				}
				_, _, _ = s.WriteMsgUDPAddrPort([]byte("one"), back, from)
			}
			continue
		} else if string(data) == "quiet" {
			continue
		} else if strings.HasPrefix(string(data), "get") {
			client := netip.AddrPortFrom(from.Addr().Unmap().WithZone(""), from.Port())
			data, err = json.Marshal(Greeting{name, client, netip.AddrPortFrom(local, port)})
			if err != nil {
				continue
			}
		}
		_, _, _ = s.WriteMsgUDPAddrPort(data, back, from) // the client detects a lost answer
	}
}

// sized returns a datagram with a text, padded with zeros up to size.
func sized(text string, size int) []byte {
	return append([]byte(text), make([]byte, max(0, size-len(text)))...)
}

// wanted reads "want N", a request for a datagram of N bytes that begins with the received length,
// and "many N".
func wanted(word string, data []byte) (size int, ok bool) {
	n, err := fmt.Sscanf(string(data[:min(len(data), 16)]), word+" %d", &size)
	return size, n == 1 && err == nil && size >= 0 && size <= 65000
}

// answerFrom reads the destination of a datagram and returns the control message to answer from it.
func answerFrom(control []byte) (local netip.Addr, back []byte) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return local, nil
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO &&
			len(m.Data) >= unix.SizeofInet4Pktinfo:
			dst := [4]byte(m.Data[8:12]) // struct in_pktinfo: ifindex, spec_dst, addr
			return netip.AddrFrom4(dst), unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: dst})
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO &&
			len(m.Data) >= unix.SizeofInet6Pktinfo:
			dst := [16]byte(m.Data[0:16]) // struct in6_pktinfo: addr, ifindex
			return netip.AddrFrom16(dst), unix.PktInfo6(&unix.Inet6Pktinfo{Addr: dst})
		}
	}
	return local, nil
}
