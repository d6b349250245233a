// Package sctp has the API of github.com/ishidawataru/sctp that agnhost uses, for kernels without
// SCTP. Its associations are those of github.com/pion/sctp, and raw sockets send and receive the
// packets, so that nodes handle them as those of any kernel. File go.work builds agnhost with it.
//
// It differs from a kernel's SCTP: it has IPv4 only, an association has one address at each end,
// and a packet to a port without a listener is not answered, neither by an ABORT nor by an ICMP
// error.
package sctp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/pion/sctp"
	"golang.org/x/net/bpf"
	"golang.org/x/net/ipv4"
)

// network is that of raw sockets with SCTP's number: its name is in /etc/protocols, which many images
// lack.
const network = "ip4:132"

// SCTPAddr is an SCTP endpoint.
type SCTPAddr struct {
	IPAddrs []net.IPAddr // at most one is used; none = all addresses
	Port    int
}

// Network returns "sctp".
func (a *SCTPAddr) Network() string { return "sctp" }

func (a *SCTPAddr) String() string { return net.JoinHostPort(a.ip().String(), strconv.Itoa(a.Port)) }

func (a *SCTPAddr) ip() *net.IPAddr {
	if len(a.IPAddrs) == 0 {
		return &net.IPAddr{IP: net.IPv4zero}
	}
	return &a.IPAddrs[0]
}

// ResolveSCTPAddr returns the first IPv4 address of HOST:PORT.
func ResolveSCTPAddr(_, addr string) (*SCTPAddr, error) {
	a, err := net.ResolveTCPAddr("tcp4", addr)
	if err != nil {
		return nil, err
	}
	resolved := &SCTPAddr{Port: a.Port}
	if a.IP != nil {
		resolved.IPAddrs = []net.IPAddr{{IP: a.IP}}
	}
	return resolved, nil
}

// SCTPConn is an association with one stream.
type SCTPConn struct {
	*sctp.Stream
	association *sctp.Association
	remote      *SCTPAddr
	closed      func()
}

// SCTPRemoteAddr returns the address of the peer.
func (c *SCTPConn) SCTPRemoteAddr(int) (*SCTPAddr, error) { return c.remote, nil }

// Close sends what was written, and shuts the association down. It waits a second for the peer.
func (c *SCTPConn) Close() error {
	if c.closed != nil {
		defer c.closed()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.association.Shutdown(ctx) // also fails if the peer was first
	return c.association.Close()
}

// DialSCTP makes an association with a peer. It returns when both have agreed, and has no limit of
// time. The second address is not used.
func DialSCTP(_ string, _, remote *SCTPAddr) (*SCTPConn, error) {
	raw, err := net.DialIP(network, nil, remote.ip())
	if err != nil {
		return nil, err
	}
	// 32768 to 60999, as Linux
	w := &wire{IPConn: raw, local: uint16(32768 + rand.IntN(28232)), remote: uint16(remote.Port)}
	if err := receiveOnly(raw, w.remote, w.local); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	association, err := sctp.ClientWithOptions(sctp.WithNetConn(w))
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	return newConn(association, remote)
}

func newConn(association *sctp.Association, remote *SCTPAddr) (*SCTPConn, error) {
	stream, err := association.OpenStream(0, sctp.PayloadTypeUnknown)
	if err != nil {
		return nil, errors.Join(err, association.Close())
	}
	return &SCTPConn{Stream: stream, association: association, remote: remote}, nil
}

// SCTPListener accepts associations.
type SCTPListener struct {
	raw      *net.IPConn
	port     uint16
	accepted chan *SCTPConn
	ended    chan struct{} // closed when raw is
	err      error         // why, once ended is closed

	mu    sync.Mutex
	peers map[netip.AddrPort]bool // that have an association, or begin one
}

// ListenSCTP listens on a port of an address, or of all.
func ListenSCTP(_ string, local *SCTPAddr) (*SCTPListener, error) {
	raw, err := net.ListenIP(network, local.ip())
	if err != nil {
		return nil, err
	}
	if err := receiveOnly(raw, 0, uint16(local.Port)); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	l := &SCTPListener{raw: raw, port: uint16(local.Port), accepted: make(chan *SCTPConn), ended: make(chan struct{}),
		peers: map[netip.AddrPort]bool{}}
	go l.listen()
	return l, nil
}

// AcceptSCTP returns the next association.
func (l *SCTPListener) AcceptSCTP() (*SCTPConn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.ended:
		return nil, l.err
	}
}

// Close ends the listener. Its associations stay.
func (l *SCTPListener) Close() error { return l.raw.Close() }

