package nb

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"

	"hairpin/cluster"
)

// Table orders the tables so that a row comes after the rows it references.
type Table uint8

// The tables, in the order in which rows are created; they are removed in reverse.
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
	TableACL
	TableMACBinding
	TableRoute
	TablePolicy
	TableNAT
	TableLoadBalancer
)

// tables holds each table's name in OVN's schema, and an empty row.
var tables = [...]struct {
	name string
	row  Row
}{
	TableGlobal:       {"NB_Global", (*Global)(nil)},
	TableChassis:      {"Chassis", (*Chassis)(nil)},
	TableAddressSet:   {"Address_Set", (*AddressSet)(nil)},
	TableGroup:        {"Load_Balancer_Group", (*Group)(nil)},
	TableRouter:       {"Logical_Router", (*Router)(nil)},
	TableRouterPort:   {"Logical_Router_Port", (*RouterPort)(nil)},
	TableSwitch:       {"Logical_Switch", (*Switch)(nil)},
	TableSwitchPort:   {"Logical_Switch_Port", (*SwitchPort)(nil)},
	TableQoS:          {"QoS", (*QoS)(nil)},
	TableACL:          {"ACL", (*ACL)(nil)},
	TableMACBinding:   {"Static_MAC_Binding", (*MACBinding)(nil)},
	TableRoute:        {"Logical_Router_Static_Route", (*Route)(nil)},
	TablePolicy:       {"Logical_Router_Policy", (*Policy)(nil)},
	TableNAT:          {"NAT", (*NAT)(nil)},
	TableLoadBalancer: {"Load_Balancer", (*LoadBalancer)(nil)},
}

// String returns the table's name in OVN's schema.
func (t Table) String() string {
	if int(t) < len(tables) {
		return tables[t].name
	}
	return fmt.Sprintf("Table(%d)", uint8(t))
}

// Rows returns a nil pointer of every type of row, in the order of the tables.
func Rows() []Row {
	list := make([]Row, 0, len(tables))
	for _, t := range tables {
		list = append(list, t.row)
	}
	return list
}

// Global is NB_Global: the zone's name and our options. It has only one row.
type Global struct {
	Name    string            // zone name: the node's
	Options map[string]string // only our keys
	Owner   cluster.Owner
}

// Key returns the only key of the table.
func (*Global) Key() Key                { return Key{TableGlobal, "."} }
func (r *Global) owner() *cluster.Owner { return &r.Owner }

func (r *Global) same(x Row) bool {
	b, ok := x.(*Global)
	return ok && r.Name == b.Name && maps.Equal(r.Options, b.Options)
}

func (r *Global) print(p *printer) {
	p.cmd("set", "NB_Global", ".", "name="+value(r.Name))
	p.settings("options", r.Options)
}

// Chassis is a remote node in the Southbound database: a Chassis with other_config:is-remote=true
// and one Geneve Encap.
type Chassis struct {
	Name     string     // system-id of the remote node
	Hostname string     // node name
	IP       netip.Addr // tunnel endpoint
	Owner    cluster.Owner
}

// Key is by name.
func (r *Chassis) Key() Key              { return Key{TableChassis, r.Name} }
func (r *Chassis) owner() *cluster.Owner { return &r.Owner }

func (r *Chassis) same(x Row) bool {
	b, ok := x.(*Chassis)
	return ok && r.Name == b.Name && r.Hostname == b.Hostname && r.IP == b.IP
}

func (r *Chassis) print(p *printer) {
	p.cmd("chassis-add", r.Name, "geneve", r.IP.String())
	p.cmd("set", "Chassis", r.Name, "hostname="+value(r.Hostname), "other_config:is-remote=true")
}

// AddressSet is a set of addresses that policies reference by name ($name).
type AddressSet struct {
	Name      string
	Addresses []netip.Prefix // full-length prefixes are single addresses; sorted
	Owner     cluster.Owner
}

// Key is by name.
func (r *AddressSet) Key() Key              { return Key{TableAddressSet, r.Name} }
func (r *AddressSet) owner() *cluster.Owner { return &r.Owner }

func (r *AddressSet) same(x Row) bool {
	b, ok := x.(*AddressSet)
	return ok && r.Name == b.Name && sameSet(r.Addresses, b.Addresses, netip.Prefix.Compare)
}

func (r *AddressSet) print(p *printer) {
	p.cmd("create", "Address_Set", "name="+value(r.Name))
	if len(r.Addresses) > 0 {
		p.add("addresses=" + addresses(r.Addresses))
	}
}

// Switch is a Logical_Switch.
type Switch struct {
	Name        string
	OtherConfig map[string]string
	Groups      []string // load balancer groups, sorted
	Owner       cluster.Owner
}

// Key is by name.
func (r *Switch) Key() Key              { return Key{TableSwitch, r.Name} }
func (r *Switch) owner() *cluster.Owner { return &r.Owner }

