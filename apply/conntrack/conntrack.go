// Package conntrack deletes stale entries from the kernel's conntrack, in the host's own zone and,
// with the kernel datapath, in those of the gateway bridge and of OVN:
//   - of UDP connections to endpoints that no longer serve,
//   - of connections translated to an egress address that another node has now,
//   - of UDP connections from the host with the source address of an old path: in its zone only.
//
// The package never lists the conntrack of the userspace datapath. If an endpoint stops serving
// during the Target's life, the package deletes its UDP entries there by their original and
// translated destination.
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
	// Settled waits until OVN's changes are in the switch: before, packets could recreate entries.
	// May be nil.
	Settled func(context.Context) error
	// Switch sends ovs-vswitchd a command of ovs-appctl. If it is nil, entries of the userspace
	// datapath stay.
	Switch func(ctx context.Context, method string, params ...string) (string, error)
}

// Target is the node's connections.
type Target struct {
	cfg     Config
	changed signal.Signal
}

// New returns a Target.
func New(cfg Config) *Target { return &Target{cfg: cfg, changed: signal.New()} }

// Changed signals that a new Read is useful, some time after entries were deleted.
func (t *Target) Changed() <-chan struct{} { return t.changed.C() }

// settleLimit is how long Apply waits for OVN. After that it deletes anyway, and checks again
// later.
const settleLimit = 2 * time.Second

// recheckDelay is the delay of the check for entries that a packet recreated by a cached flow.
const recheckDelay = time.Second

// Read returns the translations of connections. The result grows with the number of translations,
// not of connections.
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
	// Neither the host nor OVN recreates such an entry: no pod's packets are routed here any more.
	return errors.Join(deleteEntries(d.LeftEgress, inet, seenAs), deleteWrongSource(ctx, d.WrongSource),
		t.deleteUDP(ctx, d))
}

// replyTime is how long a reply to a packet sent on the previous path may take.
const replyTime = 250 * time.Millisecond

// deleteWrongSource deletes entries in the host's own zone, so that the next packet makes one for
// its current path. A reply in flight may then make a reversed entry, which the client's packets
// match: it is deleted, too.
func deleteWrongSource(ctx context.Context, sources map[netip.Prefix]netip.Addr) error {
	if len(sources) == 0 {
		return nil
	}
	first := deleteWrongSourceOnce(sources)
	retry.Sleep(ctx, replyTime)
	return errors.Join(first, deleteWrongSourceOnce(sources))
}

func deleteWrongSourceOnce(sources map[netip.Prefix]netip.Addr) error {
	ranges := slices.Collect(maps.Keys(sources))
	return deleteEntries(ranges, func(p netip.Prefix) netlink.InetFamily { return inet(p.Addr()) },
		func(e *entry) (netip.Prefix, bool) {
			i := slices.IndexFunc(ranges,
				func(p netip.Prefix) bool {
					return p.Contains(e.forward.dst.Addr()) ||
						p.Contains(e.forward.src.Addr()) // a reversed entry
				})
			if i < 0 || e.zone != 0 || e.forward.protocol != unix.IPPROTO_UDP ||
				e.reverse.dst.Addr() == sources[ranges[i]] {
				return netip.Prefix{}, false
			}
			return ranges[i], true
		})
}

// deleteUDP deletes UDP entries. It first waits for OVN, unless there are only addresses of Revived
// and the kernel has no stale entries of these.
func (t *Target) deleteUDP(ctx context.Context, d conn.Delta) error {
	if len(d.Dead)+len(d.Revived) == 0 {
		return nil
	}
	inSwitch := d // d.Dead gets the kernel's entries of Revived
	if len(d.Dead) == 0 {
		// An endpoint that serves again has no flow that could recreate a stale entry.
		found, err := t.Read(ctx)
		if err != nil {
			return err
		}
		if len(conn.Diff(conn.State{UDP: d.Revived}, found).Dead) == 0 {
			return t.deleteInSwitch(ctx, inSwitch)
		}
	}
	if t.cfg.Settled != nil {
		wait, cancel := context.WithTimeout(ctx, settleLimit)
		_ = t.cfg.Settled(wait) // the later check finds late entries
		cancel()
	}
	defer time.AfterFunc(recheckDelay, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleLimit)
		defer cancel()
		// Only by address and endpoint: by then, an address of Unserved or Revived may have entries
		// of a new endpoint. Apply has reported errors.
		_ = t.deleteInSwitch(ctx, conn.Delta{Dead: inSwitch.Dead})
		t.changed.Notify()
	})
	if len(d.Revived) > 0 {
		found, err := t.Read(ctx)
		if err != nil {
			return err
		}
		d.Dead = append(slices.Clone(d.Dead), conn.Diff(conn.State{UDP: d.Revived}, found).Dead...)
	}
	family := func(a netip.AddrPort) netlink.InetFamily { return inet(a.Addr()) }
	return errors.Join(deleteEntries(d.Dead, func(p conn.Pair) netlink.InetFamily { return family(p.VIP) }, pairOf),
		deleteEntries(d.Unserved, family, untranslated), t.deleteInSwitch(ctx, inSwitch))
}
