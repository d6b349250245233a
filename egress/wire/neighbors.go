package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"hairpin/cluster"
	"hairpin/netdev"
	"hairpin/signal"
)

// Neighbors resolves machines on the gateway bridge's network that pods talk to with an address
// that moves here, before pods are rerouted. OVN keeps four packets for an unresolved neighbor and
// drops the others, so connections would wait a second for a repeated SYN. OVN also learns from
// replies to the host's requests.
//
// The machines are the senders of packets to the address. This node receives these packets already,
// because it replies to ARP for the address.
type Neighbors struct {
	log  *slog.Logger
	want atomic.Pointer[arriving]
	wake signal.Signal
}

// arriving has the addresses that move here, possibly none.
type arriving struct {
	gateway   cluster.Gateway
	addresses []netip.Addr // sorted
}

const (
	maxNeighbors = 1024 // solicited while addresses move
	maxArriving  = 128  // addresses in one filter: it has 4096 instructions at most
)

func NewNeighbors(log *slog.Logger) *Neighbors {
	return &Neighbors{log: log, wake: signal.New()}
}

// Expect sets which addresses move to this node now. Load balancer addresses are omitted: no pods
// are rerouted to them.
func (n *Neighbors) Expect(g cluster.Gateway, node string, list []*cluster.EgressIP) {
	a := &arriving{gateway: g}
	for _, e := range list {
		for _, m := range e.Moving {
			if m.To == node && !e.OnlyAnnounced() && g.Uplink != "" && onNetwork(g.Addresses, m.Address) {
				a.addresses = append(a.addresses, m.Address)
			}
		}
	}
	slices.SortFunc(a.addresses, netip.Addr.Compare)
	a.addresses = slices.Compact(a.addresses)
	a.addresses = a.addresses[:min(len(a.addresses), maxArriving)]
	if old := n.want.Load(); old == nil && len(a.addresses) == 0 || reflect.DeepEqual(old, a) {
		return
	}
	n.want.Store(a)
	n.wake.Notify()
}

// onNetwork reports whether a machine with these addresses reaches another one without a router.
func onNetwork(own []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Run solicits until ctx ends, while addresses move here.
func (n *Neighbors) Run(ctx context.Context) {
	for n.wake.Wait(ctx) {
		if a := n.want.Load(); len(a.addresses) > 0 {
			if err := n.solicit(ctx, a); err != nil {
				n.log.Warn("resolve neighbors of egress addresses that move here", "error", err)
			}
		}
	}
}

// solicit sends solicitations until the addresses that move here change. It begins with the
// routers, which may be unresolved.
func (n *Neighbors) solicit(ctx context.Context, a *arriving) error {
	g := &a.gateway
	bridge, err := netlink.LinkByName(g.Bridge)
	if err != nil {
		return fmt.Errorf("link %s: %w", g.Bridge, err)
	}
	solicited := map[netip.Addr]bool{}
	solicitOnce := func(neighbor netip.Addr) error {
		own := ownFor(g.Addresses, neighbor)
		if solicited[neighbor] || len(solicited) == maxNeighbors || !own.IsValid() {
			return nil
		}
		solicited[neighbor] = true
		return send(bridge.Attrs().Index, [][]byte{solicitation(g.MAC, own, neighbor)})
	}
	for _, r := range g.NextHops {
		if err := solicitOnce(r); err != nil {
			return err
		}
	}
	f, err := listenTo(g.Uplink, toAddresses(a.addresses))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for frame := make([]byte, 64); ctx.Err() == nil && n.want.Load() == a; {
		length, err := read(f, frame, listenAgain)
		if err != nil {
			return fmt.Errorf("%s: %w", g.Uplink, err)
		}
		if neighbor := sourceAddress(frame[:length]); onNetwork(g.Addresses, neighbor) {
			if err := solicitOnce(neighbor); err != nil {
				return err
			}
		}
	}
	return nil
}

// listenTo returns a socket that receives the frames on a link that pass a filter.
func listenTo(name string, filter []bpf.Instruction) (*os.File, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", name, err)
	}
	return netdev.Packets(unix.SOCK_RAW, link.Attrs().Index, filter)
}

// read waits for a frame, and returns its length; 0 if none came in time.
func read(f *os.File, frame []byte, wait time.Duration) (int, error) {
	if err := f.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return 0, fmt.Errorf("packet socket: %w", err)
	}
	n, err := f.Read(frame)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("packet socket: %w", err)
	}
	return n, nil
}

// Offsets in frames: Ethernet, then IPv4 or IPv6.
const (
	offsetSrc4, offsetDst4 = 14 + 12, 14 + 16
	offsetSrc6, offsetDst6 = 14 + 8, 14 + 24
)

// toAddresses returns a filter for the first bytes of packets to addresses. Each address has one
// part: it compares the EtherType and each 32-bit word of the destination, two instructions for
// each comparison, and accepts the packet. A comparison that fails jumps to the next part.
func toAddresses(list []netip.Addr) []bpf.Instruction {
	var program []bpf.Instruction
	for _, a := range list {
		kind, at, raw := uint32(unix.ETH_P_IP), uint32(offsetDst4), a.AsSlice()
		if a.Is6() {
			kind, at = unix.ETH_P_IPV6, offsetDst6
		}
		words := uint8(len(raw) / 4)
		program = append(program, bpf.LoadAbsolute{Off: offsetType, Size: 2},
			bpf.JumpIf{Val: kind, SkipFalse: 2*words + 1})
		for i := range words {
			program = append(program, bpf.LoadAbsolute{Off: at + 4*uint32(i), Size: 4},
				bpf.JumpIf{Val: binary.BigEndian.Uint32(raw[4*i:]), SkipFalse: 2*(words-1-i) + 1})
		}
		program = append(program, bpf.RetConstant{Val: 64})
	}
	return append(program, bpf.RetConstant{Val: 0})
}

// sourceAddress returns the source address of a packet.
func sourceAddress(frame []byte) (a netip.Addr) {
	switch {
	case len(frame) < offsetDst4:
	case binary.BigEndian.Uint16(frame[offsetType:]) == unix.ETH_P_IP:
		a, _ = netip.AddrFromSlice(frame[offsetSrc4:offsetDst4])
	case len(frame) >= offsetDst6:
		a, _ = netip.AddrFromSlice(frame[offsetSrc6:offsetDst6])
	}
	return a
}
