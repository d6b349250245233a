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

// table describes a table of OVN's databases, for reading and writing its rows.
type table struct {
	id         nb.Table
	southbound bool
	row        row
	columns    []column
	parent     parent // of non-root rows, which only a column of another row keeps alive
	others     others // rows that a row names
	indexed    bool   // no external_ids: owners are in the owner index, the external_ids of NB_Global
	stays      bool   // the row is never deleted, only Hairpin's values in it
	part       *part  // a row of another table that belongs to the row
	// foreign returns an error for a row without an owner that must not be taken over.
	foreign func(t *table, have ovsdb.Record) error

	layout   ovsdb.Layout
	places   map[string]int // positions in the layout of these columns and those with references
	children []*table       // tables whose parent this table is
	namedBy  []*table       // tables whose rows refer to this table's
}

// parent is the table and the column that refer to the row. name is the row's field for it.
type parent struct {
	table  nb.Table
	column string
	name   func(nb.Row) *string
}

// others is the table of the rows that a row refers to, and the column that holds the reference.
// With back, the column is in the other table and refers to the row.
type others struct {
	table  nb.Table
	column string
	back   bool
	single bool // the column has at most one
	names  func(nb.Row) []string
	load   func(nb.Row, []string)
}

// tables returns the descriptions of all tables.
func tables() []*table { return slices.Concat(zone(), switches(), routers(), balancers()) }

// zone describes the tables with one row per node or for all of a node.
func zone() []*table {
	return []*table{
		{id: nb.TableGlobal, row: rowOf[nb.Global](), stays: true,
			columns: []column{
				plain("name", func(r *nb.Global) *string { return &r.Name }),
				options("options", func(r *nb.Global) *map[string]string { return &r.Options }, "name",
					"use_ct_inv_match"),
			}},
		// Plans have no such rows any more. Read finds those of the previous release, so that they
		// are deleted. Only tests write such rows.
		{id: nb.TableChassis, row: rowOf[nb.Chassis](), southbound: true, part: encap(), foreign: checkRemote,
			columns: []column{
				plain("name", func(r *nb.Chassis) *string { return &r.Name }),
				plain("hostname", func(r *nb.Chassis) *string { return &r.Hostname }),
				remote(),
			}},
		{id: nb.TableAddressSet, row: rowOf[nb.AddressSet](),
			columns: []column{
				plain("name", func(r *nb.AddressSet) *string { return &r.Name }),
				parsedSet("addresses", func(r *nb.AddressSet) *[]netip.Prefix { return &r.Addresses },
					netip.Prefix.Compare, address, nb.ParsePrefix),
			}},
	}
}

// switches describes Logical_Switch and the tables of its parts.
func switches() []*table {
	return []*table{
		{id: nb.TableSwitch, row: rowOf[nb.Switch](),
			others: named(nb.TableGroup, "load_balancer_group", func(r *nb.Switch) *[]string { return &r.Groups }),
			columns: []column{
				plain("name", func(r *nb.Switch) *string { return &r.Name }),
				options("other_config", func(r *nb.Switch) *map[string]string { return &r.OtherConfig },
					"subnet", "ipv6_prefix", "ct-zone-limit", "interconn-ts", "requested-tnl-key"),
			}},
		{id: nb.TableSwitchPort, row: rowOf[nb.SwitchPort](),
			parent: in(nb.TableSwitch, "ports", func(r *nb.SwitchPort) *string { return &r.Switch }),
			columns: []column{
				plain("name", func(r *nb.SwitchPort) *string { return &r.Name }),
				plain("type", func(r *nb.SwitchPort) *string { return &r.Type }),
				plainSet("addresses", func(r *nb.SwitchPort) *[]string { return &r.Addresses }),
				plainSet("port_security", func(r *nb.SwitchPort) *[]string { return &r.PortSecurity }),
				never[*bool]("enabled"),
				options("options", func(r *nb.SwitchPort) *map[string]string { return &r.Options }, "router-port",
					"nat-addresses",
					"exclude-lb-vips-from-garp", "network_name", "requested-tnl-key", "requested-chassis",
					"iface-id-ver"),
			}},
		{id: nb.TableQoS, row: rowOf[nb.QoS](),
			parent: in(nb.TableSwitch, "qos_rules", func(r *nb.QoS) *string { return &r.Switch }),
			columns: []column{
				number("priority", func(r *nb.QoS) *int { return &r.Priority }),
				plain("match", func(r *nb.QoS) *string { return &r.Match }),
				always("direction", "from-lport"),
				mark(),
				never[map[string]int]("bandwidth"),
			}},
		{id: nb.TableACL, row: rowOf[nb.ACL](),
			parent: in(nb.TableSwitch, "acls", func(r *nb.ACL) *string { return &r.Switch }),
			columns: []column{
				number("priority", func(r *nb.ACL) *int { return &r.Priority }),
				plain("match", func(r *nb.ACL) *string { return &r.Match }),
				plain("action", func(r *nb.ACL) *nb.Action { return &r.Action }),
				always("direction", "from-lport"),
				afterBalancing(),
				never[int]("tier"), never[bool]("log"),
			}},
	}
}

