package uplink

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/apply/kernel"
	"hairpin/claims"
	"hairpin/netdev"
)

// move is what is still to move from one link to another: addresses, in the kernel's order, and
// routes.
type move struct {
	from, to    netlink.Link
	addresses   []netlink.Addr
	routes      []netlink.Route
	toAddresses []netlink.Addr  // those that `to` has already
	toRoutes    []netlink.Route // those through `to`
	lifetimes   []lifetime      // of addresses that expire on `to`
}

// remaining returns what is still to move from one link to another.
func (m *machine) remaining(from, to netlink.Link) (v move, err error) {
	v = move{from: from, to: to}
	if to == m.device {
		v.lifetimes = m.former.Addresses
	}
	if v.addresses, err = addresses(from, m.config.Prefixes); err != nil {
		return v, err
	}
	if v.toAddresses, err = addresses(to, m.config.Prefixes); err != nil {
		return v, err
	}
	if v.routes, err = routes(from, m.config.Prefixes); err == nil && len(v.routes) > 0 {
		v.toRoutes, err = routes(to, m.config.Prefixes)
	}
	return v, err
}

// addresses lists the machine's own addresses on a link.
func addresses(l netlink.Link, exclude []netip.Prefix) ([]netlink.Addr, error) {
	list, err := netdev.Addresses(l)
	if err != nil {
		return nil, fmt.Errorf("addresses of %s: %w", l.Attrs().Name, err)
	}
	return slices.DeleteFunc(list, func(a netlink.Addr) bool {
		ip := addr(a.IP)
		return ip.Is6() && ip.IsLinkLocalUnicast() || // the kernel adds it
			a.Flags&unix.IFA_F_DADFAILED != 0 ||
			slices.ContainsFunc(exclude, func(p netip.Prefix) bool { return p.Contains(ip) })
	}), nil
}

// routes lists the machine's own unicast routes through a link, in all tables, without Hairpin's
// and the kernel's own for every link. A route with several next hops becomes one route per next
// hop.
func routes(l netlink.Link, exclude []netip.Prefix) ([]netlink.Route, error) {
	all, err := kernel.Routes{Link: l.Attrs().Index}.List()
	if err != nil {
		return nil, fmt.Errorf("routes of %s: %w", l.Attrs().Name, err)
	}
	var list []netlink.Route
	for _, r := range all {
		for _, h := range netdev.NextHops(&r) {
			one := r
			one.MultiPath, one.LinkIndex, one.Gw, one.Via, one.Flags = nil, h.LinkIndex, h.Gw, h.Via,
				h.Flags&int(netlink.FLAG_ONLINK)
			to := netdev.Destination(&one)
			ours := slices.ContainsFunc(exclude, func(p netip.Prefix) bool {
				// OVN-Kubernetes' routes to Services have such a gateway
				return (to.Bits() > 0 && p.Overlaps(to)) || p.Contains(addr(one.Gw))
			})
			if h.LinkIndex == l.Attrs().Index && movable(&one) && !ours {
				list = append(list, one)
			}
		}
	}
	return list, nil
}

// movable reports whether a route is neither Hairpin's nor one that the kernel adds for every link.
func movable(r *netlink.Route) bool {
	if r.Type != unix.RTN_UNICAST || r.Table == unix.RT_TABLE_LOCAL || r.Protocol == claims.RouteProtocol {
		return false
	}
	d := netdev.Destination(r)
	return !d.Addr().Is6() || !d.Addr().IsLinkLocalUnicast() && !d.Addr().IsMulticast()
}

func addr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

func prefix(a *netlink.Addr) netip.Prefix { return netdev.Prefix(a.IPNet) }

// addAddresses adds the missing addresses to the other link. It disables duplicate address
// detection, because the machine itself still has them.
func (v *move) addAddresses() (string, error) {
	var did []string
	for _, a := range inOrderAdded(v.addresses) {
		p := prefix(&a)
		if slices.ContainsFunc(v.toAddresses, func(b netlink.Addr) bool { return prefix(&b) == p }) {
			continue
		}
		name := v.to.Attrs().Name
		b := netlink.Addr{IPNet: a.IPNet, Peer: a.Peer, Scope: a.Scope, Broadcast: a.Broadcast,
			Flags: a.Flags & unix.IFA_F_NOPREFIXROUTE}
		if _, alias, is := strings.Cut(a.Label, ":"); is {
			b.Label = name + ":" + alias
		}
		if p.Addr().Is6() {
			b.Flags |= unix.IFA_F_NODAD
		} else if a.Broadcast == nil {
			b.Broadcast = net.IPv4zero // none
		}
		if i := slices.IndexFunc(v.lifetimes, func(l lifetime) bool { return l.Prefix == p }); i >= 0 {
			b.ValidLft, b.PreferedLft = v.lifetimes[i].Valid, v.lifetimes[i].Preferred
		}
		if err := netlink.AddrAdd(v.to, &b); err != nil && !errors.Is(err, unix.EEXIST) {
			return "", fmt.Errorf("ip address add %s dev %s: %w", p, name, err)
		}
		did = append(did, fmt.Sprintf("ip address add %s dev %s", p, name))
	}
	return joinSteps(did), nil
}

