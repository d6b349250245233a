package wire

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
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
	tell func([]Claim)
	log  *slog.Logger
	drop func() // counts unchecked claims
	Own  atomic.Pointer[Own]
	wake signal.Signal
}

// Own is what to listen for: nothing while there are no addresses.
type Own struct {
	Bridge    string
	MAC       cluster.MAC
	Addresses map[netip.Addr]bool
}

// NewListener makes a Listener that passes claims to tell, at most MostClaims at once.
func NewListener(tell func([]Claim), log *slog.Logger, drop func()) *Listener {
	return &Listener{tell: tell, log: log, drop: drop, wake: signal.New()}
}

// Expect sets what to listen for.
func (l *Listener) Expect(o *Own) {
	l.Own.Store(o)
	l.wake.Notify()
}

// listenAgain is the pause before a broken socket is opened again, and the interval at which an
// open socket checks whether it is still needed.
const listenAgain = time.Second

// Run listens until ctx ends, while there are addresses to listen for.
func (l *Listener) Run(ctx context.Context) {
	for warned := false; ctx.Err() == nil; {
		o := l.Own.Load()
		if o == nil || len(o.Addresses) == 0 {
			l.wake.Wait(ctx)
			continue
		}
		err := l.listen(ctx, o.Bridge)
		if err == nil {
			continue
		}
		if !warned {
			l.log.Warn("listen for conflicting claims to egress addresses", "error", err)
			warned = true
		}
		retry.Sleep(ctx, listenAgain)
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
		o := l.Own.Load()
		if o == nil || len(o.Addresses) == 0 || o.Bridge != bridge {
			return nil
		}
		wait := waiting.hand(time.Now(), l.tell)
		n, err := read(f, frame, min(wait, listenAgain))
		if err != nil {
			return fmt.Errorf("%s: %w", bridge, err)
		}
		if c, ok := claimIn(frame[:n]); ok && c.MAC != o.MAC && l.Own.Load().Addresses[c.Address] {
			waiting.add(c)
		}
	}
	return nil
}

// Any machine on the network can send claims as fast as it likes. These limit how often the agent
// is woken for claims, and their number.
const (
	claimsEvery = 50 * time.Millisecond
	MostClaims  = 256
)

// claimBatch has claims that wait to be passed to the agent.
type claimBatch struct {
	list []Claim
	next time.Time // when they may be passed on
	drop func()
}

func (w *claimBatch) add(c Claim) {
	if len(w.list) >= MostClaims || slices.Contains(w.list, c) {
		w.drop()
		return
	}
	w.list = append(w.list, c)
}

// hand passes waiting claims to the agent, unless it did so a moment ago. It returns when to call
// it again.
func (w *claimBatch) hand(now time.Time, tell func([]Claim)) time.Duration {
	switch {
	case len(w.list) == 0:
		return listenAgain
	case now.Before(w.next):
		return w.next.Sub(now)
	}
	list := w.list
	w.list, w.next = nil, now.Add(claimsEvery)
	tell(list)
	return listenAgain
}

// Offsets in frames: Ethernet, then ARP, or IPv6 with a neighbor advertisement.
const (
	placeType   = 12
	placeARP    = 14
	placeNext   = 14 + 6
	placeICMP   = 14 + 40
	placeTarget = placeICMP + 8
)

// neighborFilter returns a filter for ARP and neighbor advertisements.
func neighborFilter() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: placeType, Size: 2},
		bpf.JumpIf{Val: unix.ETH_P_ARP, SkipTrue: 5},
		bpf.JumpIf{Val: unix.ETH_P_IPV6, SkipFalse: 5},
		bpf.LoadAbsolute{Off: placeNext, Size: 1},
		bpf.JumpIf{Val: unix.IPPROTO_ICMPV6, SkipFalse: 3},
		bpf.LoadAbsolute{Off: placeICMP, Size: 1},
		bpf.JumpIf{Val: advertisement, SkipFalse: 1},
		bpf.RetConstant{Val: 256},
		bpf.RetConstant{Val: 0},
	}
}

// claimIn parses a claim to an address: the sender of an ARP packet, or of a neighbor
// advertisement. An ARP probe has no sender address.
func claimIn(frame []byte) (Claim, bool) {
	var c Claim
	if len(frame) < placeARP {
		return c, false
	}
	var ok bool
	switch binary.BigEndian.Uint16(frame[placeType:]) {
	case unix.ETH_P_ARP:
		if len(frame) < placeARP+18 || binary.BigEndian.Uint16(frame[placeARP+2:]) != unix.ETH_P_IP {
			return c, false
		}
		copy(c.MAC[:], frame[placeARP+8:])
		c.Address, ok = netip.AddrFromSlice(frame[placeARP+14 : placeARP+18])
		c.Solicited = frame[placeARP+7] == reply && frame[0]&1 == 0
	case unix.ETH_P_IPV6:
		if len(frame) < placeTarget+16 {
			return c, false
		}
		copy(c.MAC[:], frame[6:])
		if len(frame) >= placeTarget+24 && frame[placeTarget+16] == advertisementOption {
			copy(c.MAC[:], frame[placeTarget+18:])
		}
		c.Address, ok = netip.AddrFromSlice(frame[placeTarget : placeTarget+16])
		c.Solicited = frame[placeICMP+4]&(solicited>>24) != 0
	}
	return c, ok
}