// routers describes Logical_Router and the tables of its parts.
func routers() []*table {
	return []*table{
		{id: nb.TableRouter, row: rowOf[nb.Router](),
			others: named(nb.TableGroup, "load_balancer_group", func(r *nb.Router) *[]string { return &r.Groups }),
			columns: []column{
				plain("name", func(r *nb.Router) *string { return &r.Name }),
				never[*bool]("enabled"),
				options("options", func(r *nb.Router) *map[string]string { return &r.Options }, "chassis",
					"lb_force_snat_ip", "snat-ct-zone",
					"dynamic_neigh_routers", "always_learn_from_arp_request", "mac_binding_age_threshold"),
			}},
		{id: nb.TableRouterPort, row: rowOf[nb.RouterPort](), part: gatewayChassis(),
			parent: in(nb.TableRouter, "ports", func(r *nb.RouterPort) *string { return &r.Router }),
			columns: []column{
				plain("name", func(r *nb.RouterPort) *string { return &r.Name }),
				parsed("mac", func(r *nb.RouterPort) *cluster.MAC { return &r.MAC }, cluster.MAC.String,
					cluster.ParseMAC),
				parsedSet("networks", func(r *nb.RouterPort) *[]netip.Prefix { return &r.Networks },
					netip.Prefix.Compare, netip.Prefix.String, netip.ParsePrefix),
				never[*bool]("enabled"),
				options("options", func(r *nb.RouterPort) *map[string]string { return &r.Options }, "gateway_mtu",
					"gateway_mtu_bypass"),
			}},
		{id: nb.TableMACBinding, row: rowOf[nb.MACBinding](), indexed: true,
			columns: []column{
				plain("logical_port", func(r *nb.MACBinding) *string { return &r.Port }),
				parsed("ip", func(r *nb.MACBinding) *netip.Addr { return &r.IP }, netip.Addr.String, netip.ParseAddr),
				parsed("mac", func(r *nb.MACBinding) *cluster.MAC { return &r.MAC }, cluster.MAC.String,
					cluster.ParseMAC),
				always("override_dynamic_mac", true),
			}},
		{id: nb.TableRoute, row: rowOf[nb.Route](),
			parent: in(nb.TableRouter, "static_routes", func(r *nb.Route) *string { return &r.Router }),
			columns: []column{
				parsed("ip_prefix", func(r *nb.Route) *netip.Prefix { return &r.Prefix }, address, nb.ParsePrefix),
				parsed("nexthop", func(r *nb.Route) *netip.Addr { return &r.NextHop }, netip.Addr.String,
					netip.ParseAddr),
				optional("output_port", func(r *nb.Route) *string { return &r.OutPort }),
				flag("policy", "src-ip", func(r *nb.Route) *bool { return &r.BySource }),
				never[string]("route_table"),
			}},
		{id: nb.TablePolicy, row: rowOf[nb.Policy](),
			parent: in(nb.TableRouter, "policies", func(r *nb.Policy) *string { return &r.Router }),
			columns: []column{
				number("priority", func(r *nb.Policy) *int { return &r.Priority }),
				plain("match", func(r *nb.Policy) *string { return &r.Match }),
				plain("action", func(r *nb.Policy) *nb.Action { return &r.Action }),
				parsedSet("nexthops", func(r *nb.Policy) *[]netip.Addr { return &r.NextHops }, netip.Addr.Compare,
					netip.Addr.String, netip.ParseAddr),
				options("options", func(r *nb.Policy) *map[string]string { return &r.Options }, "pkt_mark"),
			}},
		{id: nb.TableNAT, row: rowOf[nb.NAT](),
			parent: in(nb.TableRouter, "nat", func(r *nb.NAT) *string { return &r.Router }),
			others: one(nb.TableRouterPort, "gateway_port", func(r *nb.NAT) *string { return &r.GatewayPort }),
			columns: []column{
				plain("type", func(r *nb.NAT) *nb.NATType { return &r.Type }),
				parsed("external_ip", func(r *nb.NAT) *netip.Addr { return &r.External }, netip.Addr.String,
					netip.ParseAddr),
				parsed("logical_ip", func(r *nb.NAT) *netip.Prefix { return &r.Logical }, address, nb.ParsePrefix),
				plain("external_port_range", func(r *nb.NAT) *string { return &r.PortRange }),
				plain("match", func(r *nb.NAT) *string { return &r.Match }),
				optional("logical_port", func(r *nb.NAT) *string { return &r.LogicalPort }),
				externalMAC(),
				never[*ovsdb.UUID]("allowed_ext_ips"), never[*ovsdb.UUID]("exempted_ext_ips"), never[int]("priority"),
			}},
	}
}

