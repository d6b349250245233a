package nbdb

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath/nb"
	"hairpin/ovsdb"
)

// This file has one method of compiler per table: the row as OVSDB has it, and what differs from the one that is there.

func (c *compiler) chassis(r *nb.Chassis, id ovsdb.UUID, fresh bool) error {
	have := get[ovsdb.Chassis](c.m.sb, id)
	if !fresh && have.OtherConfig["is-remote"] != "true" && !c.m.items[id].own {
		return errors.New("this is the chassis of this node, or of another ovn-controller on this database")
	}
	encap := ovsdb.Encap{Type: "geneve", IP: r.IP.String(), Options: map[string]string{"csum": "true"}, ChassisName: r.Name}
	row := ovsdb.Chassis{UUID: id, Name: r.Name, Hostname: r.Hostname, Encaps: have.Encaps,
		OtherConfig: map[string]string{"is-remote": "true"}, ExternalIDs: owned(r.Owner)}
	var e edit
	if len(have.Encaps) == 1 {
		encap.UUID = have.Encaps[0]
		old := get[ovsdb.Encap](c.m.sb, encap.UUID)
		var e edit
		e.column("type", encap.Type == old.Type)
		e.column("ip", encap.IP == old.IP)
		e.column("chassis_name", encap.ChassisName == old.ChassisName)
		e.keys("options", encap.Options, old.Options, func(k string) bool { return k == "csum" })
		c.ops = append(c.ops, e.ops(encap, encap.UUID)...)
	} else {
		encap.UUID = ovsdb.NewUUID()
		c.ops = append(c.ops, ovsdb.Insert(encap))
		row.Encaps = []ovsdb.UUID{encap.UUID}
		e.column("encaps", false)
	}
	if !fresh {
		e.column("hostname", r.Hostname == have.Hostname)
		e.keys("other_config", row.OtherConfig, have.OtherConfig, func(k string) bool { return k == "is-remote" })
		e.owner(r.Owner, have.ExternalIDs)
	}
	c.save(row, id, fresh, &e)
	return nil
}

func (c *compiler) addressSet(r *nb.AddressSet, id ovsdb.UUID, fresh bool) error {
	row := ovsdb.AddressSet{UUID: id, Name: r.Name, Addresses: texts(r.Addresses, address), ExternalIDs: owned(r.Owner)}
	var e edit
	if !fresh {
		have := get[ovsdb.AddressSet](c.m.nb, id)
		e.set("addresses", row.Addresses, have.Addresses)
		e.owner(r.Owner, have.ExternalIDs)
	}
	c.save(row, id, fresh, &e)
	return nil
}

func (c *compiler) group(r *nb.Group, id ovsdb.UUID, fresh bool) error {
	c.save(ovsdb.LoadBalancerGroup{UUID: id, Name: r.Name}, id, fresh, &edit{})
	c.note(r)
	return nil
}

func (c *compiler) router(r *nb.Router, id ovsdb.UUID, fresh bool) error {
	have := get[ovsdb.LogicalRouter](c.m.nb, id)
	if err := c.join(r, id, r.Groups, have.LoadBalancerGroup, "load_balancer_group", false); err != nil {
		return err
	}
	var e edit
	if !fresh {
		e.column("enabled", have.Enabled == nil)
		e.options("options", nb.TableRouter, r.Options, have.Options)
		e.owner(r.Owner, have.ExternalIDs)
	}
	c.save(ovsdb.LogicalRouter{UUID: id, Name: r.Name, Options: r.Options, ExternalIDs: owned(r.Owner)}, id, fresh, &e)
	return nil
}

func (c *compiler) routerPort(r *nb.RouterPort, id ovsdb.UUID, fresh bool) error {
	if err := c.place(id, nb.TableRouter, r.Router, "ports"); err != nil {
		return err
	}
	have := get[ovsdb.LogicalRouterPort](c.m.nb, id)
	row := ovsdb.LogicalRouterPort{UUID: id, Name: r.Name, MAC: r.MAC.String(), Networks: texts(r.Networks, netip.Prefix.String),
		Options: r.Options, ExternalIDs: owned(r.Owner)}
	row.GatewayChassis = c.gatewayChassis(r, have.GatewayChassis)
	var e edit
	if !fresh {
		e.column("mac", row.MAC == have.MAC)
		e.column("enabled", have.Enabled == nil)
		e.column("gateway_chassis", slices.Equal(row.GatewayChassis, have.GatewayChassis))
		e.set("networks", row.Networks, have.Networks)
		e.options("options", nb.TableRouterPort, r.Options, have.Options)
		e.owner(r.Owner, have.ExternalIDs)
	}
	c.save(row, id, fresh, &e)
	return nil
}

