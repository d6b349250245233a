package nbdb

import (
	"net/netip"
	"slices"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/nb"
	"hairpin/ovsdb"
)

// convert reads a row of the mirror as one of nb's; nil when it is gone, or not one that nb has a type for. Own tells
// whether it is ours.
func (m *model) convert(table string, id ovsdb.UUID) (_ nb.Row, own bool) {
	c := converter{m: m}
	var row nb.Row
	switch table {
	case "NB_Global":
		row = read(m.nb, id, c.global)
	case "Chassis":
		row = read(m.sb, id, c.chassis)
	case "Address_Set":
		row = read(m.nb, id, c.addressSet)
	case "Load_Balancer_Group":
		row = read(m.nb, id, c.group)
	case "Logical_Router":
		row = read(m.nb, id, c.router)
	case "Logical_Router_Port":
		row = read(m.nb, id, c.routerPort)
	case "Logical_Switch":
		row = read(m.nb, id, c.lswitch)
	case "Logical_Switch_Port":
		row = read(m.nb, id, c.switchPort)
	case "QoS":
		row = read(m.nb, id, c.qos)
	case "Static_MAC_Binding":
		row = read(m.nb, id, c.macBinding)
	case "Logical_Router_Static_Route":
		row = read(m.nb, id, c.route)
	case "Logical_Router_Policy":
		row = read(m.nb, id, c.policy)
	case "NAT":
		row = read(m.nb, id, c.nat)
	case "Load_Balancer":
		row = read(m.nb, id, c.loadBalancer)
	}
	if row == nil {
		return nil, false
	}
	if c.wrong != "" && c.own {
		row = altered(row, c.wrong)
	}
	return row, c.own
}

func read[T ovsdb.Row](v ovsdb.View, id ovsdb.UUID, convert func(*T) nb.Row) nb.Row {
	if v == (ovsdb.View{}) {
		return nil
	}
	if row := ovsdb.Get[T](v, id); row != nil {
		return convert(row)
	}
	return nil
}

// converter reads one row.
type converter struct {
	m     *model
	own   bool
	wrong string // the first column with a value that we did not write, and that nb has no word for
}

// expect notes a column that is not as we write it.
func (c *converter) expect(column string, holds bool) {
	if !holds && c.wrong == "" {
		c.wrong = column
	}
}

// parse reads a value; a bad one is noted, and gives the zero value.
func parse[T any](c *converter, column, s string, of func(string) (T, error)) T {
	v, err := of(s)
	c.expect(column, err == nil)
	return v
}

// owner reads the owner, whose presence makes the row ours.
func (c *converter) owner(ids map[string]string, key string) cluster.Owner {
	text, own := ids[key]
	c.own = own
	o := cluster.ParseOwner(text)
	c.expect("owner", o.String() == text)
	return o
}

// ledger reads the owner of a row without external_ids.
func (c *converter) ledger(key nb.Key) cluster.Owner {
	if global := ovsdb.First[ovsdb.NBGlobal](c.m.nb); global != nil {
		return c.owner(global.ExternalIDs, ledgerKey(key))
	}
	return cluster.Owner{}
}

// claimed gives the options that are ours. Maps of the mirror are never written to, so one that has nothing else is
// given as it is.
func claimed(t nb.Table, all map[string]string) map[string]string {
	mine := 0
	for k := range all {
		if nb.Claimed(t, k) {
			mine++
		}
	}
	switch mine {
	case len(all):
		return all
	case 0:
		return nil
	}
	some := make(map[string]string, mine)
	for k, v := range all {
		if nb.Claimed(t, k) {
			some[k] = v
		}
	}
	return some
}

func text(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}

func (c *converter) global(r *ovsdb.NBGlobal) nb.Row {
	return &nb.Global{Name: r.Name, Options: claimed(nb.TableGlobal, r.Options), Owner: c.owner(r.ExternalIDs, claims.KeyOwner)}
}

func (c *converter) chassis(r *ovsdb.Chassis) nb.Row {
	out := &nb.Chassis{Name: r.Name, Hostname: r.Hostname, Owner: c.owner(r.ExternalIDs, claims.KeyOwner)}
	c.expect("other_config", r.OtherConfig["is-remote"] == "true")
	c.expect("encaps", len(r.Encaps) == 1)
	for _, id := range r.Encaps[:min(1, len(r.Encaps))] {
		e := get[ovsdb.Encap](c.m.sb, id)
		out.IP = parse(c, "encaps", e.IP, netip.ParseAddr)
		c.expect("encaps", e.Type == "geneve" && e.Options["csum"] == "true" && e.ChassisName == r.Name)
	}
	return out
}

func (c *converter) addressSet(r *ovsdb.AddressSet) nb.Row {
	out := &nb.AddressSet{Name: r.Name, Owner: c.owner(r.ExternalIDs, claims.KeyOwner)}
	for _, s := range r.Addresses {
		out.Addresses = append(out.Addresses, parse(c, "addresses", s, nb.ParsePrefix))
	}
	slices.SortFunc(out.Addresses, netip.Prefix.Compare)
	return out
}

