package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
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
// replies to the host's requests. Packets from these machines identify them: this node already
// replies to ARP for the address, and forwards packets of unknown connections.
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
	mostNeighbors = 1024 // solicited while addresses move
	mostArriving  = 128  // addresses in one filter: it has 4096 instructions at most
)

func NewNeighbors(log *slog.Logger) *Neighbors {
	return &Neighbors{log: log, wake: signal.New()}
}

// Expect sets what moves here now. No pods are rerouted to load balancer addresses.
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
	a.addresses = a.addresses[:min(len(a.addresses), mostArriving)]
	if old := n.want.Load(); old == nil && len(a.addresses) == 0 || old != nil &&
		slices.Equal(old.addresses, a.addresses) {
		return
	}
	n.want.Store(a)
	n.wake.Notify()
}

// onNetwork reports whether a machine with these addresses reaches another one without a router.
func onNetwork(own []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Run solicits until ctx ends, while something moves here.
func (n *Neighbors) Run(ctx context.Context) {
	for n.wake.Wait(ctx) {
		if a := n.want.Load(); len(a.addresses) > 0 {
			if err := n.ask(ctx, a); err != nil {
				n.log.Warn("resolve neighbours of egress addresses that move here", "error", err)
			}
		}
	}
}

// ask solicits until the addresses that move here change. It begins with the routers, which may be
// unresolved.
func (n *Neighbors) ask(ctx context.Context, a *arriving) error {
	g := &a.gateway
	bridge, err := netlink.LinkByName(g.Bridge)
	if err != nil {
		return fmt.Errorf("link %s: %w", g.Bridge, err)
	}
	asked := map[netip.Addr]bool{}
	question := func(who netip.Addr) error {
		own := ownFor(g.Addresses, who)
		if asked[who] || len(asked) == mostNeighbors || !own.IsValid() {
			return nil
		}
		asked[who] = true
		return send(bridge.Attrs().Index, [][]byte{solicitation(g.MAC, own, who)})
	}
	for _, r := range g.NextHops {
		if err := question(r); err != nil {
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
		if who := sourceIn(frame[:length]); onNetwork(g.Addresses, who) {
			if err := question(who); err != nil {
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
	placeSrc4, placeDst4 = 14 + 12, 14 + 16
	placeSrc6, placeDst6 = 14 + 8, 14 + 24
)

// toAddresses returns a filter for the first bytes of packets to addresses.
func toAddresses(list []netip.Addr) []bpf.Instruction {
	var program []bpf.Instruction
	for _, a := range list {
		kind, at, raw := uint32(unix.ETH_P_IP), uint32(placeDst4), a.AsSlice()
		if a.Is6() {
			kind, at = unix.ETH_P_IPV6, placeDst6
		}
		words := uint8(len(raw) / 4)
		program = append(program, bpf.LoadAbsolute{Off: placeType, Size: 2},
			bpf.JumpIf{Val: kind, SkipFalse: 2*words + 1})
		for i := range words {
			program = append(program, bpf.LoadAbsolute{Off: at + 4*uint32(i), Size: 4},
				bpf.JumpIf{Val: binary.BigEndian.Uint32(raw[4*i:]), SkipFalse: 2*(words-1-i) + 1})
		}
		program = append(program, bpf.RetConstant{Val: 64})
	}
	return append(program, bpf.RetConstant{Val: 0})
}

// sourceIn returns the source address of a packet.
func sourceIn(frame []byte) (a netip.Addr) {
	switch {
	case len(frame) < placeDst4:
	case binary.BigEndian.Uint16(frame[placeType:]) == unix.ETH_P_IP:
		a, _ = netip.AddrFromSlice(frame[placeSrc4:placeDst4])
	case len(frame) >= placeDst6:
		a, _ = netip.AddrFromSlice(frame[placeSrc6:placeDst6])
	}
	return a
}
