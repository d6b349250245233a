package ovsdb

// The tables of OVN (ovn-nb(5), ovn-sb(5), OVN 25.03) of which an agent reads and writes single
// columns. apply/nbdb describes the others.

// NBGlobal is a row of NB_Global: the only row, with options and the progress of configuration.
type NBGlobal struct {
	UUID        UUID              `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	NBCfg       int               `ovsdb:"nb_cfg"` // a client increments it to request progress
	SBCfg       int               `ovsdb:"sb_cfg"` // the nb_cfg that has reached the southbound database
	HVCfg       int               `ovsdb:"hv_cfg"` // the nb_cfg that has reached the switches
	Options     map[string]string `ovsdb:"options"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// Table returns "NB_Global".
func (NBGlobal) Table() string { return "NB_Global" }

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