// gatewayChassis gives the column's value: the row of the wanted chassis, which is kept, repaired or made.
func (c *compiler) gatewayChassis(r *nb.RouterPort, have []ovsdb.UUID) []ovsdb.UUID {
	if r.Chassis == "" {
		return nil
	}
	row := ovsdb.GatewayChassis{Name: r.Name + "-" + r.Chassis, ChassisName: r.Chassis, Priority: 1}
	for _, id := range have {
		if old := get[ovsdb.GatewayChassis](c.m.nb, id); old.ChassisName == r.Chassis {
			var e edit
			e.column("priority", old.Priority == 1)
			c.ops = append(c.ops, e.ops(row, id)...)
			return []ovsdb.UUID{id}
		}
	}
	row.UUID = ovsdb.NewUUID()
	c.ops = append(c.ops, ovsdb.Insert(row))
	return []ovsdb.UUID{row.UUID}
}

func (c *compiler) lswitch(r *nb.Switch, id ovsdb.UUID, fresh bool) error {
	have := get[ovsdb.LogicalSwitch](c.m.nb, id)
	if err := c.join(r, id, r.Groups, have.LoadBalancerGroup, "load_balancer_group", false); err != nil {
		return err
	}
	var e edit
	if !fresh {
		e.options("other_config", nb.TableSwitch, r.OtherConfig, have.OtherConfig)
		e.owner(r.Owner, have.ExternalIDs)
	}
	c.save(ovsdb.LogicalSwitch{UUID: id, Name: r.Name, OtherConfig: r.OtherConfig, ExternalIDs: owned(r.Owner)}, id, fresh, &e)
	return nil
}

func (c *compiler) switchPort(r *nb.SwitchPort, id ovsdb.UUID, fresh bool) error {
	if err := c.place(id, nb.TableSwitch, r.Switch, "ports"); err != nil {
		return err
	}
	row := ovsdb.LogicalSwitchPort{UUID: id, Name: r.Name, Type: r.Type, Addresses: slices.Sorted(slices.Values(r.Addresses)),
		PortSecurity: slices.Sorted(slices.Values(r.PortSecurity)), Options: r.Options, ExternalIDs: owned(r.Owner)}
	var e edit
	if !fresh {
		have := get[ovsdb.LogicalSwitchPort](c.m.nb, id)
		e.column("type", row.Type == have.Type)
		e.column("enabled", have.Enabled == nil)
		e.set("addresses", row.Addresses, have.Addresses)
		e.set("port_security", row.PortSecurity, have.PortSecurity)
		e.options("options", nb.TableSwitchPort, r.Options, have.Options)
		e.owner(r.Owner, have.ExternalIDs)
	}
	c.save(row, id, fresh, &e)
	return nil
}

func (c *compiler) macBinding(r *nb.MACBinding, id ovsdb.UUID, fresh bool) error {
	row := ovsdb.StaticMACBinding{UUID: id, LogicalPort: r.Port, IP: r.IP.String(), MAC: r.MAC.String(), OverrideDynamicMAC: true}
	var e edit
	if !fresh {
		have := get[ovsdb.StaticMACBinding](c.m.nb, id)
		e.column("mac", row.MAC == have.MAC)
		e.column("override_dynamic_mac", have.OverrideDynamicMAC)
	}
	c.save(row, id, fresh, &e)
	c.note(r)
	return nil
}

func (c *compiler) route(r *nb.Route, id ovsdb.UUID, fresh bool) error {
	if err := c.place(id, nb.TableRouter, r.Router, "static_routes"); err != nil {
		return err
	}
	row := ovsdb.LogicalRouterStaticRoute{UUID: id, IPPrefix: address(r.Prefix), Nexthop: r.NextHop.String(), ExternalIDs: owned(r.Owner)}
	if r.BySource {
		row.Policy = new(string)
		*row.Policy = "src-ip"
	}
	if r.OutPort != "" {
		row.OutputPort = &r.OutPort
	}
	var e edit
	if !fresh {
		have := get[ovsdb.LogicalRouterStaticRoute](c.m.nb, id)
		e.column("route_table", have.RouteTable == "")
		e.column("output_port", r.OutPort == text(have.OutputPort))
		e.owner(r.Owner, have.ExternalIDs)
	}
	c.save(row, id, fresh, &e)
	return nil
}

