package netdev

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Prefix converts an address with a mask; nil is invalid.
func Prefix(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	a, _ := netip.AddrFromSlice(n.IP)
	bits, size := n.Mask.Size()
	if size == 8*net.IPv4len {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, bits)
}

// Destination returns the destination of a route, for which package netlink may have nil.
func Destination(r *netlink.Route) netip.Prefix {
	switch {
	case r.Dst != nil:
		return Prefix(r.Dst)
	case r.Family == netlink.FAMILY_V6:
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// NextHops returns the next hops of a route, at least one. One without a gateway is on the link.
func NextHops(r *netlink.Route) []*netlink.NexthopInfo {
	if len(r.MultiPath) > 0 {
		return r.MultiPath
	}
	return []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw, Via: r.Via, Flags: r.Flags}}
}
