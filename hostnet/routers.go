package hostnet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/apply/kernel"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/netdev"
	"hairpin/retry"
)

// discoverRouters fills in what the kernel knows of routers and networks on a link: the MACs of the
// next hops of all routes, zero if it has none, and networks that are reached without a router. The
// kernel resolves next hops that it does not know.
func discoverRouters(g *cluster.Gateway, link int) error {
	routes, err := kernel.Routes{Link: link, Table: unix.RT_TABLE_MAIN, Max: maxRoutes,
		Keep: func(r *netlink.Route) bool {
			return r.Type == unix.RTN_UNICAST && r.Protocol != claims.RouteProtocol
		}}.List()
	if err != nil {
		return err
	}
	g.NextHopMACs = map[netip.Addr]cluster.MAC{}
	for _, a := range g.NextHops {
		g.NextHopMACs[a] = cluster.MAC{}
	}
	for i := range routes {
		addTargets(g, &routes[i], link)
	}
	slices.SortFunc(g.OnLink, cluster.ComparePrefixes)
	g.OnLink = slices.Compact(g.OnLink)
	neighbors, err := netdev.List(func() ([]netlink.Neigh, error) {
		return netlink.NeighList(link, netlink.FAMILY_ALL)
	})
	if err != nil {
		return fmt.Errorf("neighbors: %w", err)
	}
	for i := range neighbors {
		a, mac := neighborOf(&neighbors[i])
		if _, router := g.NextHopMACs[a]; router {
			g.NextHopMACs[a] = mac
		}
	}
	for a := range g.NextHopMACs {
		resolve(link, a)
	}
	return nil
}

// addTargets adds the next hops of a route through a link, or its network if it has no next hop.
func addTargets(g *cluster.Gateway, r *netlink.Route, link int) {
	hops := hopsBy(r, link)
	for _, a := range hops {
		g.NextHopMACs[a] = cluster.MAC{}
	}
	if len(hops) > 0 || r.Via != nil {
		return
	}
	p := netdev.Destination(r)
	if p.Bits() > 0 && !p.Addr().IsMulticast() && !p.Addr().IsLinkLocalUnicast() {
		g.OnLink = append(g.OnLink, p)
	}
}

// neighborOf returns the address and MAC of an entry of the kernel's neighbor table. The MAC is
// zero if the kernel cannot send to it.
func neighborOf(n *netlink.Neigh) (netip.Addr, cluster.MAC) {
	a, _ := netip.AddrFromSlice(n.IP)
	var mac cluster.MAC
	if n.State&(unix.NUD_INCOMPLETE|unix.NUD_FAILED) == 0 && n.State != unix.NUD_NONE {
		copy(mac[:], n.HardwareAddr)
	}
	return a.Unmap(), mac
}

// resolve makes the kernel resolve a neighbor, or confirm one that it has not used for a while. A
// notification has the result.
func resolve(link int, a netip.Addr) {
	n := netlink.Neigh{LinkIndex: link, Family: netlink.FAMILY_V4, IP: net.IP(a.AsSlice()), Flags: netlink.NTF_USE}
	if a.Is6() {
		n.Family = netlink.FAMILY_V6
	}
	_ = netlink.NeighAdd(&n) // it fails if the link was removed or is down: then it has no neighbors
}

// confirmTime limits how long another MAC of a next hop stays unnoticed, if the new owner of the
// address does not announce it. The kernel confirms neighbors in use about as often.
const confirmTime = 30 * time.Second

// Confirm makes the kernel confirm next hops that nothing on the host uses, until ctx ends.
func (sc *Scanner) Confirm(ctx context.Context) {
	retry.Every(ctx, confirmTime, func() {
		if r := sc.routers.Load(); r != nil {
			for a := range r.macs {
				resolve(r.link, a)
			}
		}
	})
}

// routers are the next hops of the last scan.
type routers struct {
	link int // the gateway bridge
	macs map[netip.Addr]cluster.MAC
}

// changesScan reports whether a notification may change the result of a scan. The kernel reports
// each change of each neighbor's state; only another MAC of a router matters. A router keeps its
// last MAC while the kernel has none.
func (sc *Scanner) changesScan(m syscall.NetlinkMessage) bool {
	if m.Header.Type != unix.RTM_NEWNEIGH && m.Header.Type != unix.RTM_DELNEIGH {
		return true
	}
	r := sc.routers.Load()
	n, err := netlink.NeighDeserialize(m.Data)
	if r == nil || err != nil || n.LinkIndex != r.link {
		return false
	}
	a, mac := neighborOf(n)
	old, router := r.macs[a]
	return router && mac != cluster.MAC{} && mac != old
}
