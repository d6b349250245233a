package hostnet

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/apply/kernel"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/netdev"
)

// maxRoutes limits the routes of a link that are copied to the link's own table, per family. A
// machine that has more runs a routing protocol; the default route comes first.
const maxRoutes = 500

// hostLinks finds the links to other networks than the gateway bridge's, which egress addresses may
// be on. These links are up, have an address of scope global, and have either a network or, like a
// VPN's link, routes. The uplink's network is the bridge's, whatever address the uplink gets. A
// link without carrier is not connected to its network.
func hostLinks(g *cluster.Gateway, addresses []hostAddress) ([]cluster.HostLink, error) {
	links, err := netdev.List(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("links: %w", err)
	}
	out := []cluster.HostLink{}
	for _, l := range links {
		a := l.Attrs()
		if a.Name == g.Bridge || a.Name == g.Uplink || a.Flags&net.FlagUp == 0 || a.Flags&net.FlagLoopback != 0 ||
			a.OperState == netlink.OperDown ||
			strings.HasPrefix(a.Name, claims.PodInterface) {
			continue
		}
		x := cluster.HostLink{Name: a.Name, Index: a.Index, MTU: a.MTU}
		copy(x.MAC[:], a.HardwareAddr)
		if s, ok := a.Slave.(*netlink.VrfSlave); ok {
			x.Table = int(s.Table)
		}
		for _, h := range addresses {
			if h.link == a.Index && h.global {
				x.Addresses = append(x.Addresses, h.prefix)
			}
		}
		if networks := networkPrefixes(x.Addresses); len(networks) > 0 { // single addresses matter only without
			x.Addresses = networks
		}
		if len(x.Addresses) > 0 {
			out = append(out, x)
		}
	}
	slices.SortFunc(out, func(a, b cluster.HostLink) int { return strings.Compare(a.Name, b.Name) })
	err = addRoutes(out)
	return slices.DeleteFunc(out,
		func(l cluster.HostLink) bool { return len(networkPrefixes(l.Addresses)) == 0 && len(l.Routes) == 0 }), err
}

// networkPrefixes returns the prefixes of addresses that are more than the address itself: the
// link's networks.
func networkPrefixes(list []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(list), netip.Prefix.IsSingleIP)
}

// addRoutes adds the links' routes.
func addRoutes(links []cluster.HostLink) error {
	for i := range links {
		l := &links[i]
		list, err := kernel.Routes{Link: l.Index, Table: cmp.Or(l.Table, unix.RT_TABLE_MAIN), Max: maxRoutes,
			Keep: func(r *netlink.Route) bool {
				_, ok := hostRoute(r, l.Index)
				return ok
			}}.List()
		if err != nil {
			return err
		}
		for _, r := range list {
			x, _ := hostRoute(&r, l.Index)
			l.Routes = append(l.Routes, x)
		}
		slices.SortStableFunc(l.Routes,
			func(a, b cluster.HostRoute) int { return cluster.ComparePrefixes(a.Prefix, b.Prefix) })
		// The first of a prefix has the best metric.
		l.Routes = slices.CompactFunc(l.Routes, func(a, b cluster.HostRoute) bool { return a.Prefix == b.Prefix })
	}
	return nil
}

// hostRoute converts a route through a link. It is not ok for Hairpin's routes, those that do not
// lead to other machines, and those with a gateway of the other family, which HostRoute cannot
// express.
func hostRoute(r *netlink.Route, link int) (x cluster.HostRoute, ok bool) {
	hops := netdev.NextHops(r)
	i := slices.IndexFunc(hops, func(h *netlink.NexthopInfo) bool { return h.LinkIndex == link })
	if i < 0 || hops[i].Via != nil || r.Type != unix.RTN_UNICAST || r.Protocol == unix.RTPROT_KERNEL ||
		r.Protocol == claims.RouteProtocol {
		return x, false
	}
	x.Prefix = netdev.Destination(r)
	if via, given := netip.AddrFromSlice(hops[i].Gw); given {
		x.Via = via.Unmap()
	}
	a := x.Prefix.Addr()
	return x, x.Prefix.IsValid() && !a.IsMulticast() && !(a.Is6() && a.IsLinkLocalUnicast()) &&
		(!x.Via.IsValid() || x.Via.Is4() == a.Is4())
}