func (c *converter) group(r *ovsdb.LoadBalancerGroup) nb.Row {
	out := &nb.Group{Name: r.Name}
	out.Owner = c.ledger(out.Key())
	return out
}

// groups gives the names of groups, sorted. Load balancers come in thousands with the same list, which they share.
func (c *converter) groups(ids []ovsdb.UUID) []string {
	if len(ids) == 0 {
		return nil
	}
	if last := &c.m.named; len(last.ids) == len(ids) && &last.ids[0] == &ids[0] {
		return last.names
	}
	names := make([]string, 0, len(ids))
	for _, id := range ids {
		names = append(names, get[ovsdb.LoadBalancerGroup](c.m.nb, id).Name)
	}
	slices.Sort(names)
	c.m.named.ids, c.m.named.names = ids, names
	return names
}

func (c *converter) router(r *ovsdb.LogicalRouter) nb.Row {
	c.expect("enabled", r.Enabled == nil)
	return &nb.Router{Name: r.Name, Options: claimed(nb.TableRouter, r.Options), Groups: c.groups(r.LoadBalancerGroup),
		Owner: c.owner(r.ExternalIDs, claims.KeyOwner)}
}

// inRouter and inSwitch name the parent of a row; empty while there is none.
func (c *converter) inRouter(id ovsdb.UUID) string {
	return get[ovsdb.LogicalRouter](c.m.nb, c.m.parents[id]).Name
}

func (c *converter) inSwitch(id ovsdb.UUID) string {
	return get[ovsdb.LogicalSwitch](c.m.nb, c.m.parents[id]).Name
}

func (c *converter) routerPort(r *ovsdb.LogicalRouterPort) nb.Row {
	out := &nb.RouterPort{Name: r.Name, Router: c.inRouter(r.UUID), Options: claimed(nb.TableRouterPort, r.Options),
		Owner: c.owner(r.ExternalIDs, claims.KeyOwner)}
	out.MAC = parse(c, "mac", r.MAC, cluster.ParseMAC)
	for _, s := range r.Networks {
		out.Networks = append(out.Networks, parse(c, "networks", s, netip.ParsePrefix))
	}
	slices.SortFunc(out.Networks, netip.Prefix.Compare)
	c.expect("enabled", r.Enabled == nil)
	c.expect("gateway_chassis", len(r.GatewayChassis) <= 1)
	for _, id := range r.GatewayChassis[:min(1, len(r.GatewayChassis))] {
		g := get[ovsdb.GatewayChassis](c.m.nb, id)
		out.Chassis = g.ChassisName
		c.expect("gateway_chassis", g.Priority == 1 && g.ChassisName != "")
	}
	return out
}

func (c *converter) lswitch(r *ovsdb.LogicalSwitch) nb.Row {
	return &nb.Switch{Name: r.Name, OtherConfig: claimed(nb.TableSwitch, r.OtherConfig), Groups: c.groups(r.LoadBalancerGroup),
		Owner: c.owner(r.ExternalIDs, claims.KeyOwner)}
}

func (c *converter) switchPort(r *ovsdb.LogicalSwitchPort) nb.Row {
	c.expect("enabled", r.Enabled == nil)
	return &nb.SwitchPort{Name: r.Name, Switch: c.inSwitch(r.UUID), Type: r.Type, Addresses: r.Addresses,
		PortSecurity: r.PortSecurity, Options: claimed(nb.TableSwitchPort, r.Options), Owner: c.owner(r.ExternalIDs, claims.KeyOwner)}
}

func (c *converter) qos(r *ovsdb.QoS) nb.Row {
	c.expect("direction", r.Direction == "from-lport")
	mark, marks := r.Action["mark"]
	c.expect("action", len(r.Action) == 1 && marks && mark >= 0)
	c.expect("bandwidth", len(r.Bandwidth) == 0)
	return &nb.QoS{Switch: c.inSwitch(r.UUID), Priority: r.Priority, Match: r.Match, Mark: uint32(mark), Owner: c.owner(r.ExternalIDs, claims.KeyOwner)}
}

func (c *converter) macBinding(r *ovsdb.StaticMACBinding) nb.Row {
	out := &nb.MACBinding{Port: r.LogicalPort, IP: parse(c, "ip", r.IP, netip.ParseAddr), MAC: parse(c, "mac", r.MAC, cluster.ParseMAC)}
	c.expect("override_dynamic_mac", r.OverrideDynamicMAC)
	out.Owner = c.ledger(out.Key())
	return out
}

func (c *converter) route(r *ovsdb.LogicalRouterStaticRoute) nb.Row {
	c.expect("route_table", r.RouteTable == "")
	return &nb.Route{Router: c.inRouter(r.UUID), Prefix: parse(c, "ip_prefix", r.IPPrefix, nb.ParsePrefix),
		NextHop: parse(c, "nexthop", r.Nexthop, netip.ParseAddr), OutPort: text(r.OutputPort), BySource: text(r.Policy) == "src-ip",
		Owner: c.owner(r.ExternalIDs, claims.KeyOwner)}
}