func (c *compiler) qos(r *nb.QoS, id ovsdb.UUID, fresh bool) error {
	if err := c.place(id, nb.TableSwitch, r.Switch, "qos_rules"); err != nil {
		return err
	}
	row := ovsdb.QoS{UUID: id, Priority: r.Priority, Direction: "from-lport", Match: r.Match,
		Action: map[string]int{"mark": int(r.Mark)}, ExternalIDs: owned(r.Owner)}
	var e edit
	if !fresh {
		have := get[ovsdb.QoS](c.m.nb, id)
		e.column("direction", row.Direction == have.Direction)
		e.column("action", maps.Equal(row.Action, have.Action))
		e.column("bandwidth", len(have.Bandwidth) == 0)
		e.owner(r.Owner, have.ExternalIDs)
	}
	c.save(row, id, fresh, &e)
	return nil
}

func (c *compiler) policy(r *nb.Policy, id ovsdb.UUID, fresh bool) error {
	if err := c.place(id, nb.TableRouter, r.Router, "policies"); err != nil {
		return err
	}
	row := ovsdb.LogicalRouterPolicy{UUID: id, Priority: r.Priority, Match: r.Match, Action: string(r.Action),
		Nexthops: texts(r.NextHops, netip.Addr.String), Options: r.Options, ExternalIDs: owned(r.Owner)}
	var e edit
	if !fresh {
		have := get[ovsdb.LogicalRouterPolicy](c.m.nb, id)
		e.column("action", row.Action == have.Action)
		e.set("nexthops", row.Nexthops, have.Nexthops)
		e.options("options", nb.TablePolicy, r.Options, have.Options)
		e.owner(r.Owner, have.ExternalIDs)
	}
	c.save(row, id, fresh, &e)
	return nil
}

func (c *compiler) nat(r *nb.NAT, id ovsdb.UUID, fresh bool) error {
	if err := c.place(id, nb.TableRouter, r.Router, "nat"); err != nil {
		return err
	}
	row := ovsdb.NAT{UUID: id, Type: string(r.Type), ExternalIP: r.External.String(), LogicalIP: address(r.Logical),
		ExternalPortRange: r.PortRange, Match: r.Match, ExternalIDs: owned(r.Owner)}
	var e edit
	if !fresh {
		have := get[ovsdb.NAT](c.m.nb, id)
		e.column("external_port_range", row.ExternalPortRange == have.ExternalPortRange)
		e.column("external_mac", have.ExternalMAC == nil)
		e.column("logical_port", have.LogicalPort == nil)
		e.column("gateway_port", have.GatewayPort == nil)
		e.column("allowed_ext_ips", have.AllowedExtIPs == nil)
		e.column("exempted_ext_ips", have.ExemptedExtIPs == nil)
		e.column("priority", have.Priority == 0)
		e.owner(r.Owner, have.ExternalIDs)
	}
	c.save(row, id, fresh, &e)
	return nil
}

func (c *compiler) loadBalancer(r *nb.LoadBalancer, id ovsdb.UUID, fresh bool) error {
	row := ovsdb.LoadBalancer{UUID: id, Name: r.Name, VIPs: make(map[string]string, len(r.VIPs)), Options: r.Options,
		SelectionFields: r.SelectionFields(), ExternalIDs: owned(r.Owner)}
	for _, v := range r.VIPs {
		row.VIPs[v.Addr.String()] = backends(v.Backends)
	}
	switch proto := r.Protocol.String(); r.Protocol {
	case cluster.TCP, cluster.UDP, cluster.SCTP:
		row.Protocol = &proto
	default:
		return fmt.Errorf("OVN has no load balancer for %s", proto)
	}
	if err := c.join(r, id, r.Groups, c.m.groups[id], "load_balancer", true); err != nil {
		return err
	}
	var e edit
	if !fresh {
		have := get[ovsdb.LoadBalancer](c.m.nb, id)
		e.column("vips", maps.Equal(row.VIPs, have.VIPs))
		e.column("protocol", protocol(text(have.Protocol)) == r.Protocol)
		e.column("selection_fields", slices.Equal(row.SelectionFields, have.SelectionFields))
		e.options("options", nb.TableLoadBalancer, r.Options, have.Options)
		e.owner(r.Owner, have.ExternalIDs)
	}
	c.save(row, id, fresh, &e)
	return nil
}

func backends(list []netip.AddrPort) string {
	var b strings.Builder
	for i, a := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(a.String())
	}
	return b.String()
}

// address writes a full-length prefix as a plain address, as ovn-nbctl does.
func address(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// texts gives a set column: sorted texts.
func texts[T any](list []T, text func(T) string) []string {
	out := make([]string, 0, len(list))
	for _, x := range list {
		out = append(out, text(x))
	}
	slices.Sort(out)
	return slices.Compact(out)
}
