// Package host describes the wanted or found content of a node's kernel network: links, addresses,
// routes, policy-routing rules, neighbours and sysctls, in the terms of iproute2.
//
// Borrowed values belong to the machine, not to Hairpin: the node's own addresses and default route
// on the gateway bridge. They are part of a State because packets use them, but applying a State
// never adds, changes or removes them. (hostnet restores what a restart of a userspace Open vSwitch
// loses.)
package host

import (
	"net/netip"

	"hairpin/cluster"
)

// State is our part of the kernel's network.
type State struct {
	Links     map[string]Link // by name
	Addresses map[AddressKey]Address
	Routes    map[RouteKey]Route
	Rules     map[Rule]cluster.Owner
	Neighbors map[NeighborKey]Neighbor
	Sysctls   map[string]Sysctl // by path below /proc/sys, such as "net/ipv4/ip_forward"
}

// Link is a network interface that must be up. Other parts create it (Open vSwitch creates its
// internal ports).
type Link struct {
	Name string
	MAC  cluster.MAC // zero = not managed
	MTU  int         // bytes; 0 = not managed
	// Checksums makes the kernel compute checksums before the link gets a packet (ethtool -K … tx
	// off); false = not managed.
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
	Deprecated bool // preferred_lft 0: used only on explicit request (docs/design/origins.md#pitfalls)
	Borrowed   bool
	Owner      cluster.Owner
}

// LocalTable is the kernel's table of the host's own addresses: its routes have type local, and
// deliver to the host.
const LocalTable = 255

// RouteKey identifies a route.
type RouteKey struct {
	Table  int          // mainTable (254), LocalTable or another
	Prefix netip.Prefix // 0.0.0.0/0 or ::/0 is the default route
}

// Route is a unicast route with one next hop. A found route of ours in another form (another type
// or metric, several next hops) has no Link: it equals no wanted route.
type Route struct {
	RouteKey
	Link     string
	Via      netip.Addr // zero = on link
	Src      netip.Addr // preferred source; zero = the kernel's choice
	MTU      int        // bytes; 0 = the link's
	AdvMSS   int        // TCP MSS that the host announces; 0 = derived from the MTU
	Borrowed bool
	Owner    cluster.Owner
}

// Rule is a policy-routing rule. It is comparable and its own identity. A found rule with one of
// our priorities that Rule cannot represent has the Table OtherRule.
type Rule struct {
	Family   cluster.Family
	Priority int
	From     netip.Prefix // zero = all
	Mark     uint32       // fwmark, 0 = any
	Mask     uint32       // of the fwmark, 0 = all bits
	Table    int
}

// OtherRule is the Table of a found Rule with conditions or actions for which Rule has no fields.
// It is never wanted.
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
