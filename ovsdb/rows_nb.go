package ovsdb

// The tables of OVN_Northbound (ovn-nb(5), OVN 25.03) that a node's agent reads and writes, with the columns it uses.

// NBGlobal is a row of NB_Global: the only row, with options and the progress of configuration.
type NBGlobal struct {
	UUID           UUID              `ovsdb:"_uuid"`
	Name           string            `ovsdb:"name"`
	NBCfg          int               `ovsdb:"nb_cfg"`           // a client adds one to ask for progress
	NBCfgTimestamp int               `ovsdb:"nb_cfg_timestamp"` // milliseconds since 1970, as the other two
	SBCfg          int               `ovsdb:"sb_cfg"`           // the nb_cfg that is in the southbound database
	SBCfgTimestamp int               `ovsdb:"sb_cfg_timestamp"`
	HVCfg          int               `ovsdb:"hv_cfg"` // the nb_cfg that is in the switches
	HVCfgTimestamp int               `ovsdb:"hv_cfg_timestamp"`
	Options        map[string]string `ovsdb:"options"`
	ExternalIDs    map[string]string `ovsdb:"external_ids"`
}

// Table returns "NB_Global".
func (NBGlobal) Table() string { return "NB_Global" }

// LogicalSwitch is a row of Logical_Switch: a switch.
type LogicalSwitch struct {
	UUID              UUID              `ovsdb:"_uuid"`
	Name              string            `ovsdb:"name"`
	Ports             []UUID            `ovsdb:"ports"`
	QoSRules          []UUID            `ovsdb:"qos_rules"`
	LoadBalancer      []UUID            `ovsdb:"load_balancer"`
	LoadBalancerGroup []UUID            `ovsdb:"load_balancer_group"`
	OtherConfig       map[string]string `ovsdb:"other_config"`
	ExternalIDs       map[string]string `ovsdb:"external_ids"`
}

// Table returns "Logical_Switch".
func (LogicalSwitch) Table() string { return "Logical_Switch" }

// QoS is a row of QoS: what a switch does to packets that match.
type QoS struct {
	UUID        UUID              `ovsdb:"_uuid"`
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
	UUID             UUID              `ovsdb:"_uuid"`
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
	UUID              UUID              `ovsdb:"_uuid"`
	Name              string            `ovsdb:"name"`
	Ports             []UUID            `ovsdb:"ports"`
	StaticRoutes      []UUID            `ovsdb:"static_routes"`
	Policies          []UUID            `ovsdb:"policies"`
	NAT               []UUID            `ovsdb:"nat"`
	LoadBalancer      []UUID            `ovsdb:"load_balancer"`
	LoadBalancerGroup []UUID            `ovsdb:"load_balancer_group"`
	Enabled           *bool             `ovsdb:"enabled"`
	Options           map[string]string `ovsdb:"options"`
	ExternalIDs       map[string]string `ovsdb:"external_ids"`
}

// Table returns "Logical_Router".
func (LogicalRouter) Table() string { return "Logical_Router" }

// LogicalRouterPort is a row of Logical_Router_Port: a port of a router. Its names are unique.
type LogicalRouterPort struct {
	UUID           UUID              `ovsdb:"_uuid"`
	Name           string            `ovsdb:"name"`
	MAC            string            `ovsdb:"mac"`
	Networks       []string          `ovsdb:"networks"`
	Peer           *string           `ovsdb:"peer"`
	GatewayChassis []UUID            `ovsdb:"gateway_chassis"`
	Enabled        *bool             `ovsdb:"enabled"`
	Options        map[string]string `ovsdb:"options"`
	IPv6RAConfigs  map[string]string `ovsdb:"ipv6_ra_configs"`
	ExternalIDs    map[string]string `ovsdb:"external_ids"`
}

// Table returns "Logical_Router_Port".
func (LogicalRouterPort) Table() string { return "Logical_Router_Port" }

