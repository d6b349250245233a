// Package packets sends packets from the host or a pod, and watches packets that arrive there: the
// part of `hairpin explain --send` that needs the node's network namespaces. It changes nothing.
package packets

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"hairpin/apply/inside"
	"hairpin/cluster"
	"hairpin/netdev"
	"hairpin/walk/explain"
)

// maxArrivals limits how many packets a watch keeps: a watch waits for one.
const maxArrivals = 100

// Watches are the watches of `hairpin explain --send`, each on a receiving side.
type Watches struct {
	mu   sync.Mutex
	last int
	all  map[int]*packetWatch
}

// Start watches a network namespace (empty: the host's) until End is called, or limit has passed.
// It returns the number of the watch.
func (w *Watches) Start(netns, at string, protocol cluster.Protocol, port uint16,
	limit time.Duration) (int, error) {
	s, err := watchPackets(netns, at, protocol, port)
	if err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[int]*packetWatch{}
	}
	w.last++
	id := w.last
	w.all[id] = s
	time.AfterFunc(limit, func() { _, _ = w.End(id) }) // fails if it has ended already
	return id, nil
}

// Received returns the packets that a watch has received so far.
func (w *Watches) Received(id int) ([]explain.Arrival, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.all[id]; s != nil {
		return s.arrivals(), nil
	}
	return nil, fmt.Errorf("there is no watch %d", id)
}

// End ends a watch and returns the packets that it has received.
func (w *Watches) End(id int) ([]explain.Arrival, error) {
	list, err := w.Received(id)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	s := w.all[id]
	delete(w.all, id)
	w.mu.Unlock()
	if s == nil {
		return list, nil
	}
	return list, s.socket.Close()
}

// packetWatch records packets to a port that arrive in a network namespace.
type packetWatch struct {
	at     string
	socket *os.File

	mu   sync.Mutex
	seen []explain.Arrival
}

func watchPackets(netns, at string, protocol cluster.Protocol, port uint16) (*packetWatch, error) {
	var socket *os.File
	err := inside.Do(netns, func() (err error) {
		socket, err = netdev.Packets(unix.SOCK_DGRAM, 0, packetsTo(protocol, port))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("watch the packets of %s: %w", at, err)
	}
	s := &packetWatch{at: at, socket: socket}
	go s.run()
	return s, nil
}

// run reads until the socket is closed.
func (s *packetWatch) run() {
	buffer := make([]byte, 256)
	for {
		n, err := s.socket.Read(buffer)
		if err != nil {
			return
		}
		a, ok := parseArrival(buffer[:n])
		if !ok {
			continue
		}
		a.At = s.at
		s.mu.Lock()
		if len(s.seen) < maxArrivals && !slices.Contains(s.seen, a) {
			s.seen = append(s.seen, a)
		}
		s.mu.Unlock()
	}
}

func (s *packetWatch) arrivals() []explain.Arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// packetsTo returns a filter for incoming packets of a protocol to a port. IPv4 fragments pass if
// they are first ones, IPv6 packets if they have no extension headers, and so are no fragments.
func packetsTo(protocol cluster.Protocol, port uint16) []bpf.Instruction {
	number := map[cluster.Protocol]uint32{cluster.TCP: unix.IPPROTO_TCP, cluster.UDP: unix.IPPROTO_UDP,
		cluster.SCTP: unix.IPPROTO_SCTP}[protocol]
	// Each jump leads to the last instruction, which rejects the packet, except for two: the one to
	// the IPv6 part, and the one from the end of the IPv4 part to the comparison of the port.
	return []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PACKET_OUTGOING, SkipTrue: 16},
		bpf.LoadAbsolute{Off: 0, Size: 1}, // version
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 6, SkipTrue: 8},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 4, SkipTrue: 12},
		bpf.LoadAbsolute{Off: 9, Size: 1}, // IPv4: protocol
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: number, SkipTrue: 10},
		bpf.LoadAbsolute{Off: 6, Size: 2}, // fragment offset
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x1fff, SkipTrue: 8},
		bpf.LoadMemShift{Off: 0},
		bpf.LoadIndirect{Off: 2, Size: 2},
		bpf.Jump{Skip: 3},
		bpf.LoadAbsolute{Off: 6, Size: 1}, // IPv6: next header
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: number, SkipTrue: 3},
		bpf.LoadAbsolute{Off: 42, Size: 2}, // port
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(port), SkipTrue: 1},
		bpf.RetConstant{Val: 256},
		bpf.RetConstant{Val: 0},
	}
}

// parseArrival parses addresses and ports of a packet that passed the filter.
func parseArrival(b []byte) (a explain.Arrival, ok bool) {
	if len(b) < 20 {
		return a, false
	}
	ports, width := int(b[0]&15)*4, 4
	from, to := 12, 16
	if b[0]>>4 == 6 {
		ports, width, from, to = 40, 16, 8, 24
	}
	if len(b) < ports+4 {
		return a, false
	}
	source, _ := netip.AddrFromSlice(b[from : from+width])
	dest, _ := netip.AddrFromSlice(b[to : to+width])
	number := func(i int) uint16 { return uint16(b[i])<<8 | uint16(b[i+1]) }
	a.From, a.To = netip.AddrPortFrom(source, number(ports)), netip.AddrPortFrom(dest, number(ports+2))
	return a, true
}