// listen waits for INITs. All other packets of an association are received by its own socket.
func (l *SCTPListener) listen() {
	defer close(l.ended)
	buf := make([]byte, 1<<16)
	for {
		n, _, _, _, err := l.raw.ReadMsgIP(buf, nil) // includes the IPv4 header
		if err != nil {
			l.err = err
			return
		}
		header := int(buf[0]&0xf) * 4
		packet := bytes.Clone(buf[min(header, n):n])
		if !valid(packet) || packet[12] != 1 || binary.BigEndian.Uint16(packet[2:]) != l.port {
			continue
		}
		src, dst := netip.AddrFrom4([4]byte(buf[12:16])), netip.AddrFrom4([4]byte(buf[16:20]))
		peer := netip.AddrPortFrom(src, binary.BigEndian.Uint16(packet))
		l.mu.Lock()
		known := l.peers[peer]
		l.peers[peer] = true
		l.mu.Unlock()
		if !known {
			go l.begin(peer, dst, packet)
		}
	}
}

// begin completes an association of which the peer has sent the INIT.
func (l *SCTPListener) begin(peer netip.AddrPort, local netip.Addr, init []byte) {
	forget := func() {
		l.mu.Lock()
		delete(l.peers, peer)
		l.mu.Unlock()
	}
	remote := &SCTPAddr{IPAddrs: []net.IPAddr{{IP: peer.Addr().AsSlice()}}, Port: int(peer.Port())}
	c, err := l.associate(remote, local, init)
	if err != nil {
		forget()
		return
	}
	c.closed = forget
	select {
	case l.accepted <- c:
	case <-l.ended:
		_ = c.Close()
	}
}

func (l *SCTPListener) associate(remote *SCTPAddr, local netip.Addr, init []byte) (*SCTPConn, error) {
	raw, err := net.DialIP(network, &net.IPAddr{IP: local.AsSlice()}, remote.ip())
	if err != nil {
		return nil, err
	}
	// a client that sends no COOKIE ECHO must not occupy its port forever
	limit := time.AfterFunc(time.Minute, func() { _ = raw.Close() })
	defer limit.Stop()
	w := &wire{IPConn: raw, local: l.port, remote: uint16(remote.Port), first: init}
	if err := receiveOnly(raw, w.remote, w.local); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	association, err := sctp.ServerWithOptions(sctp.WithNetConn(w))
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	return newConn(association, remote)
}

// receiveOnly drops packets with other ports in the kernel; source 0 is any. Otherwise each process
// of a pod would be woken by the packets of all.
func receiveOnly(raw *net.IPConn, source, destination uint16) error {
	program := []bpf.Instruction{
		bpf.LoadMemShift{Off: 0}, // length of the IPv4 header
		bpf.LoadIndirect{Off: 2, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(destination), SkipTrue: 3},
		bpf.LoadIndirect{Off: 0, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(source), SkipTrue: 1},
		bpf.RetConstant{Val: 1 << 16},
		bpf.RetConstant{Val: 0},
	}
	if source == 0 {
		program[3], program[4] = bpf.RetConstant{Val: 1 << 16}, bpf.RetConstant{Val: 0}
	}
	filter, err := bpf.Assemble(program)
	if err != nil {
		return err
	}
	return ipv4.NewPacketConn(raw).SetBPF(filter)
}

// wire is an association's packets without IP header. Package pion/sctp has port 5000 at both ends,
// because it expects a tunnel; here each packet gets the association's ports.
type wire struct {
	*net.IPConn
	local, remote uint16
	first         []byte // read before anything else
}

const pionPort = 5000

// Read returns the next valid packet of the association.
func (w *wire) Read(b []byte) (int, error) {
	for {
		n := copy(b, w.first)
		w.first = nil
		if n == 0 {
			var err error
			if n, _, err = w.IPConn.ReadFromIP(b); err != nil { // removes the IPv4 header
				return 0, err
			}
		}
		if p := b[:n]; valid(p) && binary.BigEndian.Uint16(p) == w.remote && binary.BigEndian.Uint16(p[2:]) == w.local {
			setPorts(p, pionPort, pionPort)
			return n, nil
		}
	}
}

// Write sends a packet. One that the kernel refuses, as after an ICMP error, is lost: SCTP repeats
// it.
func (w *wire) Write(b []byte) (int, error) {
	p := bytes.Clone(b)
	setPorts(p, w.local, w.remote)
	_, err := w.IPConn.Write(p)
	if errors.Is(err, net.ErrClosed) {
		return 0, fmt.Errorf("send SCTP packet: %w", err)
	}
	return len(b), nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum returns the checksum of a packet, RFC 9260, appendix A.
func checksum(p []byte) uint32 {
	sum := crc32.Update(0, castagnoli, p[:8])
	sum = crc32.Update(sum, castagnoli, make([]byte, 4)) // the checksum's own place
	return crc32.Update(sum, castagnoli, p[12:])
}

// valid reports whether a packet has a chunk and the right checksum.
func valid(p []byte) bool {
	return len(p) >= 16 && binary.LittleEndian.Uint32(p[8:]) == checksum(p)
}

func setPorts(p []byte, src, dst uint16) {
	binary.BigEndian.PutUint16(p, src)
	binary.BigEndian.PutUint16(p[2:], dst)
	binary.LittleEndian.PutUint32(p[8:], checksum(p))
}
