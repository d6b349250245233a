package ofctl

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"hairpin/claims"
	"hairpin/datapath/ovs"
	"hairpin/ovsdb"
	"hairpin/pipeline"
)

// kernelDatapath is the type of the datapath in the kernel, as the column datapaths names it.
const kernelDatapath = "system"

// limit is a limit in Open vSwitch's database: a row of its own table, which a map from numbers
// refers to. It is Hairpin's if the row has claims.KeyLimit with the same value. "ovs-vsctl
// set-zone-limit" changes the value and so makes it an administrator's.
type limit struct {
	parent, column string // the table and the column with the map
	number         int
	id             ovsdb.UUID // of the row; empty = no row
	value          *int
	keys           map[string]string
	shared         bool // the row has other settings, too
	row            func(value int, keys map[string]string) ovsdb.Row
	valueColumn    string
}

// found returns the limit as Read reports it.
func (l *limit) found() int {
	switch {
	case l.value == nil:
		return 0
	case l.keys[claims.KeyLimit] != strconv.Itoa(*l.value):
		return ovs.ForeignLimit
	}
	return *l.value
}

// ops changes the limit of a row of the parent table. It keeps an administrator's limit.
func (l *limit) ops(parent ovsdb.UUID, want int) []ovsdb.Op {
	has := l.found()
	keys := map[string]string{claims.KeyLimit: strconv.Itoa(want)}
	row := l.row(want, keys)
	switch {
	case has == want || has == ovs.ForeignLimit:
		return nil
	case want == 0 && !l.shared:
		return []ovsdb.Op{ovsdb.Mutate(l.parent, ovsdb.DeleteFrom(l.column, []int{l.number})).Row(parent)}
	case want == 0:
		return append(keyOps(row.Table(), l.id, nil, []string{claims.KeyLimit}),
			ovsdb.Update(row, l.valueColumn).Row(l.id))
	case l.id != "":
		return append(keyOps(row.Table(), l.id, keys, nil), ovsdb.Update(row, l.valueColumn).Row(l.id))
	}
	return []ovsdb.Op{ovsdb.Insert(row),
		ovsdb.Mutate(l.parent, ovsdb.InsertInto(l.column,
			map[int]ovsdb.UUID{l.number: newRow(row.Table())})).Row(parent)}
}

// newRow returns the name of a row that the transaction inserts into a table.
func newRow(table string) ovsdb.UUID { return ovsdb.NamedUUID("limit " + table) }

// flowLimit returns the limit of pipeline.SvcSessionAffinity of a bridge, which may be nil.
func flowLimit(v ovsdb.View, b *ovsdb.Bridge) *limit {
	l := &limit{parent: "Bridge", column: "flow_tables", number: pipeline.SvcSessionAffinity, valueColumn: "flow_limit"}
	l.row = func(value int, keys map[string]string) ovsdb.Row {
		return ovsdb.FlowTable{UUID: newRow("Flow_Table"), FlowLimit: orNil(value), ExternalIDs: keys}
	}
	if b == nil {
		return l
	}
	if t := ovsdb.Get[ovsdb.FlowTable](v, b.FlowTables[l.number]); t != nil {
		l.id, l.value, l.keys = t.UUID, t.FlowLimit, t.ExternalIDs
		l.shared = t.ExternalIDs[claims.KeyLimit] == "" || t.Name != nil
	}
	return l
}

// zoneLimit returns the limit of claims.ZoneServices of a datapath.
func zoneLimit(v ovsdb.View, inUserspace bool) *limit {
	l := &limit{parent: "Datapath", column: "ct_zones", number: claims.ZoneServices, valueColumn: "limit"}
	l.row = func(value int, keys map[string]string) ovsdb.Row {
		return ovsdb.CTZone{UUID: newRow("CT_Zone"), Limit: orNil(value), ExternalIDs: keys}
	}
	d := ovsdb.Get[ovsdb.Datapath](v, datapathOf(v, inUserspace))
	if d == nil {
		return l
	}
	if z := ovsdb.Get[ovsdb.CTZone](v, d.CTZones[l.number]); z != nil {
		l.id, l.value, l.keys, l.shared = z.UUID, z.Limit, z.ExternalIDs, z.TimeoutPolicy != nil
	}
	return l
}

