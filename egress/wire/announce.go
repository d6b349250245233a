package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"

	"hairpin/cluster"
	"hairpin/datapath/host"
	"hairpin/retry"
)

// New egress addresses of this node are announced at once and then again, each time after twice as
// long. Neighbors use the former node until they receive an announcement, and a frame may be lost.
const (
	egressAnnouncements = 5
	egressAnnounceAgain = 250 * time.Millisecond
	egressDefendAgain   = 100 * time.Millisecond // between two announcements because of conflicting claims
	// egressListen is for how long an agent that did not run waits for claims before it announces.
	// Other nodes may have taken its addresses over, and have open connections to them.
	egressListen = 100 * time.Millisecond
)

// Announced records which egress addresses this node has announced. ovn-controller announces IPv4
// ones, too; only Hairpin sends unsolicited neighbor advertisements.
type Announced struct {
	addresses map[netip.Addr]*announcedAddress
}

// announcedAddress records the announcements of an address with a MAC.
type announcedAddress struct {
	mac        cluster.MAC
	times      int       // how many were sent
	last, next time.Time // of them
	listened   bool      // the next one need not wait for claims
}

// step decides whether an announcement is due now. It returns when to call it again, 0 if not.
func (a *announcedAddress) step(now time.Time) (due bool, wait time.Duration) {
	// The agent has just started, or did not run when an announcement was due.
	if !a.listened && (a.times == 0 || now.Sub(a.next) > egressAnnounceAgain) {
		a.next, a.listened = now.Add(egressListen), true
	}
	if a.times < egressAnnouncements && !a.next.After(now) {
		a.last, a.next, a.listened = now, now.Add(egressAnnounceAgain<<a.times), false
		a.times++
		due = true
	}
	if a.times < egressAnnouncements {
		wait = max(a.next.Sub(now), time.Millisecond)
	}
	return due, wait
}

// Defend schedules an announcement of an address that another machine claims.
func (c *Announced) Defend(now time.Time, x netip.Addr) {
	if a := c.addresses[x]; a != nil {
		a.times, a.next, a.listened = min(a.times, egressAnnouncements-2), now, true
		if soonest := a.last.Add(egressDefendAgain); a.next.Before(soonest) {
			a.next = soonest
		}
	}
}

// Announce sends the due announcements for the addresses that the node carries, on the gateway
// bridge or on the links that have them. It returns when to call it again.
func (c *Announced) Announce(now time.Time, own *cluster.Node, list []*cluster.EgressIP,
	links map[host.AddressKey]host.Address) (time.Duration, error) {
	node, g := own.Name, &own.Gateway
	was := c.addresses
	c.addresses = map[netip.Addr]*announcedAddress{}
	frames := map[string][][]byte{} // by link
	var again time.Duration
	for _, e := range list {
		for _, x := range e.Assigned {
			if !e.CarriedBy(node, x.Address) {
				continue
			}
			link, mac := announcedOn(own, x.Address, links)
			a := was[x.Address]
			if a == nil || a.mac != mac {
				a = &announcedAddress{mac: mac, next: now, listened: was != nil}
			}
			c.addresses[x.Address] = a
			due, wait := a.step(now)
			if due {
				frames[link] = append(frames[link], announcement(mac, x.Address))
			}
			again = retry.Sooner(again, wait)
		}
	}
	var errs []error
	for name, list := range frames {
		if name == g.Bridge && !cluster.ModeNamed(g.Mode).Uplink {
			continue // no network of this node has it now
		}
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = send(link.Attrs().Index, list)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("announce egress addresses on %s: %w", name, err))
		}
	}
	return again, errors.Join(errs...)
}

// Solicit requests the MACs of egress addresses of the gateway bridge's network, to detect other
// machines that have them: a Listener receives the replies.
func Solicit(g cluster.Gateway, list []netip.Addr) error {
	var frames [][]byte
	for _, a := range list {
		if cluster.ModeNamed(g.Mode).Uplink && onNetwork(g.Addresses, a) {
			frames = append(frames, solicitation(g.MAC, ownFor(g.Addresses, a), a))
		}
	}
	if len(frames) == 0 {
		return nil
	}
	link, err := netlink.LinkByName(g.Bridge)
	if err == nil {
		err = send(link.Attrs().Index, frames)
	}
	if err != nil {
		return fmt.Errorf("solicit egress addresses on %s: %w", g.Bridge, err)
	}
	return nil
}

// announcedOn returns the link that has an address, and the link's MAC. Addresses of the gateway
// router are on no link of the host.
func announcedOn(own *cluster.Node, a netip.Addr, links map[host.AddressKey]host.Address) (string, cluster.MAC) {
	for i := range own.Links {
		l := &own.Links[i]
		if _, there := links[host.AddressKey{Link: l.Name, Prefix: netip.PrefixFrom(a, a.BitLen())}]; there {
			return l.Name, l.MAC
		}
	}
	return own.Gateway.Bridge, own.Gateway.MAC
}

// Addresses returns the addresses that the node carries.
func (c *Announced) Addresses() map[netip.Addr]bool {
	list := make(map[netip.Addr]bool, len(c.addresses))
	for a := range c.addresses {
		list[a] = true
	}
	return list
}
