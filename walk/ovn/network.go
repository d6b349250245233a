// Package ovn runs the pipelines of OVN's logical switches and routers for one packet: port
// security, load balancers, ACLs, QoS, routes, policies and NAT.
//
// Input: the rows of a node's Northbound database, a packet, and the logical port that it enters
// by. Output: the logical port that it leaves by, if it has not ended. What is behind a port of a
// switch is not known here.
//
// Invariants: a row, option or match that the package does not know is an error, as are two rows of
// which OVN may take either. The semantics are those of OVN 25.03, read from ovn-sbctl lflow-list
// and conntrack dumps.
package ovn

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath/nb"
)

// Node is what OVN needs to know about the node that it runs on.
type Node interface {
	// HasPort reports whether an interface of the node is bound to a logical switch port.
	HasPort(name string) bool
	// Resolve returns the MAC of a neighbour on the external network; ok is false if none answers.
	Resolve(a netip.Addr) (m cluster.MAC, ok bool)
}

// Network holds the rows of a node's Northbound database, each linked to the rows that it
// references.
type Network struct {
	chassis     string // of the node
	node        Node
	ports       map[string]*Port // by name
	routerPorts map[string]*routerPort
	sets        map[string]*nb.AddressSet
	bindings    map[binding]*nb.MACBinding
}

type binding struct {
	port string
	ip   netip.Addr
}

// logicalSwitch is a Logical_Switch with its ports.
type logicalSwitch struct {
	qos   []*qos
	acls  []*acl
	row   *nb.Switch
	ports []*Port
	byMAC map[cluster.MAC]*Port
	byIP  map[netip.Addr]cluster.MAC
	// otherIPs has addresses for which OVN does not answer, but machines behind ports may. The MAC
	// is zero if several ports may use the address.
	otherIPs  map[netip.Addr]cluster.MAC
	unknown   *Port // the port that takes frames for unknown addresses
	balancers balancers
	snatZone  string // name of the conntrack zone of hairpins
}

// Port is a Logical_Switch_Port.
type Port struct {
	row  *nb.SwitchPort
	sw   *logicalSwitch
	peer *routerPort // of type "router"
	// security is empty if the port may use any addresses.
	security []securityEntry

	checked bool // check found no error
}

// logicalRouter is a Logical_Router with its ports and the rows that reference it.
type logicalRouter struct {
	row       *nb.Router
	ports     []*routerPort
	byIP      map[netip.Addr]*routerPort // own addresses
	routes    []routeLevel
	policies  []*policy
	nats      []*nat
	externals map[netip.Addr]*nat // by external address
	balancers balancers
	// dnatZone and snatZone are names of conntrack zones.
	dnatZone, snatZone string

	checked bool // check found no error
}

// routerPort is a Logical_Router_Port.
type routerPort struct {
	row    *nb.RouterPort
	router *logicalRouter
	peer   *Port
	nats   []*nat // of a distributed gateway port
}

// New links the rows to each other. It returns an error for a reference to a missing row.
func New(s nb.State, chassis string, node Node) (*Network, error) {
	n := &Network{chassis: chassis, node: node,
		ports: map[string]*Port{}, routerPorts: map[string]*routerPort{},
		sets:     map[string]*nb.AddressSet{},
		bindings: map[binding]*nb.MACBinding{}}
	switches, routers := map[string]*logicalSwitch{}, map[string]*logicalRouter{}
	groups := newGroups(s)
	for _, row := range s {
		switch row := row.(type) {
		case *nb.Switch:
			switches[row.Name] = &logicalSwitch{row: row, byMAC: map[cluster.MAC]*Port{},
				byIP: map[netip.Addr]cluster.MAC{}, otherIPs: map[netip.Addr]cluster.MAC{},
				balancers: groups.of(row.Groups), snatZone: row.Name + "_snat"}
		case *nb.Router:
			routers[row.Name] = &logicalRouter{row: row, byIP: map[netip.Addr]*routerPort{},
				externals: map[netip.Addr]*nat{},
				balancers: groups.of(row.Groups)}
		case *nb.AddressSet:
			n.sets[row.Name] = row
		case *nb.MACBinding:
			n.bindings[binding{row.Port, row.IP}] = row
		}
	}
	if err := n.addRouterPorts(s, routers); err != nil {
		return nil, err
	}
	if err := n.addSwitchPorts(s, switches); err != nil {
		return nil, err
	}
	if err := addRouterRows(s, routers); err != nil {
		return nil, err
	}
	if err := addSwitchRows(s, switches); err != nil {
		return nil, err
	}
	for _, r := range routers {
		r.prepare()
	}
	return n, nil
}

