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

// move is what is still to go from one link to another: addresses, in the kernel's order, and
// routes.
type move struct {
	from, to  netlink.Link
	addresses []netlink.Addr
	routes    []netlink.Route
	there     []netlink.Addr  // on the other link
	thereTo   []netlink.Route // through the other link
	lifetimes []lifetime      // that addresses get back; nil = none ends
	back      bool
}

func (m *machine) move(from, to netlink.Link) (v move, err error) {
	v = move{from: from, to: to, back: to == m.device, lifetimes: m.had.Addresses}
	if v.addresses, err = addresses(from, m.config.Prefixes); err != nil {
		return v, err
	}
	if v.there, err = addresses(to, m.config.Prefixes); err != nil {
		return v, err
	}
	if v.routes, err = routes(from, m.config.Prefixes); err == nil && len(v.routes) > 0 {
		v.thereTo, err = routes(to, m.config.Prefixes)
	}
	return v, err
}

// addresses lists the machine's own addresses on a link.
func addresses(l netlink.Link, not []netip.Prefix) ([]netlink.Addr, error) {
	list, err := netdev.Addresses(l)
	if err != nil {
		return nil, fmt.Errorf("addresses of %s: %w", l.Attrs().Name, err)
	}
	return slices.DeleteFunc(list, func(a netlink.Addr) bool {
		ip := addr(a.IP)
		return ip.Is6() && ip.IsLinkLocalUnicast() || // the kernel makes it
			a.Flags&unix.IFA_F_DADFAILED != 0 ||
			slices.ContainsFunc(not, func(p netip.Prefix) bool { return p.Contains(ip) })
	}), nil
}

// routes lists the machine's own unicast routes through a link, in all tables: not ours, not those
// that the kernel makes for every link. One with several next hops counts as one for each.
func routes(l netlink.Link, not []netip.Prefix) ([]netlink.Route, error) {
	all, err := kernel.Routes{Link: l.Attrs().Index}.List()
	if err != nil {
		return nil, fmt.Errorf("routes of %s: %w", l.Attrs().Name, err)
	}
	var list []netlink.Route
	for _, r := range all {
		hops := r.MultiPath
		if hops == nil {
			hops = []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw, Via: r.Via, Flags: r.Flags}}
		}
		for _, h := range hops {
			one := r
			one.MultiPath, one.LinkIndex, one.Gw, one.Via, one.Flags = nil, h.LinkIndex, h.Gw, h.Via,
				h.Flags&int(netlink.FLAG_ONLINK)
			ours := slices.ContainsFunc(not, func(p netip.Prefix) bool {
				// OVN-Kubernetes' to Services have such a gateway
				return p.Overlaps(destination(&one)) && destination(&one).Bits() > 0 || p.Contains(addr(one.Gw))
			})
			if h.LinkIndex == l.Attrs().Index && movable(&one) && !ours {
				list = append(list, one)
			}
		}
	}
	return list, nil
}

func movable(r *netlink.Route) bool {
	if r.Type != unix.RTN_UNICAST || r.Table == unix.RT_TABLE_LOCAL || r.Protocol == claims.RouteProtocol {
		return false
	}
	d := destination(r)
	return !d.Addr().Is6() || !d.Addr().IsLinkLocalUnicast() && !d.Addr().IsMulticast()
}

func destination(r *netlink.Route) netip.Prefix {
	if r.Dst == nil {
		if r.Family == unix.AF_INET6 {
			return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	ones, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(addr(r.Dst.IP), ones)
}

func addr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

func prefix(a *netlink.Addr) netip.Prefix {
	ones, _ := a.Mask.Size()
	return netip.PrefixFrom(addr(a.IP), ones)
}

// addAddresses gives the other link the addresses that it does not have, without duplicate address
// detection: the machine itself has.
func (v *move) addAddresses() (string, error) {
	var did []string
	for _, a := range oldestFirst(v.addresses) {
		p := prefix(&a)
		if slices.ContainsFunc(v.there, func(b netlink.Addr) bool { return prefix(&b) == p }) {
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
		if i := slices.IndexFunc(v.lifetimes, func(l lifetime) bool { return l.Prefix == p }); v.back && i >= 0 {
			b.ValidLft, b.PreferedLft = v.lifetimes[i].Valid, v.lifetimes[i].Preferred
		}
		if err := netlink.AddrAdd(v.to, &b); err != nil && !errors.Is(err, unix.EEXIST) {
			return "", fmt.Errorf("ip address add %s dev %s: %w", p, name, err)
		}
		did = append(did, fmt.Sprintf("ip address add %s dev %s", p, name))
	}
	return words(did), nil
}

// oldestFirst is the order in which addresses were added: the kernel lists those of IPv6 the other
// way round, and prefers the first of a list as a source.
func oldestFirst(list []netlink.Addr) (sorted []netlink.Addr) {
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

// moveRoutes gives the other link the routes that it does not have. A route takes the place of the
// old one in one step.
func (v *move) moveRoutes() (string, error) {
	var did []string
	for _, r := range inOrder(v.routes) {
		same := func(with bool) bool {
			return slices.ContainsFunc(v.thereTo, func(o netlink.Route) bool {
				return o.Table == r.Table && destination(&o) == destination(&r) && o.Priority == r.Priority &&
					o.Tos == r.Tos && (!with || o.Gw.Equal(r.Gw))
			})
		}
		if same(true) {
			continue
		}
		how := netlink.RouteReplace
		if same(false) {
			how = netlink.RouteAppend // it has one to there by another gateway
		}
		if len(did) == 0 {
			v.copyNeighbors()
		}
		n := r
		n.LinkIndex, n.ILinkIndex = v.to.Attrs().Index, 0
		text := "ip route replace " + describe(&r) + " dev " + v.to.Attrs().Name
		if err := how(&n); err != nil && !errors.Is(err, unix.EEXIST) {
			return "", fmt.Errorf("%s: %w", text, err)
		}
		v.thereTo = append(v.thereTo, n)
		did = append(did, text)
	}
	return words(did), nil
}

// copyNeighbors gives the other link the known MACs: the answer to a question asked there could
// come in here. It is a cache, and works without.
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

// inOrder puts routes without a gateway first: the others need them.
func inOrder(list []netlink.Route) []netlink.Route {
	direct := func(r netlink.Route) int {
		if r.Gw == nil && r.Via == nil {
			return 0
		}
		return 1
	}
	return slices.SortedStableFunc(slices.Values(list), func(a, b netlink.Route) int { return direct(a) - direct(b) })
}

func describe(r *netlink.Route) string {
	text := destination(r).String()
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

// deleteAddresses takes the addresses off, the last first: with the first of a subnet, others would
// go by themselves.
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
	return words(did), nil
}

// deleteRoutes takes routes away that have not gone with the addresses.
func (v *move) deleteRoutes() (string, error) {
	var did []string
	for _, r := range v.routes {
		text := "ip route del " + describe(&r) + " dev " + v.from.Attrs().Name
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENODEV) {
			return "", fmt.Errorf("%s: %w", text, err)
		}
		did = append(did, text)
	}
	return words(did), nil
}