func (c *converter) policy(r *ovsdb.LogicalRouterPolicy) nb.Row {
	out := &nb.Policy{Router: c.inRouter(r.UUID), Priority: r.Priority, Match: r.Match, Action: nb.Action(r.Action),
		Options: claimed(nb.TablePolicy, r.Options), Owner: c.owner(r.ExternalIDs, claims.KeyOwner)}
	for _, s := range r.Nexthops {
		out.NextHops = append(out.NextHops, parse(c, "nexthops", s, netip.ParseAddr))
	}
	slices.SortFunc(out.NextHops, netip.Addr.Compare)
	return out
}

func (c *converter) nat(r *ovsdb.NAT) nb.Row {
	for column, empty := range map[string]bool{
		"external_mac": r.ExternalMAC == nil, "logical_port": r.LogicalPort == nil, "gateway_port": r.GatewayPort == nil,
		"allowed_ext_ips": r.AllowedExtIPs == nil, "exempted_ext_ips": r.ExemptedExtIPs == nil, "priority": r.Priority == 0,
	} {
		c.expect(column, empty)
	}
	return &nb.NAT{Router: c.inRouter(r.UUID), Type: nb.NATType(r.Type), External: parse(c, "external_ip", r.ExternalIP, netip.ParseAddr),
		Logical: parse(c, "logical_ip", r.LogicalIP, nb.ParsePrefix), PortRange: r.ExternalPortRange, Match: r.Match,
		Owner: c.owner(r.ExternalIDs, claims.KeyOwner)}
}

func (c *converter) loadBalancer(r *ovsdb.LoadBalancer) nb.Row {
	out := &nb.LoadBalancer{Name: r.Name, Protocol: protocol(text(r.Protocol)), Affinity: len(r.SelectionFields) > 0,
		Options: claimed(nb.TableLoadBalancer, r.Options), Groups: c.groups(c.m.groups[r.UUID]), Owner: c.owner(r.ExternalIDs, claims.KeyOwner)}
	for addr, backends := range r.VIPs {
		v := nb.VIP{Addr: parse(c, "vips", addr, netip.ParseAddrPort)}
		if backends != "" {
			v.Backends = make([]netip.AddrPort, 0, strings.Count(backends, ",")+1)
			for b, more := "", true; more; {
				b, backends, more = strings.Cut(backends, ",")
				v.Backends = append(v.Backends, parse(c, "vips", b, netip.ParseAddrPort))
			}
		}
		out.VIPs = append(out.VIPs, v)
	}
	slices.SortFunc(out.VIPs, func(a, b nb.VIP) int { return a.Addr.Compare(b.Addr) })
	c.expect("selection_fields", slices.Equal(r.SelectionFields, out.SelectionFields()))
	return out
}

// protocol reads the column protocol, which is one of three by the schema; empty is tcp.
func protocol(s string) cluster.Protocol {
	switch s {
	case "udp":
		return cluster.UDP
	case "sctp":
		return cluster.SCTP
	}
	return cluster.TCP
}

// altered gives a copy of a row that is equal to no wanted one, and whose owner tells which column is to blame.
func altered(row nb.Row, column string) nb.Row {
	owner := cluster.Owner{Kind: "altered", Name: column}
	switch r := row.(type) {
	case *nb.Global:
		return with(r, func(r *nb.Global) { r.Owner = owner })
	case *nb.Chassis:
		return with(r, func(r *nb.Chassis) { r.Owner = owner })
	case *nb.AddressSet:
		return with(r, func(r *nb.AddressSet) { r.Owner = owner })
	case *nb.Group:
		return with(r, func(r *nb.Group) { r.Owner = owner })
	case *nb.Router:
		return with(r, func(r *nb.Router) { r.Owner = owner })
	case *nb.RouterPort:
		return with(r, func(r *nb.RouterPort) { r.Owner = owner })
	case *nb.Switch:
		return with(r, func(r *nb.Switch) { r.Owner = owner })
	case *nb.SwitchPort:
		return with(r, func(r *nb.SwitchPort) { r.Owner = owner })
	case *nb.QoS:
		return with(r, func(r *nb.QoS) { r.Owner = owner })
	case *nb.MACBinding:
		return with(r, func(r *nb.MACBinding) { r.Owner = owner })
	case *nb.Route:
		return with(r, func(r *nb.Route) { r.Owner = owner })
	case *nb.Policy:
		return with(r, func(r *nb.Policy) { r.Owner = owner })
	case *nb.NAT:
		return with(r, func(r *nb.NAT) { r.Owner = owner })
	case *nb.LoadBalancer:
		return with(r, func(r *nb.LoadBalancer) { r.Owner = owner })
	}
	return row
}

// with gives a changed copy.
func with[T any](row *T, change func(*T)) *T {
	c := *row
	change(&c)
	return &c
}
