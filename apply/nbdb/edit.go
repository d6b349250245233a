package nbdb

import (
	"maps"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/delta"
	"hairpin/ovsdb"
)

// edit collects the changes of one row: whole columns, and parts of sets and maps.
type edit struct {
	columns   []string
	mutations []ovsdb.Mutation
}

// column records a column to write unless it is the same.
func (e *edit) column(name string, same bool) {
	if !same {
		e.columns = append(e.columns, name)
	}
}

// set changes a set of strings by its difference. want and have (the mirror's) are sorted.
func (e *edit) set(column string, want, have []string) {
	if slices.Equal(want, have) {
		return
	}
	var add, remove []string
	for _, s := range want {
		if _, there := slices.BinarySearch(have, s); !there {
			add = append(add, s)
		}
	}
	for _, s := range have {
		if _, wanted := slices.BinarySearch(want, s); !wanted {
			remove = append(remove, s)
		}
	}
	if len(remove) > 0 {
		e.mutations = append(e.mutations, ovsdb.DeleteFrom(column, remove))
	}
	if len(add) > 0 {
		e.mutations = append(e.mutations, ovsdb.InsertInto(column, add))
	}
}

// keys changes Hairpin's keys of a map.
func (e *edit) keys(column string, want, have map[string]string, mine func(string) bool) {
	if maps.Equal(want, have) {
		return
	}
	var remove []string
	add := map[string]string{}
	for k, v := range have {
		if w, wanted := want[k]; mine(k) && (!wanted || w != v) {
			remove = append(remove, k)
		}
	}
	for k, w := range want {
		if v, there := have[k]; !there || v != w {
			add[k] = w
		}
	}
	slices.Sort(remove)
	if len(remove) > 0 { // before the insert, which does not overwrite an existing key
		e.mutations = append(e.mutations, ovsdb.DeleteFrom(column, remove))
	}
	if len(add) > 0 {
		e.mutations = append(e.mutations, ovsdb.InsertInto(column, add))
	}
}

// owner sets the owner in external_ids.
func (e *edit) owner(o cluster.Owner, have map[string]string) {
	e.keys(idsColumn, owned(o), have, isOwnerKey)
}

// disown removes the owner from external_ids.
func (e *edit) disown(have map[string]string) {
	e.keys(idsColumn, nil, have, isOwnerKey)
}

func isOwnerKey(k string) bool { return k == claims.KeyOwner }

// ops returns the operations of the edit; row has the new values of whole columns.
func (e *edit) ops(row ovsdb.Row, id ovsdb.UUID) []ovsdb.Op {
	var list []ovsdb.Op
	if len(e.columns) > 0 {
		list = append(list, ovsdb.Update(row, e.columns...).Row(id))
	}
	if len(e.mutations) > 0 {
		list = append(list, ovsdb.Mutate(row.Table(), e.mutations...).Row(id))
	}
	return list
}

// owned returns the external_ids of a new row.
func owned(o cluster.Owner) map[string]string { return map[string]string{claims.KeyOwner: o.String()} }

// links collects references to add to, and to remove from, columns of other rows.
type links map[link]*references

type link struct {
	table  string
	row    ovsdb.UUID
	column string
}

type references struct{ add, remove []ovsdb.UUID }

func (l links) of(table string, row ovsdb.UUID, column string) *references {
	k := link{table, row, column}
	if l[k] == nil {
		l[k] = &references{}
	}
	return l[k]
}

// ops returns one operation per row and column, in a fixed order.
func (l links) ops() []ovsdb.Op {
	var list []ovsdb.Op
	for _, k := range delta.Sorted(l, func(a, b link) int {
		return slices.Compare([]string{a.table, string(a.row), a.column}, []string{b.table, string(b.row), b.column})
	}) {
		var m []ovsdb.Mutation
		if r := l[k].remove; len(r) > 0 {
			m = append(m, ovsdb.DeleteFrom(k.column, r))
		}
		if a := l[k].add; len(a) > 0 {
			m = append(m, ovsdb.InsertInto(k.column, a))
		}
		list = append(list, ovsdb.Mutate(k.table, m...).Row(k.row))
	}
	return list
}