// LogicalRouterStaticRoute is a row of Logical_Router_Static_Route: a static route.
type LogicalRouterStaticRoute struct {
	UUID        UUID              `ovsdb:"_uuid"`
	RouteTable  string            `ovsdb:"route_table"`
	IPPrefix    string            `ovsdb:"ip_prefix"`
	Policy      *string           `ovsdb:"policy"`  // dst-ip (when nil) or src-ip
	Nexthop     string            `ovsdb:"nexthop"` // an address, or discard
	OutputPort  *string           `ovsdb:"output_port"`
	BFD         *UUID             `ovsdb:"bfd"`
	Options     map[string]string `ovsdb:"options"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// Table returns "Logical_Router_Static_Route".
func (LogicalRouterStaticRoute) Table() string { return "Logical_Router_Static_Route" }

// LogicalRouterPolicy is a row of Logical_Router_Policy: a routing policy.
type LogicalRouterPolicy struct {
	UUID        UUID              `ovsdb:"_uuid"`
	Priority    int               `ovsdb:"priority"` // 0 to 32767
	Chain       *string           `ovsdb:"chain"`
	Match       string            `ovsdb:"match"`
	Action      string            `ovsdb:"action"` // allow, drop, reroute or jump
	JumpChain   *string           `ovsdb:"jump_chain"`
	Nexthops    []string          `ovsdb:"nexthops"`
	BFDSessions []UUID            `ovsdb:"bfd_sessions"`
	Options     map[string]string `ovsdb:"options"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// Table returns "Logical_Router_Policy".
func (LogicalRouterPolicy) Table() string { return "Logical_Router_Policy" }

// NAT is a row of NAT: an address translation of a router.
type NAT struct {
	UUID              UUID              `ovsdb:"_uuid"`
	Type              string            `ovsdb:"type"` // snat, dnat or dnat_and_snat
	ExternalIP        string            `ovsdb:"external_ip"`
	ExternalMAC       *string           `ovsdb:"external_mac"`
	ExternalPortRange string            `ovsdb:"external_port_range"` // FIRST-LAST
	LogicalIP         string            `ovsdb:"logical_ip"`
	LogicalPort       *string           `ovsdb:"logical_port"`
	GatewayPort       *UUID             `ovsdb:"gateway_port"`
	AllowedExtIPs     *UUID             `ovsdb:"allowed_ext_ips"`  // an Address_Set
	ExemptedExtIPs    *UUID             `ovsdb:"exempted_ext_ips"` // an Address_Set
	Priority          int               `ovsdb:"priority"`
	Match             string            `ovsdb:"match"`
	Options           map[string]string `ovsdb:"options"`
	ExternalIDs       map[string]string `ovsdb:"external_ids"`
}

// Table returns "NAT".
func (NAT) Table() string { return "NAT" }

// LoadBalancer is a row of Load_Balancer: virtual addresses and their backends.
type LoadBalancer struct {
	UUID            UUID              `ovsdb:"_uuid"`
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

// LoadBalancerGroup is a row of Load_Balancer_Group: load balancers that switches and routers refer to together. Its names are unique.
type LoadBalancerGroup struct {
	UUID         UUID   `ovsdb:"_uuid"`
	Name         string `ovsdb:"name"`
	LoadBalancer []UUID `ovsdb:"load_balancer"`
}

// Table returns "Load_Balancer_Group".
func (LoadBalancerGroup) Table() string { return "Load_Balancer_Group" }

// StaticMACBinding is a row of Static_MAC_Binding: a neighbour of a router port. Port and address are unique together.
type StaticMACBinding struct {
	UUID               UUID   `ovsdb:"_uuid"`
	LogicalPort        string `ovsdb:"logical_port"`
	IP                 string `ovsdb:"ip"`
	MAC                string `ovsdb:"mac"`
	OverrideDynamicMAC bool   `ovsdb:"override_dynamic_mac"`
}

// Table returns "Static_MAC_Binding".
func (StaticMACBinding) Table() string { return "Static_MAC_Binding" }

// AddressSet is a row of Address_Set: addresses that a match refers to as $name. Its names are unique.
type AddressSet struct {
	UUID        UUID              `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	Addresses   []string          `ovsdb:"addresses"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// Table returns "Address_Set".
func (AddressSet) Table() string { return "Address_Set" }

// GatewayChassis is a row of Gateway_Chassis: a chassis for a router port. Its names are unique.
type GatewayChassis struct {
	UUID        UUID              `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	ChassisName string            `ovsdb:"chassis_name"`
	Priority    int               `ovsdb:"priority"`
	Options     map[string]string `ovsdb:"options"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// Table returns "Gateway_Chassis".
func (GatewayChassis) Table() string { return "Gateway_Chassis" }

// BFD is a row of BFD: a supervised next hop. Port and address are unique together.
type BFD struct {
	UUID        UUID              `ovsdb:"_uuid"`
	LogicalPort string            `ovsdb:"logical_port"`
	DstIP       string            `ovsdb:"dst_ip"`
	MinTX       *int              `ovsdb:"min_tx"` // milliseconds
	MinRX       *int              `ovsdb:"min_rx"` // milliseconds
	DetectMult  *int              `ovsdb:"detect_mult"`
	Status      *string           `ovsdb:"status"` // down, init, up or admin_down; set by OVN
	Options     map[string]string `ovsdb:"options"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// Table returns "BFD".
func (BFD) Table() string { return "BFD" }
