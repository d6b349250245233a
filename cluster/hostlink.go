package cluster

import (
	"net/netip"
	"strings"
)

// HostLink is a link of a host, other than the gateway bridge, that is up. It either has a network,
// on which egress addresses may be, or only single addresses and routes, as a VPN's link may.
type HostLink struct {
	Name      string
	Index     int // the interface index in the kernel
	MAC       MAC // zero = none
	Table     int // route table of the VRF that the link belongs to; 0 = none
	MTU       int // bytes; 0 = unknown
	Addresses []netip.Prefix
	// Routes are those by this link in the main table or the VRF's, without those of its own
	// networks. If there are very many, only some are listed.
	Routes []HostRoute
}

// HostRoute is a route that is not Hairpin's.
type HostRoute struct {
	Prefix netip.Prefix
	Via    netip.Addr // zero = on link
}

// IsLinkName reports whether the kernel accepts a name for a link.
func IsLinkName(s string) bool {
	const longest = 15 // IFNAMSIZ, without the zero
	return s != "" && len(s) <= longest && s != "." && s != ".." && !strings.ContainsAny(s, " \t\n\v\f\r/:\"\x00")
}