func orNil(n int) *int {
	if n == 0 {
		return nil
	}
	return &n
}

func datapathName(inUserspace bool) string {
	if inUserspace {
		return userspace
	}
	return kernelDatapath
}

// dpctlName returns the name of a datapath in commands of dpctl.
func dpctlName(inUserspace bool) string {
	name := datapathName(inUserspace)
	return name + "@ovs-" + name
}

// datapathOf returns the row of a datapath; empty if there is none.
func datapathOf(v ovsdb.View, inUserspace bool) ovsdb.UUID {
	if row := ovsdb.First[ovsdb.OpenVSwitch](v); row != nil {
		return row.Datapaths[datapathName(inUserspace)]
	}
	return ""
}

// limitOps sets the limits of a bridge. have is nil for a bridge that the same transaction makes.
// The row of the datapath, which ovn-controller makes as well, may not exist yet.
func limitOps(v ovsdb.View, bridge ovsdb.UUID, have *ovsdb.Bridge, want ovs.Bridge) []ovsdb.Op {
	ops := flowLimit(v, have).ops(bridge, want.Learned)
	if want.Name != claims.ServiceBridge {
		return ops
	}
	datapath := datapathOf(v, want.Userspace)
	zone := zoneLimit(v, want.Userspace).ops(datapath, want.Connections)
	if datapath != "" || len(zone) == 0 {
		return append(ops, zone...)
	}
	row := ovsdb.Datapath{UUID: ovsdb.NamedUUID("datapath"),
		CTZones: map[int]ovsdb.UUID{claims.ZoneServices: newRow("CT_Zone")}}
	rows := map[string]ovsdb.UUID{datapathName(want.Userspace): row.UUID}
	return append(ops, zone[0], ovsdb.Insert(row),
		ovsdb.Mutate("Open_vSwitch", ovsdb.InsertInto("datapaths", rows)).All())
}

// Usage is the use of a limit, Hairpin's or an administrator's.
type Usage struct{ Used, Limit int }

// Usage returns the connections of claims.ZoneServices and the flows of
// pipeline.SvcSessionAffinity, each nil without a limit.
func (t *Target) Usage(ctx context.Context) (connections, learned *Usage, err error) {
	v := t.db.View()
	b := ovsdb.Find(v, func(b *ovsdb.Bridge) bool { return b.Name == claims.ServiceBridge })
	if b == nil {
		return nil, nil, nil
	}
	inUserspace := b.DatapathType == userspace
	if l := zoneLimit(v, inUserspace); l.value != nil {
		text, failed := t.vswitchd(ctx, "dpctl/ct-get-limits", dpctlName(inUserspace), "zone="+strconv.Itoa(l.number))
		connections, err = usage(text, *l.value, failed)
	}
	if l := flowLimit(v, b); l.value != nil {
		tables, failed := t.tables(ctx, b.Name)
		if failed == nil {
			learned = &Usage{int(tables[uint8(l.number)].Flows), *l.value}
		}
		err = errors.Join(err, failed)
	}
	return connections, learned, err
}

// usage parses the number of connections at the end of an answer to dpctl/ct-get-limits.
func usage(text string, limit int, err error) (*Usage, error) {
	if err != nil {
		return nil, err
	}
	_, number, _ := strings.Cut(text, "count=")
	n, err := strconv.Atoi(strings.TrimSpace(number))
	if err != nil {
		return nil, fmt.Errorf("Open vSwitch says %q, without count=", text)
	}
	return &Usage{n, limit}, nil
}
