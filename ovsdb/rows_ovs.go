package ovsdb

// The tables of Open_vSwitch (ovs-vswitchd.conf.db(5), Open vSwitch 3.5) that the agent and its CNI
// server use, with the columns that they use.

// OpenVSwitch is a row of Open_vSwitch: the only row. A row that is not referenced from it,
// directly or indirectly, is deleted.
type OpenVSwitch struct {
	UUID          UUID              `ovsdb:"_uuid"`
	Bridges       []UUID            `ovsdb:"bridges"`
	Datapaths     map[string]UUID   `ovsdb:"datapaths"` // by type: system, netdev
	NextCfg       int               `ovsdb:"next_cfg"`  // a client increments it to request progress
	CurCfg        int               `ovsdb:"cur_cfg"`   // the next_cfg that ovs-vswitchd has applied
	OVSVersion    *string           `ovsdb:"ovs_version"`
	DBVersion     *string           `ovsdb:"db_version"`
	DatapathTypes []string          `ovsdb:"datapath_types"`
	IfaceTypes    []string          `ovsdb:"iface_types"`
	OtherConfig   map[string]string `ovsdb:"other_config"`
	ExternalIDs   map[string]string `ovsdb:"external_ids"`
}

// Table returns "Open_vSwitch".
func (OpenVSwitch) Table() string { return "Open_vSwitch" }

// Bridge is a row of Bridge: a bridge. Its names are unique.
type Bridge struct {
	UUID         UUID              `ovsdb:"_uuid"`
	Name         string            `ovsdb:"name"`
	Ports        []UUID            `ovsdb:"ports"`
	DatapathType string            `ovsdb:"datapath_type"` // empty or system: kernel; netdev: userspace
	DatapathID   *string           `ovsdb:"datapath_id"`   // set by ovs-vswitchd
	FailMode     *string           `ovsdb:"fail_mode"`     // standalone (when nil) or secure
	Protocols    []string          `ovsdb:"protocols"`
	FlowTables   map[int]UUID      `ovsdb:"flow_tables"` // by number of the OpenFlow table
	OtherConfig  map[string]string `ovsdb:"other_config"`
	ExternalIDs  map[string]string `ovsdb:"external_ids"`
}

// Table returns "Bridge".
func (Bridge) Table() string { return "Bridge" }

// Port is a row of Port: a port of a bridge. Its names are unique.
type Port struct {
	UUID        UUID              `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	Interfaces  []UUID            `ovsdb:"interfaces"` // one, or those of a bond
	Tag         *int              `ovsdb:"tag"`
	OtherConfig map[string]string `ovsdb:"other_config"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// Table returns "Port".
func (Port) Table() string { return "Port" }

// Interface is a row of Interface: a network device of a port. Its names are unique.
type Interface struct {
	UUID    UUID              `ovsdb:"_uuid"`
	Name    string            `ovsdb:"name"`
	Type    string            `ovsdb:"type"` // empty: a kernel device; internal, patch, geneve …
	Options map[string]string `ovsdb:"options"`
	MAC     *string           `ovsdb:"mac"`

	MTURequest    *int              `ovsdb:"mtu_request"`
	OFPortRequest *int              `ovsdb:"ofport_request"` // 1 to 65279
	OtherConfig   map[string]string `ovsdb:"other_config"`
	ExternalIDs   map[string]string `ovsdb:"external_ids"`

	// set by ovs-vswitchd
	MACInUse   *string `ovsdb:"mac_in_use"`
	MTU        *int    `ovsdb:"mtu"`
	OFPort     *int    `ovsdb:"ofport"` // -1: failed
	IfIndex    *int    `ovsdb:"ifindex"`
	AdminState *string `ovsdb:"admin_state"`
	LinkState  *string `ovsdb:"link_state"`
	Error      *string `ovsdb:"error"`
}

// Table returns "Interface".
func (Interface) Table() string { return "Interface" }

// FlowTable is a row of Flow_Table: settings of an OpenFlow table of a bridge.
type FlowTable struct {
	UUID           UUID              `ovsdb:"_uuid"`
	Name           *string           `ovsdb:"name"`
	FlowLimit      *int              `ovsdb:"flow_limit"`      // learned flows count as well
	OverflowPolicy *string           `ovsdb:"overflow_policy"` // refuse (when nil) or evict
	Groups         []string          `ovsdb:"groups"`          // fields by which flows are evicted
	Prefixes       []string          `ovsdb:"prefixes"`        // fields looked up by prefix
	ExternalIDs    map[string]string `ovsdb:"external_ids"`
}

// Table returns "Flow_Table".
func (FlowTable) Table() string { return "Flow_Table" }

// Datapath is a row of Datapath: settings of all bridges of a datapath type.
type Datapath struct {
	UUID        UUID              `ovsdb:"_uuid"`
	CTZones     map[int]UUID      `ovsdb:"ct_zones"` // by number of the conntrack zone
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// Table returns "Datapath".
func (Datapath) Table() string { return "Datapath" }

// CTZone is a row of CT_Zone: settings of a conntrack zone.
type CTZone struct {
	UUID          UUID              `ovsdb:"_uuid"`
	Limit         *int              `ovsdb:"limit"` // connections
	TimeoutPolicy *UUID             `ovsdb:"timeout_policy"`
	ExternalIDs   map[string]string `ovsdb:"external_ids"`
}

// Table returns "CT_Zone".
func (CTZone) Table() string { return "CT_Zone" }

// InsertPort makes a port of one interface, with the interface's name. The port is on no bridge
// yet: add the returned UUID to the bridge's column ports in the same transaction.
func InsertPort(i Interface, externalIDs map[string]string) (UUID, []Op) {
	i.UUID = NamedUUID("interface " + i.Name)
	p := Port{UUID: NamedUUID("port " + i.Name), Name: i.Name, Interfaces: []UUID{i.UUID}, ExternalIDs: externalIDs}
	return p.UUID, []Op{Insert(i), Insert(p)}
}

// InsertBridge makes a bridge with its internal port and more ports, as "ovs-vsctl add-br" does,
// and wakes ovs-vswitchd.
func InsertBridge(b Bridge, more ...Interface) []Op {
	b.UUID = NamedUUID("bridge " + b.Name)
	var ops []Op
	for _, i := range append([]Interface{{Name: b.Name, Type: "internal"}}, more...) {
		port, made := InsertPort(i, nil)
		b.Ports = append(b.Ports, port)
		ops = append(ops, made...)
	}
	return append(ops, Insert(b), Mutate("Open_vSwitch", InsertInto("bridges", b.UUID), Add("next_cfg", 1)).All())
}
