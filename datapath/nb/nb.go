// Package nb is the wanted or found content of a node's OVN databases: the rows of the Northbound database, and
// the Southbound rows of remote chassis, for which the Northbound database has no word.
//
// A row's references are by name: a port names its switch, a load balancer its groups. Names are unique per
// table; where OVN does not name rows (routes, policies, NAT) the identifying columns make the name.
package nb

import (
	"net/netip"

	"hairpin/cluster"
)

// State is a set of rows.
type State map[Key]Row

// Key identifies a row. Name is the row's name, or for unnamed tables what identifies the row, in the words
// that Print uses.
type Key struct {
	Table Table
	Name  string
}

// Row is one row, of a closed set of types: those of this file. Rows are immutable: who changes one makes a new
// one. State holds pointers, so an equal pointer is an equal row.
type Row interface {
	Key() Key
	Why() cluster.Owner
	row()
}

// Table orders the tables so that a row comes after the rows it names.
type Table uint8

// The tables, in the order in which rows are made; they are removed in reverse.
const (
	TableGlobal Table = iota
	TableChassis
	TableAddressSet
	TableGroup
	TableRouter
	TableRouterPort
	TableSwitch
	TableSwitchPort
	TableQoS
	TableMACBinding
	TableRoute
	TablePolicy
	TableNAT
	TableLoadBalancer
)

// Global is NB_Global: the zone's name and our options. There is one.
type Global struct {
	Name    string            // zone name: the node's
	Options map[string]string // only the keys that are ours
	Owner   cluster.Owner
}

// Chassis is a remote node in the Southbound database: a Chassis with other_config:is-remote=true and one Geneve Encap.
type Chassis struct {
	Name     string     // system-id of the remote node
	Hostname string     // node name
	IP       netip.Addr // tunnel end
	Owner    cluster.Owner
}

// AddressSet is a set of addresses that policies match by name ($name). Sorted.
type AddressSet struct {
	Name      string
	Addresses []netip.Prefix // full-length prefixes are single addresses
	Owner     cluster.Owner
}

// Group is a Load_Balancer_Group. Its members are the LoadBalancers that name it; routers and switches name it too.
type Group struct {
	Name  string
	Owner cluster.Owner
}

// Router is a Logical_Router.
type Router struct {
	Name    string
	Options map[string]string // chassis, lb_force_snat_ip, snat-ct-zone …
	Groups  []string          // load balancer groups, sorted
	Owner   cluster.Owner
}

// RouterPort is a Logical_Router_Port.
type RouterPort struct {
	Name     string
	Router   string
	MAC      cluster.MAC
	Networks []netip.Prefix    // address with mask, IPv4 first
	Chassis  string            // gateway chassis of a distributed gateway port (priority 1); empty = none
	Options  map[string]string // may be nil
	Owner    cluster.Owner
}

// Switch is a Logical_Switch.
type Switch struct {
	Name        string
	OtherConfig map[string]string
	Groups      []string // load balancer groups, sorted
	Owner       cluster.Owner
}

// SwitchPort is a Logical_Switch_Port.
type SwitchPort struct {
	Name      string
	Switch    string
	Type      string   // "", "router", "localnet", "remote"
	Addresses []string // as OVN writes them: "MAC IP IP", "router", "unknown"
	// PortSecurity are the only addresses that packets from the port may have, "MAC IP IP"; empty = any.
	PortSecurity []string
	Options      map[string]string // router-port, network_name, requested-tnl-key …
	Owner        cluster.Owner
}

// QoS is a row of the QoS table of a switch, for packets that come from its ports (direction from-lport): it marks them. It is
// identified by switch, priority and match.
type QoS struct {
	Switch   string
	Priority int // 0 to 32767, higher wins
	Match    string
	Mark     uint32 // pkt.mark of what matches
	Owner    cluster.Owner
}

// MACBinding is a Static_MAC_Binding: a fixed neighbour of a router port.
type MACBinding struct {
	Port  string
	IP    netip.Addr
	MAC   cluster.MAC // override_dynamic_mac is always true
	Owner cluster.Owner
}

// Route is a Logical_Router_Static_Route.
type Route struct {
	Router  string
	Prefix  netip.Prefix // of the destination, or of the source when BySource
	NextHop netip.Addr
	OutPort string // router port; empty = OVN finds it
	// BySource matches the source address (policy "src-ip").
	BySource bool
	Owner    cluster.Owner
}

// Action is what a Policy does.
type Action string

// The actions of a Logical_Router_Policy.
const (
	Allow   Action = "allow"
	Drop    Action = "drop"
	Reroute Action = "reroute"
)

// Policy is a Logical_Router_Policy, identified by router, priority and match.
type Policy struct {
	Router   string
	Priority int // 0 to 32767, higher wins
	Match    string
	Action   Action
	NextHops []netip.Addr      // of Reroute: several are ECMP; sorted
	Options  map[string]string // pkt_mark
	Owner    cluster.Owner
}

// NATType is the type of a NAT row.
type NATType string

// The NAT types in use.
const (
	SNAT        NATType = "snat"
	DNATAndSNAT NATType = "dnat_and_snat"
)

// NAT is a row of the NAT table of a router.
type NAT struct {
	Router    string
	Type      NATType
	External  netip.Addr
	Logical   netip.Prefix
	PortRange string // external_port_range "61000-65535"; empty = any
	Match     string // further condition, in OVN's language
	Owner     cluster.Owner
}

// LoadBalancer is a Load_Balancer with its VIPs, one protocol.
type LoadBalancer struct {
	Name     string
	Protocol cluster.Protocol
	VIPs     []VIP             // sorted by address and port
	Options  map[string]string // reject, hairpin_snat_ip, affinity_timeout …
	Affinity bool              // selection_fields: ip_src (session affinity)
	Groups   []string          // the Groups it is a member of, sorted
	Owner    cluster.Owner
}

// VIP is one virtual address and port, and the endpoints behind it. No endpoint: rejected, when option reject is true.
type VIP struct {
	Addr     netip.AddrPort
	Backends []netip.AddrPort // sorted
}