func (n *Network) addRouterPorts(s nb.State, routers map[string]*logicalRouter) error {
	for _, row := range s {
		row, ok := row.(*nb.RouterPort)
		if !ok {
			continue
		}
		r := routers[row.Router]
		if r == nil {
			return missing(row, nb.TableRouter, row.Router)
		}
		p := &routerPort{row: row, router: r}
		r.ports = append(r.ports, p)
		n.routerPorts[row.Name] = p
		for _, n := range row.Networks {
			r.byIP[n.Addr()] = p
		}
	}
	for _, r := range routers {
		slices.SortFunc(r.ports, func(a, b *routerPort) int { return cmp.Compare(a.row.Name, b.row.Name) })
	}
	return nil
}

func (n *Network) addSwitchPorts(s nb.State, switches map[string]*logicalSwitch) error {
	for _, row := range s {
		row, ok := row.(*nb.SwitchPort)
		if !ok {
			continue
		}
		sw := switches[row.Switch]
		if sw == nil {
			return missing(row, nb.TableSwitch, row.Switch)
		}
		p := &Port{row: row, sw: sw}
		if row.Type == "router" {
			if p.peer = n.routerPorts[row.Options["router-port"]]; p.peer == nil {
				return missing(row, nb.TableRouterPort, row.Options["router-port"])
			}
			p.peer.peer = p
		}
		sw.ports = append(sw.ports, p)
		n.ports[row.Name] = p
		if err := cmp.Or(p.addAddresses(), p.addSecurity()); err != nil {
			return fmt.Errorf("%s: %w", row.Key(), err)
		}
	}
	for _, sw := range switches {
		slices.SortFunc(sw.ports, func(a, b *Port) int { return cmp.Compare(a.row.Name, b.row.Name) })
	}
	return nil
}

// addAddresses adds the port's addresses to its switch: "MAC IP…", "router" (those of the peer),
// "unknown".
func (p *Port) addAddresses() error {
	if p.peer != nil {
		for _, n := range p.peer.row.Networks {
			p.sw.byIP[n.Addr()] = p.peer.row.MAC
		}
	}
	for _, a := range p.row.Addresses {
		switch a {
		case "unknown":
			p.sw.unknown = p
			continue
		case "router":
			if p.peer == nil {
				return fmt.Errorf("address %q on a port of type %q", a, p.row.Type)
			}
			p.sw.byMAC[p.peer.row.MAC] = p
			continue
		}
		words := strings.Fields(a)
		if len(words) == 0 {
			return fmt.Errorf("address %q is empty", a)
		}
		mac, err := cluster.ParseMAC(words[0])
		if err != nil {
			return fmt.Errorf("address %q: %w", a, err)
		}
		p.sw.byMAC[mac] = p
		for _, w := range words[1:] {
			ip, _, _ := strings.Cut(w, "/")
			addr, err := netip.ParseAddr(ip)
			if err != nil {
				return fmt.Errorf("address %q: %w", a, err)
			}
			p.sw.byIP[addr] = mac
		}
	}
	return nil
}

