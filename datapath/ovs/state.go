// Package ovs describes the wanted or found content of Open vSwitch on a node: Hairpin's settings,
// bridges and ports, and the flows and groups of bridges (package flow).
//
// Diff compares two States; Grow and Shrink divide the difference into what is added or changed
// first, and what is removed later. Print writes a State as text; equal States give equal text.
package ovs

import (
	"net/netip"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/delta"
)

// State is Hairpin's content of Open vSwitch.
type State struct {
	Bridge   string            // the gateway bridge: another program manages it, its ports and its groups
	Bridges  map[string]Bridge // used only by Hairpin, by name
	Settings map[string]string // keys of Open_vSwitch's external_ids
	Ports    map[string]Port   // by name
	// Named has the bridges with names of OpenFlow tables in Open vSwitch, those of package
	// pipeline, by the Bridge of flow.Key. The value is false if only some tables have their names;
	// a desired State has no such value.
	Named  map[string]bool
	Flows  delta.Map[flow.ID, *flow.Flow]
	Groups delta.Map[flow.GroupKey, *flow.Group]
	// TunnelNeighbors are the MACs of tunnel peers. Only the userspace datapath needs them: it
	// drops the first packet to a peer that it has not resolved yet.
	TunnelNeighbors map[netip.Addr]cluster.MAC
	// TunnelBridge is the bridge through which tunnel packets leave, if it is not Bridge.
	// TunnelRoutes has the next hop on it for each peer's address. Only the userspace datapath
	// needs them, on a node whose address is not on an Open vSwitch bridge.
	TunnelBridge string
	TunnelRoutes map[netip.Addr]netip.Addr
	// Unknown lists flows that were read back with our cookie and a match that this package cannot
	// decode, such as a flow altered by hand. They are never wanted, so Diff removes them.
	Unknown []Unknown
	// NoFlows lists bridges of another program (OVN's br-int) that have lost flows which packets
	// need. Never wanted.
	NoFlows []string
}

// Bridge is an Open vSwitch bridge that must exist. A wanted one drops packets that match none of
// our flows (fail_mode secure).
type Bridge struct {
	Name      string
	Userspace bool // datapath_type netdev; all bridges of a node have the same
	// Standalone is never wanted: the bridge forwards packets that match no flow as an ordinary
	// switch (fail_mode standalone).
	Standalone bool
	// Learned is the limit of flows in pipeline.SvcSessionAffinity, Connections that of connections
	// in claims.ZoneServices of the bridge's datapath; 0 = no limit. They are ForeignLimit if
	// another program or an administrator set a limit.
	Learned, Connections int
	Owner                cluster.Owner
}

// ForeignLimit is never wanted: a limit that was read back and that Hairpin must not change.
const ForeignLimit = -1

// Unknown is a flow of a bridge in ovs-ofctl's syntax, with the match as it is encoded.
type Unknown struct {
	Bridge string // as in flow.Key
	Flow   string
}

// String returns the flow.
func (u Unknown) String() string { return u.Flow }

// Port is an Open vSwitch port that must exist, such as ovn-k8s-mp0 on br-int.
type Port struct {
	Name   string
	Bridge string
	Type   string // Interface type: "internal", "" …
	Peer   string // of a port of type patch: its peer on another bridge
	// Local is the local end of all tunnels of a port of type geneve. Flows select the tunnel by
	// Tunnel.
	Local       netip.Addr
	MAC         cluster.MAC
	MTU         int               // bytes, mtu_request; 0 = not managed
	ExternalIDs map[string]string // of the Interface, only ours: iface-id
	Owner       cluster.Owner
}
