package nbdb

import (
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/nb"
	"hairpin/ovsdb"
)

// get returns a row of the mirror.
func (m *model) get(t *table, id ovsdb.UUID) ovsdb.Record { return t.get(m.nb, m.sb, id) }

// convert converts a row of the mirror to nb's type. It returns nil if the row is gone or nb has no
// type for it. own reports whether the row is Hairpin's. An unexpected value that nb cannot
// represent makes the row an altered one.
func (m *model) convert(name string, id ovsdb.UUID) (_ nb.Row, own bool) {
	t := m.schema.byName[name]
	if t == nil {
		return nil, false
	}
	have := m.get(t, id)
	if !have.Exists() {
		return nil, false
	}
	row, wrong := t.row.empty(), ""
	expect := func(column string, holds bool) {
		if !holds && wrong == "" {
			wrong = column
		}
	}
	for i := range t.columns {
		expect(t.columns[i].name, t.columns[i].load(row, have.Column(i)))
	}
	if t.part != nil {
		expect(t.part.column, t.part.load(m, row, t.refs(have, t.part.column)))
	}
	if p := t.parent; p.name != nil {
		// Empty without a parent.
		over := m.schema.tables[p.table]
		*p.name(row) = over.label(m.get(over, m.parents[id]))
	}
	if o := t.others; o.names != nil {
		o.load(row, m.labels(m.schema.tables[o.table], m.othersOf(t, have)))
	}
	text, own := m.ownerOf(t, row, have)
	owner := cluster.ParseOwner(text)
	expect("owner", owner.String() == text)
	nb.SetOwner(row, owner)
	if wrong != "" && own {
		row = m.altered(row, wrong)
	}
	return row, own
}

// ownerOf returns the owner's text. Its presence marks the row as Hairpin's.
func (m *model) ownerOf(t *table, row nb.Row, have ovsdb.Record) (text string, own bool) {
	if t.indexed {
		text, own = m.owners()[ownerKey(row.Key())]
	} else {
		text, own = t.ids(have)[claims.KeyOwner]
	}
	return text, own
}

// global returns the row of NB_Global.
func (m *model) global() ovsdb.Record {
	for r := range m.schema.tables[nb.TableGlobal].layout.Rows(m.nb) {
		return r
	}
	return ovsdb.Record{}
}

// owners returns the external_ids of NB_Global, which hold the owners of rows without external_ids.
func (m *model) owners() map[string]string { return m.schema.tables[nb.TableGlobal].ids(m.global()) }

// othersOf returns the rows that a row refers to.
func (m *model) othersOf(t *table, r ovsdb.Record) []ovsdb.UUID {
	if t.others.back && r.Exists() {
		return m.groups[r.UUID()]
	}
	return t.refs(r, t.others.column)
}

// labels returns the names of rows, sorted. Thousands of load balancers have the same list of
// groups and share the result.
func (m *model) labels(t *table, ids []ovsdb.UUID) []string {
	if len(ids) == 0 {
		return nil
	}
	if last := &m.named; len(last.ids) == len(ids) && &last.ids[0] == &ids[0] {
		return last.names // of the same slice, see members
	}
	names := make([]string, 0, len(ids))
	for _, id := range ids {
		names = append(names, t.label(m.get(t, id)))
	}
	slices.Sort(names)
	m.named.ids, m.named.names = ids, names
	return names
}

// altered returns a copy of a row that equals no wanted one. Its owner names the unexpected column.
func (m *model) altered(row nb.Row, column string) nb.Row {
	row = m.schema.tables[row.Key().Table].row.copy(row)
	nb.SetOwner(row, cluster.Owner{Kind: "altered", Name: column})
	return row
}