// balancers describes load balancers and their groups.
func balancers() []*table {
	return []*table{
		{id: nb.TableGroup, row: rowOf[nb.Group](), indexed: true,
			columns: []column{
				plain("name", func(r *nb.Group) *string { return &r.Name }),
			}},
		{id: nb.TableLoadBalancer, row: rowOf[nb.LoadBalancer](),
			others: members(nb.TableGroup, "load_balancer", func(r *nb.LoadBalancer) *[]string { return &r.Groups }),
			columns: []column{
				plain("name", func(r *nb.LoadBalancer) *string { return &r.Name }),
				protocol(),
				value("vips", loadVIPs, storeVIPs,
					func(e *edit, column string, want,
						have map[string]string) {
						e.column(column, maps.Equal(want, have))
					}),
				value("selection_fields", func(r *nb.LoadBalancer, list []string) bool {
					r.Affinity = len(list) > 0
					return slices.Equal(list, r.SelectionFields())
				}, (*nb.LoadBalancer).SelectionFields, (*edit).set),
				options("options", func(r *nb.LoadBalancer) *map[string]string { return &r.Options }, "reject", "event",
					"skip_snat",
					"neighbor_responder", "hairpin_snat_ip"),
			}},
	}
}

// row makes and copies rows of one type.
type row struct {
	empty func() nb.Row
	copy  func(nb.Row) nb.Row
}

func rowOf[R any, P interface {
	*R
	nb.Row
}]() row {
	return row{
		empty: func() nb.Row { return P(new(R)) },
		copy: func(r nb.Row) nb.Row {
			c := *r.(P)
			return P(&c)
		},
	}
}

func in[R any](t nb.Table, column string, name func(*R) *string) parent {
	return parent{t, column, func(r nb.Row) *string { return name(any(r).(*R)) }}
}

func named[R any](t nb.Table, column string, names func(*R) *[]string) others {
	return others{
		table: t, column: column,
		names: func(r nb.Row) []string { return *names(any(r).(*R)) },
		load:  func(r nb.Row, list []string) { *names(any(r).(*R)) = list },
	}
}

// one is a reference to at most one row.
func one[R any](t nb.Table, column string, name func(*R) *string) others {
	return others{
		table: t, column: column, single: true,
		names: func(r nb.Row) []string {
			if n := *name(any(r).(*R)); n != "" {
				return []string{n}
			}
			return nil
		},
		load: func(r nb.Row, list []string) { *name(any(r).(*R)) = strings.Join(list, "") },
	}
}

func members[R any](t nb.Table, column string, names func(*R) *[]string) others {
	o := named(t, column, names)
	o.back = true
	return o
}

