package vsctl

import (
	"fmt"
	"maps"
	"slices"

	"hairpin/claims"
	"hairpin/delta"
	"hairpin/ovsdb"
	"hairpin/pipeline"
)

// Package pipeline has the names of tables. Hairpin writes a table's name twice to its row of
// Flow_Table: in the column name, and in external_ids with claims.KeyTable. If the two differ, the
// name is another program's or an administrator's: Hairpin keeps it and writes only the key. A name
// is no part of a lookup, so ovs-vswitchd changes it without a change of flows or megaflows.

// tableNames reports whether the key is as wanted on all tables of a bridge (on each table of the
// pipeline, with its name, and on no other), and whether it is on some. key is the bridge as in
// flow.Key.
func tableNames(v ovsdb.View, b *ovsdb.Bridge, key string) (all, some bool) {
	all = true
	for id := range b.FlowTables {
		if row := flowTable(v, b, id); row.ExternalIDs[claims.KeyTable] != "" {
			some = true
			_, declared := pipeline.Lookup(pipeline.Bridge(key), uint8(id))
			all = all && declared
		}
	}
	for _, t := range pipeline.Tables(pipeline.Bridge(key)) {
		row := flowTable(v, b, int(t.ID))
		all = all && row.Name != nil && row.ExternalIDs[claims.KeyTable] == t.Name
	}
	return all, some
}

// flowTable returns the row of a table, without a UUID if there is none.
func flowTable(v ovsdb.View, b *ovsdb.Bridge, id int) ovsdb.FlowTable {
	if row := ovsdb.Get[ovsdb.FlowTable](v, b.FlowTables[id]); row != nil {
		return *row
	}
	return ovsdb.FlowTable{}
}

// nameOps names the tables of bridges, and removes names.
func (cfg *Config) nameOps(v ovsdb.View, d delta.Delta[string, bool]) (ops []ovsdb.Op) {
	for b := range ovsdb.Rows[ovsdb.Bridge](v) {
		key := cfg.Key(b.Name)
		_, added := d.Add[key]
		_, changed := d.Change[key]
		_, removed := d.Delete[key]
		if !added && !changed && !removed {
			continue
		}
		names := map[int]string{}
		for id := range b.FlowTables {
			names[id] = ""
		}
		for _, t := range pipeline.Tables(pipeline.Bridge(key)) {
			if !removed {
				names[int(t.ID)] = t.Name
			}
		}
		for _, id := range slices.Sorted(maps.Keys(names)) {
			ops = append(ops, nameTable(v, b, id, names[id])...)
		}
	}
	return ops
}

// nameTable gives a table its name, or removes the one that it has from Hairpin if name is empty.
// A row without other content is removed with the name.
func nameTable(v ovsdb.View, b *ovsdb.Bridge, id int, name string) []ovsdb.Op {
	row := flowTable(v, b, id)
	had := row.ExternalIDs[claims.KeyTable]
	ours := row.Name == nil || *row.Name == had
	keys := map[string]string{claims.KeyTable: name}
	switch {
	case name == had && (name == "" || row.Name != nil):
		return nil
	case row.UUID == "":
		row = ovsdb.FlowTable{UUID: ovsdb.NamedUUID(fmt.Sprintf("table %s %d", b.Name, id)), Name: &name,
			ExternalIDs: keys}
		return []ovsdb.Op{ovsdb.Insert(row), ovsdb.Mutate("Bridge",
			ovsdb.InsertInto("flow_tables", map[int]ovsdb.UUID{id: row.UUID})).Row(b.UUID)}
	case name != "" && ours:
		return append(KeyOps(row.Table(), row.UUID, keys, nil),
			ovsdb.Update(ovsdb.FlowTable{Name: &name}, "name").Row(row.UUID))
	case name != "":
		return KeyOps(row.Table(), row.UUID, keys, nil)
	case ours && row.FlowLimit == nil && row.OverflowPolicy == nil && len(row.Groups)+len(row.Prefixes) == 0 &&
		len(row.ExternalIDs) == 1:
		return []ovsdb.Op{ovsdb.Mutate("Bridge", ovsdb.DeleteFrom("flow_tables", []int{id})).Row(b.UUID)}
	}
	ops := KeyOps(row.Table(), row.UUID, nil, []string{claims.KeyTable})
	if ours {
		ops = append(ops, ovsdb.Update(ovsdb.FlowTable{}, "name").Row(row.UUID))
	}
	return ops
}
