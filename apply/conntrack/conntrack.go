// Package conntrack deletes stale entries from the kernel's conntrack: those of UDP connections to
// endpoints that no longer serve, in all zones of the gateway bridge and of OVN on the kernel
// datapath, and in the host's own on the userspace datapath; and those that the host, or OVN on the
// kernel datapath, translated to an egress address that another node has by now.
//
// Open vSwitch's own conntrack, which the userspace datapath has, is never listed. Entries of UDP
// connections to endpoints that stopped serving while the Target was there are deleted by what they
// were translated from and to.
package conntrack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/datapath/conn"
	"hairpin/retry"
	"hairpin/signal"
)

// Config is what a Target needs.
type Config struct {
	// Settled waits until OVN's changes are in the switch: before, a packet could make the entry
	// again. May be nil.
	Settled func(context.Context) error
	// Switch gives ovs-vswitchd a command of ovs-appctl. It may be nil: then the userspace
	// datapath's entries stay.
	Switch func(ctx context.Context, method string, params ...string) (string, error)
}

// Target is the node's connections.
type Target struct {
	cfg     Config
	changed signal.Signal
}

// New makes a Target.
func New(cfg Config) *Target { return &Target{cfg: cfg, changed: signal.New()} }

// Changed tells that it is worth to look again, some time after entries were deleted.
func (t *Target) Changed() <-chan struct{} { return t.changed.C() }

// settle is how long Apply waits for OVN; afterwards it deletes all the same, and looks again.
const settle = 2 * time.Second

// again is when to look whether a packet, by a flow cached in the datapath, made an entry once
// more.
const again = time.Second

// Read returns the connections that are translated: as much as there are translations, however many
// connections have them.
func (t *Target) Read(context.Context) (conn.State, error) {
	s := conn.State{}
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		if err := each(family, func(e *entry) error {
			if p, ok := pairOf(e); ok {
				s.Add(p)
			}
			if a, ok := sourceOf(e); ok {
				s.AddSource(a)
			}
			return nil
		}); err != nil {
			return s, fmt.Errorf("the kernel's connections: %w", err)
		}
	}
	return s, nil
}

// Apply deletes entries.
func (t *Target) Apply(ctx context.Context, d conn.Delta) error {
	// Neither the host's rules nor OVN's make such an entry again: no pod is led here any more.
	return errors.Join(end(d.Left, inet, seenAs), endStrays(ctx, d.Strays), t.endUDP(ctx, d))
}

// underway is how long an answer to what was sent the former way may take.
const underway = 250 * time.Millisecond

// endStrays deletes entries of the host's own zone: a packet's next one is made by the way that it
// takes now. An answer that was underway then may make one that is turned around, to which the
// client's packets belong: it is deleted, too.
func endStrays(ctx context.Context, sources map[netip.Prefix]netip.Addr) error {
	if len(sources) == 0 {
		return nil
	}
	first := endOnce(sources)
	retry.Sleep(ctx, underway)
	return errors.Join(first, endOnce(sources))
}

func endOnce(sources map[netip.Prefix]netip.Addr) error {
	ranges := slices.Collect(maps.Keys(sources))
	return end(ranges, func(p netip.Prefix) netlink.InetFamily { return inet(p.Addr()) },
		func(e *entry) (netip.Prefix, bool) {
			i := slices.IndexFunc(ranges,
				func(p netip.Prefix) bool {
					return p.Contains(e.forward.dst.Addr()) ||
						p.Contains(e.forward.src.Addr())
				})
			if i < 0 || e.zone != 0 || e.forward.protocol != unix.IPPROTO_UDP ||
				e.reverse.dst.Addr() == sources[ranges[i]] {
				return netip.Prefix{}, false
			}
			return ranges[i], true
		})
}

func (t *Target) endUDP(ctx context.Context, d conn.Delta) error {
	if len(d.Dead)+len(d.Back) == 0 {
		return nil
	}
	inSwitch := d
	if len(d.Dead) == 0 { // what is back has no flow that could make an entry again
		found, err := t.Read(ctx)
		if err != nil {
			return err
		}
		if len(conn.Diff(conn.State{UDP: d.Back}, found).Dead) == 0 {
			return t.endInSwitch(ctx, inSwitch)
		}
	}
	if t.cfg.Settled != nil {
		wait, cancel := context.WithTimeout(ctx, settle)
		_ = t.cfg.Settled(wait) // what comes too late is found when we look again
		cancel()
	}
	defer time.AfterFunc(again, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settle)
		defer cancel()
		// By address and endpoint: meanwhile the address may have another endpoint. Apply has
		// reported errors.
		_ = t.endInSwitch(ctx, conn.Delta{Dead: inSwitch.Dead})
		t.changed.Notify()
	})
	if len(d.Back) > 0 {
		found, err := t.Read(ctx)
		if err != nil {
			return err
		}
		d.Dead = append(slices.Clone(d.Dead), conn.Diff(conn.State{UDP: d.Back}, found).Dead...)
	}
	family := func(a netip.AddrPort) netlink.InetFamily { return inet(a.Addr()) }
	return errors.Join(end(d.Dead, func(p conn.Pair) netlink.InetFamily { return family(p.VIP) }, pairOf),
		end(d.Unserved, family, untranslated), t.endInSwitch(ctx, inSwitch))
}
