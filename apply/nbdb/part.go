package nbdb

import (
	"net/netip"

	"hairpin/datapath/nb"
	"hairpin/ovsdb"
)

// part is a row of another table that belongs to a single row, in a column of it. nb has it as
// fields of that row.
type part struct {
	column string // of the row
	table  string
	mirror ovsdb.Table
	load   func(m *model, r nb.Row, ids []ovsdb.UUID) bool
	store  func(c *compiler, r nb.Row, have []ovsdb.UUID) []ovsdb.UUID
}

// encap is the tunnel endpoint of a Chassis. Others write to Chassis, too: ovn-controller writes
// its own node's.
func encap() *part {
	want := func(r *nb.Chassis) ovsdb.Encap {
		return ovsdb.Encap{Type: "geneve", IP: r.IP.String(), Options: map[string]string{"csum": "true"},
			ChassisName: r.Name}
	}
	return &part{
		column: "encaps", table: "Encap", mirror: ovsdb.Mirror[ovsdb.Encap](),
		load: func(m *model, row nb.Row, ids []ovsdb.UUID) bool {
			if len(ids) == 0 {
				return false
			}
			r, e := row.(*nb.Chassis), getOrEmpty[ovsdb.Encap](m.sb, ids[0])
			var err error
			r.IP, err = netip.ParseAddr(e.IP)
			return err == nil && len(ids) == 1 && e.Type == "geneve" && e.Options["csum"] == "true" &&
				e.ChassisName == r.Name
		},
		store: func(c *compiler, row nb.Row, have []ovsdb.UUID) []ovsdb.UUID {
			r := want(row.(*nb.Chassis))
			if len(have) != 1 {
				r.UUID = ovsdb.NewUUID()
				c.ops = append(c.ops, ovsdb.Insert(r))
				return []ovsdb.UUID{r.UUID}
			}
			old := getOrEmpty[ovsdb.Encap](c.m.sb, have[0])
			var e edit
			e.column("type", r.Type == old.Type)
			e.column("ip", r.IP == old.IP)
			e.column("chassis_name", r.ChassisName == old.ChassisName)
			e.keys("options", r.Options, old.Options, func(k string) bool { return k == "csum" })
			c.ops = append(c.ops, e.ops(r, have[0])...)
			return have
		},
	}
}

// gatewayChassis is the chassis of a distributed gateway port.
func gatewayChassis() *part {
	return &part{
		column: "gateway_chassis", table: "Gateway_Chassis",
		mirror: ovsdb.Mirror[ovsdb.GatewayChassis]("name", "chassis_name", "priority"),
		load: func(m *model, row nb.Row, ids []ovsdb.UUID) bool {
			if len(ids) == 0 {
				return true
			}
			g := getOrEmpty[ovsdb.GatewayChassis](m.nb, ids[0])
			row.(*nb.RouterPort).Chassis = g.ChassisName
			return len(ids) == 1 && g.Priority == 1 && g.ChassisName != ""
		},
		store: func(c *compiler, row nb.Row, have []ovsdb.UUID) []ovsdb.UUID {
			r := row.(*nb.RouterPort)
			if r.Chassis == "" {
				return nil
			}
			want := ovsdb.GatewayChassis{Name: r.Name + "-" + r.Chassis, ChassisName: r.Chassis, Priority: 1}
			for _, id := range have {
				if old := getOrEmpty[ovsdb.GatewayChassis](c.m.nb, id); old.ChassisName == r.Chassis {
					var e edit
					e.column("priority", old.Priority == 1)
					c.ops = append(c.ops, e.ops(want, id)...)
					return []ovsdb.UUID{id}
				}
			}
			want.UUID = ovsdb.NewUUID()
			c.ops = append(c.ops, ovsdb.Insert(want))
			return []ovsdb.UUID{want.UUID}
		},
	}
}
