package nb

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"

	"hairpin/cluster"
)

// Router is a Logical_Router.
type Router struct {
	Name    string
	Options map[string]string // chassis, lb_force_snat_ip, snat-ct-zone …
	Groups  []string          // load balancer groups, sorted
	Owner   cluster.Owner
}

// Key is by name.
func (r *Router) Key() Key              { return Key{TableRouter, r.Name} }
func (r *Router) owner() *cluster.Owner { return &r.Owner }

func (r *Router) same(x Row) bool {
	b, ok := x.(*Router)
	return ok && r.Name == b.Name && maps.Equal(r.Options, b.Options) && sameSet(r.Groups, b.Groups, cmp.Compare)
}

func (r *Router) print(p *printer) {
	p.cmd("lr-add", r.Name)
	p.set("Logical_Router", r.Name, "options", r.Options)
	p.groups("Logical_Router", r.Name, r.Groups)
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

// Key is by name.
func (r *RouterPort) Key() Key              { return Key{TableRouterPort, r.Name} }
func (r *RouterPort) owner() *cluster.Owner { return &r.Owner }

func (r *RouterPort) same(x Row) bool {
	b, ok := x.(*RouterPort)
	return ok && r.Name == b.Name && r.Router == b.Router && r.MAC == b.MAC && r.Chassis == b.Chassis &&
		maps.Equal(r.Options, b.Options) && sameSet(r.Networks, b.Networks, netip.Prefix.Compare)
}

func (r *RouterPort) print(p *printer) {
	p.cmd("lrp-add", r.Router, r.Name, r.MAC.String())
	for _, n := range sorted(r.Networks, netip.Prefix.Compare) {
		p.add(n.String())
	}
	if r.Chassis != "" {
		p.cmd("lrp-set-gateway-chassis", r.Name, r.Chassis, "1")
	}
	p.set("Logical_Router_Port", r.Name, "options", r.Options)
}

// MACBinding is a Static_MAC_Binding: a fixed neighbour of a router port.
type MACBinding struct {
	Port  string
	IP    netip.Addr
	MAC   cluster.MAC // override_dynamic_mac is always true
	Owner cluster.Owner
}

// Key is by port and address.
func (r *MACBinding) Key() Key              { return Key{TableMACBinding, r.Port + " " + r.IP.String()} }
func (r *MACBinding) owner() *cluster.Owner { return &r.Owner }

func (r *MACBinding) same(x Row) bool {
	b, ok := x.(*MACBinding)
	return ok && r.Port == b.Port && r.IP == b.IP && r.MAC == b.MAC
}

func (r *MACBinding) print(p *printer) {
	p.cmd("create", "Static_MAC_Binding", "logical_port="+value(r.Port), "ip="+value(r.IP.String()), "mac="+
		value(r.MAC.String()),
		"override_dynamic_mac=true")
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

// Key is by router, kind of match, prefix and next hop: routes that differ in the next hop only are
// ECMP.
func (r *Route) Key() Key {
	policy := "dst-ip"
	if r.BySource {
		policy = "src-ip"
	}
	return Key{TableRoute, r.Router + " " + policy + " " + r.Prefix.String() + " " + r.NextHop.String()}
}
func (r *Route) owner() *cluster.Owner { return &r.Owner }

func (r *Route) same(x Row) bool {
	b, ok := x.(*Route)
	return ok && r.Router == b.Router && r.Prefix == b.Prefix && r.NextHop == b.NextHop && r.OutPort == b.OutPort &&
		r.BySource == b.BySource
}

func (r *Route) print(p *printer) {
	if r.BySource {
		p.cmd("--policy=src-ip")
		p.add("lr-route-add")
	} else {
		p.cmd("lr-route-add")
	}
	p.add(r.Router, address(r.Prefix), r.NextHop.String())
	if r.OutPort != "" {
		p.add(r.OutPort)
	}
}

// Action is the action of a Policy or an ACL.
type Action string

// The actions of a Logical_Router_Policy; an ACL has the first two.
const (
	Allow   Action = "allow"
	Drop    Action = "drop"
	Reroute Action = "reroute"
)

// Policy is a Logical_Router_Policy.
type Policy struct {
	Router   string
	Priority int // 0 to 32767, higher wins
	Match    string
	Action   Action
	NextHops []netip.Addr      // of Reroute: several are ECMP; sorted
	Options  map[string]string // pkt_mark
	Owner    cluster.Owner
}

// Key is by router, priority and match.
func (r *Policy) Key() Key {
	return Key{TablePolicy, fmt.Sprintf("%s %d %s", r.Router, r.Priority, r.Match)}
}
func (r *Policy) owner() *cluster.Owner { return &r.Owner }

func (r *Policy) same(x Row) bool {
	b, ok := x.(*Policy)
	return ok && r.Router == b.Router && r.Priority == b.Priority && r.Match == b.Match && r.Action == b.Action &&
		maps.Equal(r.Options, b.Options) && sameSet(r.NextHops, b.NextHops, netip.Addr.Compare)
}

func (r *Policy) print(p *printer) {
	p.cmd("lr-policy-add", r.Router, fmt.Sprint(r.Priority), r.Match, string(r.Action))
	if len(r.NextHops) > 0 {
		p.add(joined(sorted(r.NextHops, netip.Addr.Compare)))
	}
	p.pairs(r.Options)
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
	// LogicalPort and ExternalMAC are for DNATAndSNAT: the node of that switch port translates, and
	// its packets leave with that MAC.
	LogicalPort string
	ExternalMAC cluster.MAC
	// GatewayPort is the distributed gateway port of the row, on a router with several; empty = OVN
	// finds it.
	GatewayPort string
	Owner       cluster.Owner
}

// Key is by router, type, addresses and match.
func (r *NAT) Key() Key {
	return Key{TableNAT, fmt.Sprintf("%s %s %s %s %s", r.Router, r.Type, r.External, r.Logical, r.Match)}
}
func (r *NAT) owner() *cluster.Owner { return &r.Owner }

func (r *NAT) same(x Row) bool {
	b, ok := x.(*NAT)
	return ok && r.Router == b.Router && r.Type == b.Type && r.External == b.External && r.Logical == b.Logical &&
		r.PortRange == b.PortRange && r.Match == b.Match && r.LogicalPort == b.LogicalPort &&
		r.ExternalMAC == b.ExternalMAC && r.GatewayPort == b.GatewayPort
}

func (r *NAT) print(p *printer) {
	var flags []string
	if r.Match != "" {
		flags = append(flags, "--match="+r.Match)
	}
	if r.PortRange != "" {
		flags = append(flags, "--portrange")
	}
	if r.GatewayPort != "" {
		flags = append(flags, "--gateway-port="+r.GatewayPort)
	}
	p.cmd(append(flags, "lr-nat-add", r.Router, string(r.Type), r.External.String(), address(r.Logical))...)
	if r.LogicalPort != "" {
		p.add(r.LogicalPort, r.ExternalMAC.String())
	}
	if r.PortRange != "" {
		p.add(r.PortRange)
	}
}
