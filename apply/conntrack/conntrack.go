// Package conntrack ends UDP connections to endpoints that no longer serve, in every conntrack of the node: Open vSwitch's
// (all zones of the gateway bridge and of OVN) and the kernel's, which are one and the same on the kernel datapath.
package conntrack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/apply"
	"hairpin/datapath/conn"
)

// Config is what a Target needs.
type Config struct {
	// Own tells whether Open vSwitch has a conntrack of its own: the userspace datapath does. List gives its entries, a line
	// each as `ovs-appctl dpctl/dump-conntrack` has them; End deletes one, in the words of dpctl/flush-conntrack.
	//
	// List is called only when an endpoint is gone, not by Read: 3.5.0 crashes in a listing of entries that it does not like.
	Own  func(context.Context) (bool, error)
	List func(context.Context) (string, error)
	End  func(ctx context.Context, entry ...string) error
	// Settled waits until OVN's changes are in the switch: before, a packet could make the entry again. May be nil.
	Settled func(context.Context) error
}

// Target is the node's connections.
type Target struct {
	cfg     Config
	changed chan struct{}
}

// New makes a Target.
func New(cfg Config) *Target { return &Target{cfg: cfg, changed: make(chan struct{}, 1)} }

// Changed tells that it is worth to look again, some time after entries were deleted.
func (t *Target) Changed() <-chan struct{} { return t.changed }

// settle is how long Apply waits for OVN; afterwards it deletes all the same, and looks again.
const settle = 2 * time.Second

// again is when to look whether a packet, by a flow cached in the datapath, made an entry once more.
const again = time.Second

// Read gives the UDP connections that are translated, as far as the kernel has them.
func (t *Target) Read(ctx context.Context) (conn.State, error) {
	s := conn.State{}
	if err := t.inKernel(s); err != nil {
		return nil, err
	}
	switch own, err := t.cfg.Own(ctx); {
	case err != nil:
		return nil, fmt.Errorf("Open vSwitch's connections: %w", err)
	case own:
		return s, apply.ErrUnread
	}
	return s, nil
}

// inKernel adds the kernel's connections.
func (t *Target) inKernel(s conn.State) error {
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		flows, err := list(family)
		if err != nil {
			return fmt.Errorf("the kernel's connections: %w", err)
		}
		for _, f := range flows {
			if p, ok := pairOf(f); ok {
				s.Add(p)
			}
		}
	}
	return nil
}

// inSwitch gives the connections of Open vSwitch's own conntrack.
func (t *Target) inSwitch(ctx context.Context) ([]entry, error) {
	own, err := t.cfg.Own(ctx)
	if err != nil || !own {
		return nil, err
	}
	text, err := t.cfg.List(ctx)
	return readDump(text), err
}

// Apply deletes entries.
func (t *Target) Apply(ctx context.Context, d conn.Delta) error {
	if d.Empty() {
		return nil
	}
	if t.cfg.Settled != nil {
		wait, cancel := context.WithTimeout(ctx, settle)
		_ = t.cfg.Settled(wait) // what comes too late is found when we look again
		cancel()
	}
	defer time.AfterFunc(again, func() {
		select {
		case t.changed <- struct{}{}:
		default: // told already
		}
	})
	switched, err := t.inSwitch(ctx)
	if err != nil {
		return fmt.Errorf("Open vSwitch's connections: %w", err)
	}
	if len(d.Back) > 0 {
		found := conn.State{}
		if err := t.inKernel(found); err != nil {
			return err
		}
		for _, e := range switched {
			found.Add(e.Pair)
		}
		d.Dead = append(slices.Clone(d.Dead), conn.Diff(d.Back, found).Dead...)
	}
	errs := []error{t.endInSwitch(ctx, switched, d.Dead)}
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		if err := end(family, d.Dead); err != nil {
			errs = append(errs, fmt.Errorf("end the kernel's connections: %w", err))
		}
	}
	return errors.Join(errs...)
}

// endInSwitch deletes those entries of Open vSwitch's own conntrack that are of dead pairs.
func (t *Target) endInSwitch(ctx context.Context, switched []entry, dead []conn.Pair) error {
	gone := map[conn.Pair]bool{}
	for _, p := range dead {
		gone[p] = true
	}
	var errs []error
	for _, e := range switched {
		if !gone[e.Pair] {
			continue
		}
		// That there is none any more is what we want.
		if err := t.cfg.End(ctx, e.words()...); err != nil && !strings.Contains(err.Error(), "No such") {
			errs = append(errs, fmt.Errorf("end the connection of %s to %s: %w", e.client, e.To, err))
		}
	}
	return errors.Join(errs...)
}