// addRouterRows adds routes, policies and NAT rows to their routers.
func addRouterRows(s nb.State, routers map[string]*logicalRouter) error {
	for _, row := range s {
		name := ""
		switch row := row.(type) {
		case *nb.Route:
			name = row.Router
		case *nb.Policy:
			name = row.Router
		case *nb.NAT:
			name = row.Router
		default:
			continue
		}
		r := routers[name]
		if r == nil {
			return missing(row, nb.TableRouter, name)
		}
		switch row := row.(type) {
		case *nb.Route:
			r.addRoute(row)
		case *nb.Policy:
			r.policies = append(r.policies, &policy{row: row})
		case *nb.NAT:
			n := &nat{row: row}
			if row.GatewayPort != "" {
				if err := r.addDistributed(n); err != nil {
					return err
				}
				continue
			}
			r.nats = append(r.nats, n)
			r.externals[row.External] = n
		}
	}
	return nil
}

// addSwitchRows adds QoS and ACL rows to their switches.
func addSwitchRows(s nb.State, switches map[string]*logicalSwitch) error {
	for _, row := range s {
		name := ""
		switch row := row.(type) {
		case *nb.QoS:
			name = row.Switch
		case *nb.ACL:
			name = row.Switch
		default:
			continue
		}
		sw := switches[name]
		if sw == nil {
			return missing(row, nb.TableSwitch, name)
		}
		switch row := row.(type) {
		case *nb.QoS:
			sw.qos = append(sw.qos, &qos{row: row})
		case *nb.ACL:
			sw.acls = append(sw.acls, &acl{row: row})
		}
	}
	for _, sw := range switches {
		slices.SortFunc(sw.qos, func(a, b *qos) int {
			return cmp.Or(cmp.Compare(b.row.Priority, a.row.Priority), cmp.Compare(a.row.Match, b.row.Match))
		})
		slices.SortFunc(sw.acls, func(a, b *acl) int {
			return cmp.Or(cmp.Compare(b.row.Priority, a.row.Priority), cmp.Compare(a.row.Match, b.row.Match))
		})
	}
	return nil
}

func missing(row nb.Row, t nb.Table, name string) error {
	return fmt.Errorf("%s references %s %q, which does not exist", row.Key(), t, name)
}

// macFor returns the MAC with which the switch or one of its routers answers for an address
// (ls_in_arp_rsp). Otherwise it returns the MAC of the only port that may use the address: the
// machine behind it answers.
func (sw *logicalSwitch) macFor(a netip.Addr) (cluster.MAC, bool) {
	m, ok := sw.byIP[a]
	if !ok {
		m = sw.otherIPs[a]
	}
	return m, m != cluster.MAC{}
}

// routerFor returns the router port of a switch with a network that contains an address.
func (sw *logicalSwitch) routerFor(a netip.Addr) *routerPort {
	for _, p := range sw.ports {
		if p.peer != nil && p.peer.network(a).IsValid() {
			return p.peer
		}
	}
	return nil
}

// network returns the port's network that contains an address, or the zero Prefix.
func (p *routerPort) network(a netip.Addr) netip.Prefix {
	for _, n := range p.row.Networks {
		if n.Contains(a) {
			return n
		}
	}
	return netip.Prefix{}
}

// address returns the port's first address of a family.
func (p *routerPort) address(f cluster.Family) netip.Addr {
	for _, n := range p.row.Networks {
		if cluster.FamilyOf(n.Addr()) == f {
			return n.Addr()
		}
	}
	return netip.Addr{}
}

// NATAddresses lists the external addresses of the NAT rows. It leaves out rows of a distributed
// gateway port, whose addresses no other machine knows.
func NATAddresses(s nb.State) []netip.Addr {
	var out []netip.Addr
	for _, row := range s {
		if row, ok := row.(*nb.NAT); ok && row.GatewayPort == "" {
			out = append(out, row.External)
		}
	}
	return out
}

// unknownOption returns an error for an option of a row that walk does not take into account.
func unknownOption(row nb.Row, options map[string]string, known ...string) error {
	for key := range options {
		if !slices.Contains(known, key) {
			return fmt.Errorf("%s: option %q is not known", row.Key(), key)
		}
	}
	return nil
}
