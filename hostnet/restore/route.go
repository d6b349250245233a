package restore

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"hairpin/claims"
)

// route has the attributes of a route that the package uses; its message has the others.
type route struct {
	to       netip.Prefix
	table    int
	kind     uint8
	protocol uint8
	metric   uint32
	expires  int64 // remaining ticks, negative when it has expired; 0 = never
	nexthops []nexthop
}

type nexthop struct {
	link int
	via  netip.Addr
}

// ticks is the number of ticks per second (USER_HZ).
const ticks = 100

// sizeofNexthop is the size of struct rtnexthop.
const sizeofNexthop = 8

func parseRoute(b []byte) (x route) {
	if len(b) < unix.SizeofRtMsg {
		return x
	}
	family, bits := b[0], int(b[1])
	x.table, x.protocol, x.kind = int(b[4]), b[5], b[7]
	to := netip.IPv4Unspecified()
	if family == unix.AF_INET6 {
		to = netip.IPv6Unspecified()
	}
	var one nexthop
	for _, a := range attributes(b, unix.SizeofRtMsg) {
		switch a.Attr.Type {
		case unix.RTA_DST:
			to = addrOf(a.Value)
		case unix.RTA_TABLE:
			x.table = int(uint32Of(a.Value))
		case unix.RTA_PRIORITY:
			x.metric = uint32Of(a.Value)
		case unix.RTA_OIF:
			one.link = int(uint32Of(a.Value))
		case unix.RTA_GATEWAY:
			one.via = addrOf(a.Value)
		case unix.RTA_VIA:
			one.via = viaOf(a.Value)
		case unix.RTA_CACHEINFO:
			if len(a.Value) >= 12 {
				x.expires = int64(int32(uint32Of(a.Value[8:])))
			}
		case unix.RTA_MULTIPATH:
			eachNexthop(a.Value, func(hop []byte) {
				h := nexthop{link: int(uint32Of(hop[4:]))}
				for _, a := range attributes(hop, sizeofNexthop) {
					switch a.Attr.Type {
					case unix.RTA_GATEWAY:
						h.via = addrOf(a.Value)
					case unix.RTA_VIA:
						h.via = viaOf(a.Value)
					}
				}
				x.nexthops = append(x.nexthops, h)
			})
		}
	}
	if x.nexthops == nil {
		x.nexthops = []nexthop{one}
	}
	x.to = netip.PrefixFrom(to, bits)
	return x
}

// viaOf parses struct rtvia: a gateway of another family.
func viaOf(b []byte) netip.Addr {
	if len(b) < 2 {
		return netip.Addr{}
	}
	return addrOf(b[2:])
}

// eachNexthop calls do for each of the next hops of RTA_MULTIPATH.
func eachNexthop(b []byte, do func(hop []byte)) {
	for len(b) >= sizeofNexthop {
		n := int(binary.NativeEndian.Uint16(b))
		if n < sizeofNexthop || n > len(b) {
			return
		}
		do(b[:n])
		b = b[min(len(b), (n+3)&^3):]
	}
}

// ownedByMachine reports whether a route is the machine's own. It is not if Hairpin added it, if
// the kernel adds one like it for every device, or if it leads to or by the excluded prefixes.
func (x *route) ownedByMachine(exclude []netip.Prefix) bool {
	a := x.to.Addr()
	if x.kind != unix.RTN_UNICAST || x.table == unix.RT_TABLE_LOCAL || x.protocol == claims.RouteProtocol ||
		x.protocol == unix.RTPROT_KERNEL ||
		!x.to.IsValid() || a.Is6() && (a.IsLinkLocalUnicast() || a.IsMulticast()) {
		return false
	}
	return !slices.ContainsFunc(exclude, func(p netip.Prefix) bool {
		return x.to.Bits() > 0 && p.Overlaps(x.to) ||
			slices.ContainsFunc(x.nexthops, func(h nexthop) bool { return p.Contains(h.via) })
	})
}

// uses reports whether a next hop is through a link.
func (x *route) uses(link int) bool {
	return slices.ContainsFunc(x.nexthops, func(h nexthop) bool { return h.link == link })
}

// hops returns the gateways through a link.
func (x *route) hops(link int) (list []netip.Addr) {
	for _, h := range x.nexthops {
		if h.link == link && h.via.IsValid() {
			list = append(list, h.via)
		}
	}
	return list
}

// rank returns 0 for a route without a gateway, otherwise 1.
func (x route) rank() int {
	if slices.ContainsFunc(x.nexthops, func(h nexthop) bool { return h.via.IsValid() }) {
		return 1
	}
	return 0
}
