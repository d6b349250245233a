package wire

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"hairpin/cluster"
	"hairpin/retry"
	"hairpin/signal"
)

// Listener detects other machines on the gateway bridge that claim an egress address of this node.
type Listener struct {
	report   func([]Claim)
	log      *slog.Logger
	drop     func() // counts a claim that is not passed on
	watching atomic.Pointer[Watched]
	wake     signal.Signal
}

// Watched is the bridge and the addresses to listen for: nothing while there are no addresses.
type Watched struct {
	Bridge    string
	MAC       cluster.MAC
	Addresses map[netip.Addr]bool
}

// NewListener makes a Listener that passes claims to report, at most MaxClaims at once. It calls
// drop for each claim that it does not pass on.
func NewListener(report func([]Claim), log *slog.Logger, drop func()) *Listener {
	return &Listener{report: report, log: log, drop: drop, wake: signal.New()}
}

// Expect sets what to listen for. The same again changes nothing.
func (l *Listener) Expect(w *Watched) {
	old := l.watching.Load()
	if old != nil && old.Bridge == w.Bridge && old.MAC == w.MAC && maps.Equal(old.Addresses, w.Addresses) {
		return
	}
	l.watching.Store(w)
	l.wake.Notify()
}

// listenAgain is the pause before a broken socket is opened again, and the interval at which an
// open socket checks whether it is still needed.
const listenAgain = time.Second

// Run listens until ctx ends, while there are addresses to listen for.
func (l *Listener) Run(ctx context.Context) {
	var last retry.LastError
	for ctx.Err() == nil {
		w := l.watching.Load()
		if w == nil || len(w.Addresses) == 0 {
			l.wake.Wait(ctx)
			continue
		}
		err := l.listen(ctx, w.Bridge)
		last.Warn(l.log, "listen for conflicting claims to egress addresses", err)
		if err != nil {
			retry.Sleep(ctx, listenAgain)
		}
	}
}

// listen listens on a link until there are no more addresses to listen for.
func (l *Listener) listen(ctx context.Context, bridge string) error {
	f, err := listenTo(bridge, neighborFilter())
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	waiting := claimBatch{drop: l.drop}
	for frame := make([]byte, 256); ctx.Err() == nil; {
		w := l.watching.Load()
		if len(w.Addresses) == 0 || w.Bridge != bridge {
			return nil
		}
		wait := waiting.flush(time.Now(), l.report)
		n, err := read(f, frame, min(wait, listenAgain))
		if err != nil {
			return fmt.Errorf("%s: %w", bridge, err)
		}
		if c, ok := parseClaim(frame[:n]); ok && c.MAC != w.MAC && l.watching.Load().Addresses[c.Address] {
			waiting.add(c)
		}
	}
	return nil
}

// Any machine on the network can send claims as fast as it likes. These limit how often the agent
// is woken for claims, and their number.
const (
	claimsEvery = 50 * time.Millisecond
	MaxClaims   = 256
)

// claimBatch has claims that wait to be passed to the agent.
type claimBatch struct {
	list []Claim
	next time.Time // when they may be passed on
	drop func()
}

func (w *claimBatch) add(c Claim) {
	if len(w.list) >= MaxClaims || slices.Contains(w.list, c) {
		w.drop()
		return
	}
	w.list = append(w.list, c)
}

// flush passes waiting claims to the agent, unless it did so a moment ago. It returns when to call
// it again.
func (w *claimBatch) flush(now time.Time, report func([]Claim)) time.Duration {
	switch {
	case len(w.list) == 0:
		return listenAgain
	case now.Before(w.next):
		return w.next.Sub(now)
	}
	list := w.list
	w.list, w.next = nil, now.Add(claimsEvery)
	report(list)
	return listenAgain
}

// Offsets in frames: Ethernet, then ARP, or IPv6 with a neighbor advertisement.
const (
	offsetType   = 12
	offsetARP    = 14
	offsetNext   = 14 + 6
	offsetICMP   = 14 + 40
	offsetTarget = offsetICMP + 8
)

// neighborFilter returns a filter for ARP and neighbor advertisements.
func neighborFilter() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetType, Size: 2},
		bpf.JumpIf{Val: unix.ETH_P_ARP, SkipTrue: 5},
		bpf.JumpIf{Val: unix.ETH_P_IPV6, SkipFalse: 5},
		bpf.LoadAbsolute{Off: offsetNext, Size: 1},
		bpf.JumpIf{Val: unix.IPPROTO_ICMPV6, SkipFalse: 3},
		bpf.LoadAbsolute{Off: offsetICMP, Size: 1},
		bpf.JumpIf{Val: advertisement, SkipFalse: 1},
		bpf.RetConstant{Val: 256},
		bpf.RetConstant{Val: 0},
	}
}

// parseClaim parses a claim to an address: the sender of an ARP packet, or of a neighbor
// advertisement. An ARP probe has no sender address.
func parseClaim(frame []byte) (Claim, bool) {
	var c Claim
	if len(frame) < offsetARP {
		return c, false
	}
	var ok bool
	switch binary.BigEndian.Uint16(frame[offsetType:]) {
	case unix.ETH_P_ARP:
		if len(frame) < offsetARP+18 || binary.BigEndian.Uint16(frame[offsetARP+2:]) != unix.ETH_P_IP {
			return c, false
		}
		copy(c.MAC[:], frame[offsetARP+8:])
		c.Address, ok = netip.AddrFromSlice(frame[offsetARP+14 : offsetARP+18])
		c.Solicited = frame[offsetARP+7] == reply && frame[0]&1 == 0
	case unix.ETH_P_IPV6:
		if len(frame) < offsetTarget+16 {
			return c, false
		}
		copy(c.MAC[:], frame[6:])
		if len(frame) >= offsetTarget+24 && frame[offsetTarget+16] == advertisementOption {
			copy(c.MAC[:], frame[offsetTarget+18:])
		}
		c.Address, ok = netip.AddrFromSlice(frame[offsetTarget : offsetTarget+16])
		c.Solicited = frame[offsetICMP+4]&(solicited>>24) != 0
	}
	return c, ok
}
