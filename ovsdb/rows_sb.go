package ovsdb

// The tables of OVN_Southbound (ovn-sb(5), OVN 25.03) that a node's agent reads and writes, with the columns it uses.

// SBGlobal is a row of SB_Global: the only row.
type SBGlobal struct {
	UUID        UUID              `ovsdb:"_uuid"`
	NBCfg       int               `ovsdb:"nb_cfg"`
	Options     map[string]string `ovsdb:"options"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// Table returns "SB_Global".
func (SBGlobal) Table() string { return "SB_Global" }

// Chassis is a row of Chassis: a node. Its names are unique. Those of other zones are written by the agent.
type Chassis struct {
	UUID        UUID              `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	Hostname    string            `ovsdb:"hostname"`
	Encaps      []UUID            `ovsdb:"encaps"` // at least one
	NBCfg       int               `ovsdb:"nb_cfg"`
	OtherConfig map[string]string `ovsdb:"other_config"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// Table returns "Chassis".
func (Chassis) Table() string { return "Chassis" }

// Encap is a row of Encap: a tunnel address of a chassis. Type and address are unique together.
type Encap struct {
	UUID        UUID              `ovsdb:"_uuid"`
	Type        string            `ovsdb:"type"` // geneve, stt or vxlan
	IP          string            `ovsdb:"ip"`
	Options     map[string]string `ovsdb:"options"`
	ChassisName string            `ovsdb:"chassis_name"`
}

// Table returns "Encap".
func (Encap) Table() string { return "Encap" }

// DatapathBinding is a row of Datapath_Binding: a logical switch or router.
type DatapathBinding struct {
	UUID        UUID              `ovsdb:"_uuid"`
	TunnelKey   int               `ovsdb:"tunnel_key"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// Table returns "Datapath_Binding".
func (DatapathBinding) Table() string { return "Datapath_Binding" }

// PortBinding is a row of Port_Binding: a logical port and where it is. The names are unique.
type PortBinding struct {
	UUID             UUID              `ovsdb:"_uuid"`
	LogicalPort      string            `ovsdb:"logical_port"`
	Type             string            `ovsdb:"type"`
	Datapath         UUID              `ovsdb:"datapath"`
	TunnelKey        int               `ovsdb:"tunnel_key"`
	Chassis          *UUID             `ovsdb:"chassis"`
	RequestedChassis *UUID             `ovsdb:"requested_chassis"`
	Up               *bool             `ovsdb:"up"`
	MAC              []string          `ovsdb:"mac"`
	Options          map[string]string `ovsdb:"options"`
	ExternalIDs      map[string]string `ovsdb:"external_ids"`
}

// Table returns "Port_Binding".
func (PortBinding) Table() string { return "Port_Binding" }
