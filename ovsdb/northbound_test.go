package ovsdb_test

import "hairpin/ovsdb"

// The tables of OVN_Northbound that the tests of this package use.

// LogicalSwitch is a row of Logical_Switch: a switch.
type LogicalSwitch struct {
	UUID              ovsdb.UUID        `ovsdb:"_uuid"`
	Name              string            `ovsdb:"name"`
	Ports             []ovsdb.UUID      `ovsdb:"ports"`
	QoSRules          []ovsdb.UUID      `ovsdb:"qos_rules"`
	LoadBalancer      []ovsdb.UUID      `ovsdb:"load_balancer"`
	LoadBalancerGroup []ovsdb.UUID      `ovsdb:"load_balancer_group"`
	OtherConfig       map[string]string `ovsdb:"other_config"`
	ExternalIDs       map[string]string `ovsdb:"external_ids"`
}

// Table returns "Logical_Switch".
func (LogicalSwitch) Table() string { return "Logical_Switch" }

// QoS is a row of QoS: what a switch does to packets that match.
type QoS struct {
	UUID        ovsdb.UUID        `ovsdb:"_uuid"`
	Priority    int               `ovsdb:"priority"`  // 0 to 32767
	Direction   string            `ovsdb:"direction"` // from-lport or to-lport
	Match       string            `ovsdb:"match"`
	Action      map[string]int    `ovsdb:"action"`    // dscp, mark
	Bandwidth   map[string]int    `ovsdb:"bandwidth"` // rate, burst
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// Table returns "QoS".
func (QoS) Table() string { return "QoS" }

// LogicalSwitchPort is a row of Logical_Switch_Port: a port of a switch. Its names are unique.
type LogicalSwitchPort struct {
	UUID             ovsdb.UUID        `ovsdb:"_uuid"`
	Name             string            `ovsdb:"name"`
	Type             string            `ovsdb:"type"` // empty for a VM or pod; router, localnet, remote …
	Options          map[string]string `ovsdb:"options"`
	ParentName       *string           `ovsdb:"parent_name"`
	TagRequest       *int              `ovsdb:"tag_request"`
	Tag              *int              `ovsdb:"tag"` // set by northd when tag_request is 0
	Addresses        []string          `ovsdb:"addresses"`
	DynamicAddresses *string           `ovsdb:"dynamic_addresses"` // set by northd
	PortSecurity     []string          `ovsdb:"port_security"`
	Up               *bool             `ovsdb:"up"` // set by northd
	Enabled          *bool             `ovsdb:"enabled"`
	ExternalIDs      map[string]string `ovsdb:"external_ids"`
}

// Table returns "Logical_Switch_Port".
func (LogicalSwitchPort) Table() string { return "Logical_Switch_Port" }

// LogicalRouter is a row of Logical_Router: a router.
type LogicalRouter struct {
	UUID              ovsdb.UUID        `ovsdb:"_uuid"`
	Name              string            `ovsdb:"name"`
	Ports             []ovsdb.UUID      `ovsdb:"ports"`
	StaticRoutes      []ovsdb.UUID      `ovsdb:"static_routes"`
	Policies          []ovsdb.UUID      `ovsdb:"policies"`
	NAT               []ovsdb.UUID      `ovsdb:"nat"`
	LoadBalancer      []ovsdb.UUID      `ovsdb:"load_balancer"`
	LoadBalancerGroup []ovsdb.UUID      `ovsdb:"load_balancer_group"`
	Enabled           *bool             `ovsdb:"enabled"`
	Options           map[string]string `ovsdb:"options"`
	ExternalIDs       map[string]string `ovsdb:"external_ids"`
}

// Table returns "Logical_Router".
func (LogicalRouter) Table() string { return "Logical_Router" }

// LogicalRouterPort is a row of Logical_Router_Port: a port of a router. Its names are unique.
type LogicalRouterPort struct {
	UUID           ovsdb.UUID        `ovsdb:"_uuid"`
	Name           string            `ovsdb:"name"`
	MAC            string            `ovsdb:"mac"`
	Networks       []string          `ovsdb:"networks"`
	Peer           *string           `ovsdb:"peer"`
	GatewayChassis []ovsdb.UUID      `ovsdb:"gateway_chassis"`
	Enabled        *bool             `ovsdb:"enabled"`
	Options        map[string]string `ovsdb:"options"`
	IPv6RAConfigs  map[string]string `ovsdb:"ipv6_ra_configs"`
	ExternalIDs    map[string]string `ovsdb:"external_ids"`
}

// Table returns "Logical_Router_Port".
func (LogicalRouterPort) Table() string { return "Logical_Router_Port" }

// LogicalRouterStaticRoute is a row of Logical_Router_Static_Route: a static route.
type LogicalRouterStaticRoute struct {
	UUID        ovsdb.UUID        `ovsdb:"_uuid"`
	RouteTable  string            `ovsdb:"route_table"`
	IPPrefix    string            `ovsdb:"ip_prefix"`
	Policy      *string           `ovsdb:"policy"`  // dst-ip (when nil) or src-ip
	Nexthop     string            `ovsdb:"nexthop"` // an address, or discard
	OutputPort  *string           `ovsdb:"output_port"`
	BFD         *ovsdb.UUID       `ovsdb:"bfd"`
	Options     map[string]string `ovsdb:"options"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// Table returns "Logical_Router_Static_Route".
func (LogicalRouterStaticRoute) Table() string { return "Logical_Router_Static_Route" }

// LogicalRouterPolicy is a row of Logical_Router_Policy: a routing policy.
type LogicalRouterPolicy struct {
	UUID        ovsdb.UUID        `ovsdb:"_uuid"`
	Priority    int               `ovsdb:"priority"` // 0 to 32767
	Chain       *string           `ovsdb:"chain"`
	Match       string            `ovsdb:"match"`
	Action      string            `ovsdb:"action"` // allow, drop, reroute or jump
	JumpChain   *string           `ovsdb:"jump_chain"`
	Nexthops    []string          `ovsdb:"nexthops"`
	BFDSessions []ovsdb.UUID      `ovsdb:"bfd_sessions"`
	Options     map[string]string `ovsdb:"options"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// Table returns "Logical_Router_Policy".
func (LogicalRouterPolicy) Table() string { return "Logical_Router_Policy" }

// NAT is a row of NAT: an address translation of a router.
type NAT struct {
	UUID              ovsdb.UUID        `ovsdb:"_uuid"`
	Type              string            `ovsdb:"type"` // snat, dnat or dnat_and_snat
	ExternalIP        string            `ovsdb:"external_ip"`
	ExternalMAC       *string           `ovsdb:"external_mac"`
	ExternalPortRange string            `ovsdb:"external_port_range"` // FIRST-LAST
	LogicalIP         string            `ovsdb:"logical_ip"`
	LogicalPort       *string           `ovsdb:"logical_port"`
	GatewayPort       *ovsdb.UUID       `ovsdb:"gateway_port"`
	AllowedExtIPs     *ovsdb.UUID       `ovsdb:"allowed_ext_ips"`  // an Address_Set
	ExemptedExtIPs    *ovsdb.UUID       `ovsdb:"exempted_ext_ips"` // an Address_Set
	Priority          int               `ovsdb:"priority"`
	Match             string            `ovsdb:"match"`
	Options           map[string]string `ovsdb:"options"`
	ExternalIDs       map[string]string `ovsdb:"external_ids"`
}

// Table returns "NAT".
func (NAT) Table() string { return "NAT" }

// LoadBalancer is a row of Load_Balancer: virtual addresses and their backends.
type LoadBalancer struct {
	UUID            ovsdb.UUID        `ovsdb:"_uuid"`
	Name            string            `ovsdb:"name"`
	VIPs            map[string]string `ovsdb:"vips"`     // address:port to addresses:ports, separated by commas
	Protocol        *string           `ovsdb:"protocol"` // tcp (when nil), udp or sctp
	SelectionFields []string          `ovsdb:"selection_fields"`
	Options         map[string]string `ovsdb:"options"`
	IPPortMappings  map[string]string `ovsdb:"ip_port_mappings"`
	ExternalIDs     map[string]string `ovsdb:"external_ids"`
}

// Table returns "Load_Balancer".
func (LoadBalancer) Table() string { return "Load_Balancer" }

// LoadBalancerGroup is a row of Load_Balancer_Group: load balancers that switches and routers refer
// to together. Its names are unique.
type LoadBalancerGroup struct {
	UUID         ovsdb.UUID   `ovsdb:"_uuid"`
	Name         string       `ovsdb:"name"`
	LoadBalancer []ovsdb.UUID `ovsdb:"load_balancer"`
}

// Table returns "Load_Balancer_Group".
func (LoadBalancerGroup) Table() string { return "Load_Balancer_Group" }

// StaticMACBinding is a row of Static_MAC_Binding: a neighbour of a router port. Port and address
// are unique together.
type StaticMACBinding struct {
	UUID               ovsdb.UUID `ovsdb:"_uuid"`
	LogicalPort        string     `ovsdb:"logical_port"`
	IP                 string     `ovsdb:"ip"`
	MAC                string     `ovsdb:"mac"`
	OverrideDynamicMAC bool       `ovsdb:"override_dynamic_mac"`
}

// Table returns "Static_MAC_Binding".
func (StaticMACBinding) Table() string { return "Static_MAC_Binding" }

// AddressSet is a row of Address_Set: addresses that a match refers to as $name. Its names are
// unique.
type AddressSet struct {
	UUID        ovsdb.UUID        `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	Addresses   []string          `ovsdb:"addresses"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// Table returns "Address_Set".
func (AddressSet) Table() string { return "Address_Set" }