func (r *Switch) same(x Row) bool {
	b, ok := x.(*Switch)
	return ok && r.Name == b.Name && maps.Equal(r.OtherConfig, b.OtherConfig) &&
		sameSet(r.Groups, b.Groups, cmp.Compare)
}

func (r *Switch) print(p *printer) {
	p.cmd("ls-add", r.Name)
	p.set("Logical_Switch", r.Name, "other_config", r.OtherConfig)
	p.groups("Logical_Switch", r.Name, r.Groups)
}

// SwitchPort is a Logical_Switch_Port.
type SwitchPort struct {
	Name      string
	Switch    string
	Type      string   // "", "router", "localnet", "remote"
	Addresses []string // in OVN's format: "MAC IP IP", "router", "unknown"
	// PortSecurity lists the only addresses that packets from the port may have, "MAC IP IP"; empty
	// = any.
	PortSecurity []string
	Options      map[string]string // router-port, network_name, requested-tnl-key …
	Owner        cluster.Owner
}

// Key is by name.
func (r *SwitchPort) Key() Key              { return Key{TableSwitchPort, r.Name} }
func (r *SwitchPort) owner() *cluster.Owner { return &r.Owner }

func (r *SwitchPort) same(x Row) bool {
	b, ok := x.(*SwitchPort)
	return ok && r.Name == b.Name && r.Switch == b.Switch && r.Type == b.Type && maps.Equal(r.Options, b.Options) &&
		sameSet(r.Addresses, b.Addresses, cmp.Compare) && sameSet(r.PortSecurity, b.PortSecurity, cmp.Compare)
}

func (r *SwitchPort) print(p *printer) {
	p.cmd("lsp-add", r.Switch, r.Name)
	if r.Type != "" {
		p.cmd("lsp-set-type", r.Name, r.Type)
	}
	if len(r.Addresses) > 0 {
		p.cmd("lsp-set-addresses", r.Name)
		p.add(sorted(r.Addresses, cmp.Compare)...)
	}
	if len(r.PortSecurity) > 0 {
		p.cmd("lsp-set-port-security", r.Name)
		p.add(sorted(r.PortSecurity, cmp.Compare)...)
	}
	if len(r.Options) > 0 {
		p.cmd("lsp-set-options", r.Name)
		p.pairs(r.Options)
	}
}

// QoS is a row of the QoS table of a switch. It marks packets that arrive at the switch's ports
// (direction from-lport).
type QoS struct {
	Switch   string
	Priority int // 0 to 32767, higher wins
	Match    string
	Mark     uint32 // pkt.mark of packets that match
	Owner    cluster.Owner
}

// Key is by switch, priority and match.
func (r *QoS) Key() Key              { return Key{TableQoS, fmt.Sprintf("%s %d %s", r.Switch, r.Priority, r.Match)} }
func (r *QoS) owner() *cluster.Owner { return &r.Owner }

func (r *QoS) same(x Row) bool {
	b, ok := x.(*QoS)
	return ok && r.Switch == b.Switch && r.Priority == b.Priority && r.Match == b.Match && r.Mark == b.Mark
}

// print writes mark 0 by create, because qos-add does not accept it.
func (r *QoS) print(p *printer) {
	if r.Mark != 0 {
		p.cmd("qos-add", r.Switch, "from-lport", fmt.Sprint(r.Priority), r.Match, fmt.Sprintf("mark=%d", r.Mark))
		return
	}
	p.cmd("--id=@q", "create", "QoS", "direction=from-lport", fmt.Sprintf("priority=%d", r.Priority), "match="+
		value(r.Match), "action:mark=0")
	p.cmd("add", "Logical_Switch", r.Switch, "qos_rules", "@q")
}

// ACL is a row of the ACL table of a switch. It applies to packets that arrive at its ports
// (direction from-lport), after load balancing (options:apply-after-lb): it sees the endpoint's
// port.
type ACL struct {
	Switch   string
	Priority int // 0 to 32767, higher wins
	Match    string
	Action   Action // Allow or Drop
	Owner    cluster.Owner
}

// Key is by switch, priority and match.
func (r *ACL) Key() Key              { return Key{TableACL, fmt.Sprintf("%s %d %s", r.Switch, r.Priority, r.Match)} }
func (r *ACL) owner() *cluster.Owner { return &r.Owner }

func (r *ACL) same(x Row) bool {
	b, ok := x.(*ACL)
	return ok && r.Switch == b.Switch && r.Priority == b.Priority && r.Match == b.Match && r.Action == b.Action
}

func (r *ACL) print(p *printer) {
	p.cmd("--apply-after-lb", "acl-add", r.Switch, "from-lport", fmt.Sprint(r.Priority), r.Match, string(r.Action))
}