// inOrderAdded returns addresses in the order in which they were added. The kernel lists those of
// IPv6 in reverse, and prefers the first of its list as a source.
func inOrderAdded(list []netlink.Addr) (sorted []netlink.Addr) {
	var six []netlink.Addr
	for _, a := range list {
		if addr(a.IP).Is4() {
			sorted = append(sorted, a)
		} else {
			six = append(six, a)
		}
	}
	slices.Reverse(six)
	return append(sorted, six...)
}

// moveRoutes adds the missing routes to the other link. A route replaces the old one in one step.
func (v *move) moveRoutes() (string, error) {
	var did []string
	for _, r := range gatewaysLast(v.routes) {
		same := func(o netlink.Route) bool { return sameRoute(&o, &r) && o.Tos == r.Tos }
		if slices.ContainsFunc(v.toRoutes, func(o netlink.Route) bool { return same(o) && o.Gw.Equal(r.Gw) }) {
			continue
		}
		add := netlink.RouteReplace
		if slices.ContainsFunc(v.toRoutes, same) {
			add = netlink.RouteAppend // it has another gateway
		}
		if len(did) == 0 {
			v.copyNeighbors()
		}
		n := r
		n.LinkIndex, n.ILinkIndex = v.to.Attrs().Index, 0
		text := "ip route replace " + routeText(&r) + " dev " + v.to.Attrs().Name
		if err := add(&n); err != nil && !errors.Is(err, unix.EEXIST) {
			return "", fmt.Errorf("%s: %w", text, err)
		}
		v.toRoutes = append(v.toRoutes, n)
		did = append(did, text)
	}
	return joinSteps(did), nil
}

// sameRoute reports whether two routes have one table, destination and metric.
func sameRoute(a, b *netlink.Route) bool {
	return a.Table == b.Table && a.Priority == b.Priority && netdev.Destination(a) == netdev.Destination(b)
}

// copyNeighbors copies known MACs to the other link: replies to requests that are sent there could
// arrive on this one. Errors do not matter: the kernel can resolve the neighbors again.
func (v *move) copyNeighbors() {
	list, err := netlink.NeighList(v.from.Attrs().Index, netlink.FAMILY_ALL)
	if err != nil {
		return
	}
	for _, n := range list {
		if n.State&(unix.NUD_REACHABLE|unix.NUD_STALE|unix.NUD_DELAY|unix.NUD_PROBE) != 0 {
			_ = netlink.NeighAdd(&netlink.Neigh{LinkIndex: v.to.Attrs().Index, Family: n.Family, State: unix.NUD_STALE,
				IP: n.IP, HardwareAddr: n.HardwareAddr})
		}
	}
}

// gatewaysLast sorts routes with a gateway last: they need the others.
func gatewaysLast(list []netlink.Route) []netlink.Route {
	rank := func(r netlink.Route) int {
		if r.Gw == nil && r.Via == nil {
			return 0
		}
		return 1
	}
	return slices.SortedStableFunc(slices.Values(list), func(a, b netlink.Route) int { return rank(a) - rank(b) })
}

// routeText returns a route as arguments of `ip route`, without its device.
func routeText(r *netlink.Route) string {
	text := netdev.Destination(r).String()
	if r.Gw != nil {
		text += " via " + r.Gw.String()
	}
	if r.Priority != 0 {
		text += fmt.Sprintf(" metric %d", r.Priority)
	}
	if r.Table != unix.RT_TABLE_MAIN {
		text += fmt.Sprintf(" table %d", r.Table)
	}
	return text
}

// deleteAddresses deletes the addresses, the last first: the deletion of the first of a subnet
// would delete the others, too.
func (v *move) deleteAddresses() (string, error) {
	var did []string
	for _, a := range slices.Backward(v.addresses) {
		text := fmt.Sprintf("ip address del %s dev %s", prefix(&a), v.from.Attrs().Name)
		if err := netlink.AddrDel(v.from, &netlink.Addr{IPNet: a.IPNet, Peer: a.Peer}); err != nil &&
			!errors.Is(err, unix.EADDRNOTAVAIL) {
			return "", fmt.Errorf("%s: %w", text, err)
		}
		did = append(did, text)
	}
	return joinSteps(did), nil
}

// deleteRoutes deletes routes that were not removed with the addresses.
func (v *move) deleteRoutes() (string, error) {
	var did []string
	for _, r := range v.routes {
		text := "ip route del " + routeText(&r) + " dev " + v.from.Attrs().Name
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENODEV) {
			return "", fmt.Errorf("%s: %w", text, err)
		}
		did = append(did, text)
	}
	return joinSteps(did), nil
}
