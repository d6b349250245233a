package run

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"

	"hairpin/cluster"
	"hairpin/datapath/host"
)

// Egress addresses that come to this node are announced at once and then again, each time after twice as long: neighbours
// believe the node that had them until they hear of another, and one frame may be lost.
const (
	egressAnnouncements = 5
	egressAnnounceAgain = 250 * time.Millisecond
)

// carried remembers which egress addresses this node has announced. ovn-controller announces IPv4 ones, too; unsolicited
// neighbour advertisements are ours alone.
type carried struct {
	addresses map[netip.Addr]*announced
}

// announced is how often an address was.
type announced struct {
	times int
	next  time.Time
}

// announce sends what is due for the addresses that the node carries, on the gateway bridge or on the links that have them.
// It tells when it wants to be called again.
func (c *carried) announce(now time.Time, own *cluster.Node, list []*cluster.EgressIP, on map[host.AddressKey]host.Address) (time.Duration, error) {
	node, g := own.Name, &own.Gateway
	was := c.addresses
	c.addresses = map[netip.Addr]*announced{}
	frames := map[string][][]byte{} // by link
	var again time.Duration
	for _, e := range list {
		for _, x := range e.Assigned {
			if x.Node != node {
				continue
			}
			a := was[x.Address]
			if a == nil {
				a = &announced{next: now}
			}
			c.addresses[x.Address] = a
			if a.times < egressAnnouncements && !a.next.After(now) {
				link, mac := announcedOn(own, x.Address, on)
				frames[link] = append(frames[link], announcement(mac, x.Address))
				a.next = now.Add(egressAnnounceAgain << a.times)
				a.times++
			}
			if a.times < egressAnnouncements {
				again = sooner(again, max(a.next.Sub(now), time.Millisecond))
			}
		}
	}
	var errs []error
	for name, list := range frames {
		if name == g.Bridge && g.Mode == cluster.ModeDetached {
			continue // no network of this node has it any more
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

// announcedOn gives the link that an address is on, and the link's Ethernet address. Those of the gateway router are on
// no link of the host.
func announcedOn(own *cluster.Node, a netip.Addr, on map[host.AddressKey]host.Address) (string, cluster.MAC) {
	for i := range own.Links {
		l := &own.Links[i]
		if _, there := on[host.AddressKey{Link: l.Name, Prefix: netip.PrefixFrom(a, a.BitLen())}]; there {
			return l.Name, l.MAC
		}
	}
	return own.Gateway.Bridge, own.Gateway.MAC
}
