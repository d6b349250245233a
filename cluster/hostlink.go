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
	Table     int // number of the route table of the link's VRF; 0 = no VRF
	MTU       int // bytes; 0 = unknown
	Addresses []netip.Prefix
	// Routes are the routes by this link in the main table, or in that of its VRF, except those to
	// its own networks. If there are very many, only some are listed.
	Routes []HostRoute
}

// HostRoute is a route that is not Hairpin's.
type HostRoute struct {
	Prefix netip.Prefix
	Via    netip.Addr // zero = on link
}

// IsLinkName reports whether the kernel accepts a name for a link.
func IsLinkName(s string) bool {
	const longest = 15 // bytes: IFNAMSIZ without the final zero
	return s != "" && len(s) <= longest && s != "." && s != ".." && !strings.ContainsAny(s, " \t\n\v\f\r/:\"\x00")
}