// address writes a full-length prefix as a plain address, as ovn-nbctl does.
func address(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// isRemote is the key of Chassis.other_config that makes ovn-controller create a tunnel.
const isRemote = "is-remote"

func remote() column {
	return value("other_config", func(_ *nb.Chassis, all map[string]string) bool { return all[isRemote] == "true" },
		func(*nb.Chassis) map[string]string { return map[string]string{isRemote: "true"} },
		func(e *edit, column string, want, have map[string]string) {
			e.keys(column, want, have, func(k string) bool { return k == isRemote })
		})
}

// checkRemote rejects a chassis that is not remote.
func checkRemote(t *table, have ovsdb.Record) error {
	if (*t.at(have, "other_config").(*map[string]string))[isRemote] != "true" {
		return errors.New("this is the chassis of this node, or of another ovn-controller on this database")
	}
	return nil
}

// externalMAC is unset for a NAT row without its own port.
func externalMAC() column {
	return value("external_mac", func(r *nb.NAT, s *string) bool {
		var err error
		if s != nil {
			r.ExternalMAC, err = cluster.ParseMAC(*s)
		}
		return err == nil
	}, func(r *nb.NAT) *string {
		if r.ExternalMAC == (cluster.MAC{}) {
			return nil
		}
		s := r.ExternalMAC.String()
		return &s
	}, wholeText)
}

// mark is the single action of Hairpin's QoS rows.
func mark() column {
	return value("action", func(r *nb.QoS, all map[string]int) bool {
		n, there := all["mark"]
		r.Mark = uint32(n)
		return len(all) == 1 && there && n >= 0
	}, func(r *nb.QoS) map[string]int { return map[string]int{"mark": int(r.Mark)} },
		func(e *edit, column string, want, have map[string]int) { e.column(column, maps.Equal(want, have)) })
}

// afterBalancing is the stage of Hairpin's ACLs.
func afterBalancing() column {
	const key = "apply-after-lb"
	return value("options", func(_ *nb.ACL, all map[string]string) bool { return all[key] == "true" },
		func(*nb.ACL) map[string]string { return map[string]string{key: "true"} },
		func(e *edit, column string, want, have map[string]string) {
			e.keys(column, want, have, func(k string) bool { return k == key })
		})
}

// protocol is one of three by the schema; unset means TCP.
func protocol() column {
	c := value("protocol", func(r *nb.LoadBalancer, s *string) bool {
		switch or(s, "tcp") {
		case "udp":
			r.Protocol = cluster.UDP
		case "sctp":
			r.Protocol = cluster.SCTP
		default:
			r.Protocol = cluster.TCP
		}
		return true
	}, func(r *nb.LoadBalancer) *string {
		s := r.Protocol.String()
		return &s
	}, func(e *edit, column string, want, have *string) { e.column(column, or(want, "tcp") == or(have, "tcp")) })
	c.check = func(r nb.Row) error {
		switch p := r.(*nb.LoadBalancer).Protocol; p {
		case cluster.TCP, cluster.UDP, cluster.SCTP:
			return nil
		default:
			return fmt.Errorf("OVN has no load balancer for %s", p)
		}
	}
	return c
}

func loadVIPs(r *nb.LoadBalancer, vips map[string]string) bool {
	right := true
	parse := func(s string) netip.AddrPort {
		a, err := netip.ParseAddrPort(s)
		right = right && err == nil
		return a
	}
	for addr, backends := range vips {
		v := nb.VIP{Addr: parse(addr)}
		if backends != "" {
			v.Backends = make([]netip.AddrPort, 0, strings.Count(backends, ",")+1)
			for b, more := "", true; more; {
				b, backends, more = strings.Cut(backends, ",")
				v.Backends = append(v.Backends, parse(b))
			}
		}
		r.VIPs = append(r.VIPs, v)
	}
	slices.SortFunc(r.VIPs, nb.VIP.Compare)
	return right
}

func storeVIPs(r *nb.LoadBalancer) map[string]string {
	all := make(map[string]string, len(r.VIPs))
	var b strings.Builder
	for _, v := range r.VIPs {
		b.Reset()
		for i, a := range v.Backends {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(a.String())
		}
		all[v.Addr.String()] = b.String()
	}
	return all
}
