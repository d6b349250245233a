package vsctl

import (
	"strconv"

	"hairpin/claims"
	"hairpin/datapath/ovs"
	"hairpin/ovsdb"
	"hairpin/pipeline"
)

// kernelDatapath is the type of the datapath in the kernel, as the column datapaths names it.
const kernelDatapath = "system"

// Limit is a limit in Open vSwitch's database. It is a column of a row of Flow_Table or CT_Zone. A
// Bridge or Datapath, the parent row, refers to that row in a map, by the number of the table or
// zone. The limit is Hairpin's if the row has claims.KeyLimit with the same value.
// "ovs-vsctl set-zone-limit" changes the value, but not the key, and so makes it an
// administrator's.
type Limit struct {
	parent, column string     // the table and the column with the map
	Number         int        // of the table, or of the zone
	id             ovsdb.UUID // of the row; empty = no row
	Value          *int       // nil = no limit
	keys           map[string]string
	shared         bool                                              // the row has other settings, too
	row            func(value int, keys map[string]string) ovsdb.Row // makes a row with these columns
	valueColumn    string
}

// found returns the limit as Read reports it.
func (l *Limit) found() int {
	switch {
	case l.Value == nil:
		return 0
	case l.keys[claims.KeyLimit] != strconv.Itoa(*l.Value):
		return ovs.ForeignLimit
	}
	return *l.Value
}

// ops changes the limit of a row of the parent table. It keeps an administrator's limit.
func (l *Limit) ops(parent ovsdb.UUID, want int) []ovsdb.Op {
	has := l.found()
	keys := map[string]string{claims.KeyLimit: strconv.Itoa(want)}
	row := l.row(want, keys)
	switch {
	case has == want || has == ovs.ForeignLimit:
		return nil
	case want == 0 && !l.shared:
		return []ovsdb.Op{ovsdb.Mutate(l.parent, ovsdb.DeleteFrom(l.column, []int{l.Number})).Row(parent)}
	case want == 0:
		return append(KeyOps(row.Table(), l.id, nil, []string{claims.KeyLimit}),
			ovsdb.Update(row, l.valueColumn).Row(l.id))
	case l.id != "":
		return append(KeyOps(row.Table(), l.id, keys, nil), ovsdb.Update(row, l.valueColumn).Row(l.id))
	}
	return []ovsdb.Op{ovsdb.Insert(row),
		ovsdb.Mutate(l.parent, ovsdb.InsertInto(l.column,
			map[int]ovsdb.UUID{l.Number: newRow(row.Table())})).Row(parent)}
}

// newRow returns the name of a row that the transaction inserts into a table.
func newRow(table string) ovsdb.UUID { return ovsdb.NamedUUID("limit " + table) }

// AffinityLimit returns the limit of pipeline.SvcSessionAffinity of a bridge, which may be nil.
func AffinityLimit(v ovsdb.View, b *ovsdb.Bridge) *Limit {
	l := &Limit{parent: "Bridge", column: "flow_tables", Number: pipeline.SvcSessionAffinity, valueColumn: "flow_limit"}
	l.row = func(value int, keys map[string]string) ovsdb.Row {
		return ovsdb.FlowTable{UUID: newRow("Flow_Table"), FlowLimit: orNil(value), ExternalIDs: keys}
	}
	if b == nil {
		return l
	}
	if t := ovsdb.Get[ovsdb.FlowTable](v, b.FlowTables[l.Number]); t != nil {
		l.id, l.Value, l.keys = t.UUID, t.FlowLimit, t.ExternalIDs
		l.shared = t.ExternalIDs[claims.KeyLimit] == "" || t.Name != nil
	}
	return l
}

// ZoneLimit returns the limit of claims.ZoneServices of a datapath.
func ZoneLimit(v ovsdb.View, inUserspace bool) *Limit {
	l := &Limit{parent: "Datapath", column: "ct_zones", Number: claims.ZoneServices, valueColumn: "limit"}
	l.row = func(value int, keys map[string]string) ovsdb.Row {
		return ovsdb.CTZone{UUID: newRow("CT_Zone"), Limit: orNil(value), ExternalIDs: keys}
	}
	d := ovsdb.Get[ovsdb.Datapath](v, datapathOf(v, inUserspace))
	if d == nil {
		return l
	}
	if z := ovsdb.Get[ovsdb.CTZone](v, d.CTZones[l.Number]); z != nil {
		l.id, l.Value, l.keys, l.shared = z.UUID, z.Limit, z.ExternalIDs, z.TimeoutPolicy != nil
	}
	return l
}

func orNil(n int) *int {
	if n == 0 {
		return nil
	}
	return &n
}

// DatapathName returns the name of a datapath, as the column datapaths has it.
func DatapathName(inUserspace bool) string {
	if inUserspace {
		return userspace
	}
	return kernelDatapath
}

// InUserspace reports whether a bridge is on the userspace datapath.
func InUserspace(b *ovsdb.Bridge) bool { return b.DatapathType == userspace }

// datapathOf returns the row of a datapath; empty if there is none.
func datapathOf(v ovsdb.View, inUserspace bool) ovsdb.UUID {
	if row := ovsdb.First[ovsdb.OpenVSwitch](v); row != nil {
		return row.Datapaths[DatapathName(inUserspace)]
	}
	return ""
}

// limitOps sets the limits of a bridge. have is nil for a bridge that the same transaction makes.
// The row of the datapath, which ovn-controller makes as well, may not exist yet.
func limitOps(v ovsdb.View, bridge ovsdb.UUID, have *ovsdb.Bridge, want ovs.Bridge) []ovsdb.Op {
	ops := AffinityLimit(v, have).ops(bridge, want.Learned)
	if want.Name != claims.ServiceBridge {
		return ops
	}
	datapath := datapathOf(v, want.Userspace)
	zone := ZoneLimit(v, want.Userspace).ops(datapath, want.Connections)
	if datapath != "" || len(zone) == 0 {
		return append(ops, zone...)
	}
	row := ovsdb.Datapath{UUID: ovsdb.NamedUUID("datapath"),
		CTZones: map[int]ovsdb.UUID{claims.ZoneServices: newRow("CT_Zone")}}
	rows := map[string]ovsdb.UUID{DatapathName(want.Userspace): row.UUID}
	// zone inserts the row of the zone, and refers to it from the missing row of the datapath.
	return append(ops, zone[0], ovsdb.Insert(row),
		ovsdb.Mutate("Open_vSwitch", ovsdb.InsertInto("datapaths", rows)).All())
}
