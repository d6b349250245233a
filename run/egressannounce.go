package run

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"

	"hairpin/cluster"
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

// announce sends what is due for the addresses that the node carries. It tells when it wants to be called again.
func (c *carried) announce(now time.Time, node string, list []*cluster.EgressIP, g cluster.Gateway) (time.Duration, error) {
	was := c.addresses
	c.addresses = map[netip.Addr]*announced{}
	var frames [][]byte
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
				frames = append(frames, announcement(g.MAC, x.Address))
				a.next = now.Add(egressAnnounceAgain << a.times)
				a.times++
			}
			if a.times < egressAnnouncements {
				again = sooner(again, max(a.next.Sub(now), time.Millisecond))
			}
		}
	}
	if len(frames) == 0 || g.Mode == cluster.ModeDetached {
		return again, nil
	}
	link, err := netlink.LinkByName(g.Bridge)
	if err == nil {
		err = send(link.Attrs().Index, frames)
	}
	if err != nil {
		return again, fmt.Errorf("announce egress addresses on %s: %w", g.Bridge, err)
	}
	return again, nil
}
