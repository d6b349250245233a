// Package host is the wanted or found content of a node's kernel network: links, addresses, routes,
// policy-routing rules, neighbours and sysctls, in the words of iproute2.
//
// Borrowed values belong to the machine, not to Hairpin: the node's own addresses and default route
// on the gateway bridge. They are part of a State because packets take them; nobody makes, changes
// or removes them by it. (What a restart of a userspace Open vSwitch loses, hostnet restores.)
package host

import (
	"net/netip"

	"hairpin/cluster"
)

// State is the part of the kernel's network that is ours.
type State struct {
	Links     map[string]Link // by name
	Addresses map[AddressKey]Address
	Routes    map[RouteKey]Route
	Rules     map[Rule]cluster.Owner
	Neighbors map[NeighborKey]Neighbor
	Sysctls   map[string]Sysctl // by path below /proc/sys, such as "net/ipv4/ip_forward"
}

// Link is a network interface that must be up. It is made elsewhere (Open vSwitch makes its
// internal ports).
type Link struct {
	Name string
	MAC  cluster.MAC // zero = not ours to say
	MTU  int         // bytes; 0 = not ours to say
	// Checksums makes the kernel compute checksums before the link has a packet (ethtool -K … tx
	// off); false = not ours to say.
	Checksums bool
	Owner     cluster.Owner
}

// AddressKey identifies an address on a link.
type AddressKey struct {
	Link   string
	Prefix netip.Prefix // address with mask
}

// Address is an address of a link. IPv6 addresses are added without duplicate address detection.
type Address struct {
	AddressKey
	Deprecated bool // preferred_lft 0: used only when asked for by name (docs/design/origins.md#pitfalls)
	Borrowed   bool
	Owner      cluster.Owner
}

// LocalTable is the kernel's table of the host's own addresses: a route in it is of type local, and
// leads to the host.
const LocalTable = 255

// RouteKey identifies a route.
type RouteKey struct {
	Table  int          // 254 = main, or LocalTable
	Prefix netip.Prefix // 0.0.0.0/0 or ::/0 is the default route
}

// Route is a unicast route with one next hop. A found route of ours that is something else (another
// type or metric, several next hops) has no Link: it is equal to no wanted one.
type Route struct {
	RouteKey
	Link     string
	Via      netip.Addr // zero = on link
	Src      netip.Addr // preferred source; zero = the kernel's choice
	MTU      int        // bytes; 0 = the link's
	AdvMSS   int        // TCP payload that the host announces to accept; 0 = as the MTU allows
	Borrowed bool
	Owner    cluster.Owner
}

// Rule is a policy-routing rule. It is comparable and its own identity. A found rule of our
// priorities that has no form here has the Table OtherRule.
type Rule struct {
	Family   cluster.Family
	Priority int
	From     netip.Prefix // zero = all
	Mark     uint32       // fwmark, 0 = any
	Table    int
}

// OtherRule is the Table of a found Rule with conditions or actions that Rule has no fields for: it
// is never wanted.
const OtherRule = -1

// NeighborKey identifies a neighbour entry.
type NeighborKey struct {
	Link string
	IP   netip.Addr
}

// Neighbor is a permanent neighbour entry.
type Neighbor struct {
	NeighborKey
	MAC   cluster.MAC
	Owner cluster.Owner
}

// Sysctl is a value below /proc/sys.
type Sysctl struct {
	Path, Value string
	Owner       cluster.Owner
}
