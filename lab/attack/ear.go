package attack

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"hairpin/cluster"
	"hairpin/lab"
)

// Send sends frames from a link of a place. It needs the capability NET_RAW to open a packet
// socket.
func Send(at lab.Place, link string, frames ...[]byte) error {
	s, err := PacketSocket(at, link, 0)
	if err != nil {
		return err
	}
	defer s.Close()
	for _, f := range frames {
		if _, err := s.Write(f); err != nil {
			return fmt.Errorf("%s: send a frame by %s: %w", at.Name(), link, err)
		}
	}
	return nil
}

// MAC returns the MAC of a link.
func MAC(at lab.Place, link string) (mac cluster.MAC, err error) {
	err = lab.Do(at, func() error {
		i, err := net.InterfaceByName(link)
		if err == nil {
			copy(mac[:], i.HardwareAddr)
		}
		return err
	})
	return mac, err
}

// PacketSocket returns a socket bound to a link; with protocol 0 it receives nothing.
func PacketSocket(at lab.Place, link string, protocol uint16) (f *os.File, err error) {
	err = lab.Do(at, func() error {
		i, err := net.InterfaceByName(link)
		if err != nil {
			return fmt.Errorf("link %s: %w", link, err)
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("packet socket: %w", err)
		}
		f = os.NewFile(uintptr(fd), "packets of "+link)
		p := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, protocol))
		if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: p, Ifindex: i.Index}); err != nil {
			_ = f.Close()
			return fmt.Errorf("packet socket on %s: %w", link, err)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at.Name(), err)
	}
	return f, nil
}

// Ear receives packets in a place: frames of a link, or datagrams to a port.
type Ear struct {
	heard chan []byte
	close func() error
	Port  uint16 // port of the UDP socket
}

// Listen receives all frames that arrive at a link, whatever the machine does with them.
func Listen(at lab.Place, link string) (*Ear, error) {
	f, err := PacketSocket(at, link, unix.ETH_P_ALL)
	if err != nil {
		return nil, err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	return newEar(f.Close, 0, func(b []byte) (n int, own bool, err error) {
		outer := raw.Read(func(fd uintptr) bool {
			var from unix.Sockaddr
			n, from, err = unix.Recvfrom(int(fd), b, 0)
			if l, ok := from.(*unix.SockaddrLinklayer); ok {
				own = l.Pkttype == unix.PACKET_OUTGOING
			}
			return err != unix.EAGAIN
		})
		if err == nil {
			err = outer
		}
		return n, own, err
	}), nil
}

// ListenUDP receives the datagrams that a program of the place gets at a port; 0 is a free one.
func ListenUDP(at lab.Place, port uint16) (*Ear, error) {
	var conn *net.UDPConn
	err := lab.Do(at, func() (err error) {
		conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: int(port)})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at.Name(), err)
	}
	return newEar(conn.Close, uint16(conn.LocalAddr().(*net.UDPAddr).Port), func(b []byte) (int, bool, error) {
		n, from, err := conn.ReadFromUDPAddrPort(b)
		if err == nil { // what a program sees: the sender and the payload
			n += copy(b[n:], fmt.Appendf(nil, " from %s", from.Addr().Unmap()))
		}
		return n, false, err
	}), nil
}

func newEar(end func() error, port uint16, read func([]byte) (n int, own bool, err error)) *Ear {
	e := &Ear{heard: make(chan []byte, 4096), close: end, Port: port}
	go func() {
		defer close(e.heard)
		for b := make([]byte, 65536); ; {
			n, own, err := read(b)
			if err != nil {
				return
			}
			if own {
				continue
			}
			select {
			case e.heard <- bytes.Clone(b[:n]):
			default: // the channel is full
			}
		}
	}()
	return e
}

// Close stops receiving.
func (e *Ear) Close() { _ = e.close() }

// Hear waits for a packet that fits, and returns nil if none arrives within limit.
func (e *Ear) Hear(ctx context.Context, limit time.Duration, fits func([]byte) bool) []byte {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		select {
		case <-ctx.Done():
			return nil
		case b, ok := <-e.heard:
			if !ok {
				return nil
			}
			if fits(b) {
				return b
			}
		}
	}
}
