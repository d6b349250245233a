package nbdb

import (
	"cmp"
	"reflect"
	"slices"

	"hairpin/ovsdb"
)

const idsColumn = "external_ids"

// schema holds the descriptions of all tables, and indexes of them.
type schema struct {
	tables  []*table          // by nb.Table
	byName  map[string]*table // by the name in the database
	partOf  map[string]string // the table of the rows that have a part, by the part's table
	indexed []*table          // tables with owners in the owner index
}

func newSchema() *schema {
	s := &schema{tables: tables(), byName: map[string]*table{}, partOf: map[string]string{}}
	slices.SortFunc(s.tables, func(a, b *table) int { return cmp.Compare(a.id, b.id) })
	for _, t := range s.tables {
		s.byName[t.name()] = t
		if t.parent.name != nil {
			p := s.tables[t.parent.table]
			p.children = append(p.children, t)
		}
		if o := t.others; o.names != nil {
			s.tables[o.table].namedBy = append(s.tables[o.table].namedBy, t)
		}
		if t.indexed {
			s.indexed = append(s.indexed, t)
		}
		if t.part != nil {
			s.partOf[t.part.table] = t.name()
		}
	}
	for _, t := range s.tables {
		t.buildLayout()
	}
	return s
}

// buildLayout builds the layout: the columns of the description, the owner's column, and those with
// references.
func (t *table) buildLayout() {
	var list []ovsdb.Column
	t.places = map[string]int{}
	add := func(name string, typ reflect.Type) {
		t.places[name] = len(list)
		list = append(list, ovsdb.Column{Name: name, Type: typ})
	}
	for _, c := range t.columns {
		add(c.name, c.typ)
	}
	if !t.indexed {
		add(idsColumn, reflect.TypeFor[map[string]string]())
	}
	refs := reflect.TypeFor[[]ovsdb.UUID]()
	for _, child := range t.children {
		add(child.parent.column, refs)
	}
	if t.part != nil {
		add(t.part.column, refs)
	}
	switch o := t.others; {
	case o.names == nil || o.back:
	case o.single:
		add(o.column, reflect.TypeFor[*ovsdb.UUID]())
	default:
		add(o.column, refs)
	}
	for _, member := range t.namedBy {
		if member.others.back {
			add(member.others.column, refs)
		}
	}
	t.layout = ovsdb.NewLayout(t.name(), list...)
}

func (t *table) name() string { return t.id.String() }

// mirrors returns the tables to mirror of one of the databases.
func (s *schema) mirrors(southbound bool) (list []ovsdb.Table) {
	for _, t := range s.tables {
		if t.southbound != southbound {
			continue
		}
		list = append(list, t.layout.Mirror())
		if t.part != nil {
			list = append(list, t.part.mirror)
		}
	}
	return list
}

// get returns a row of the table's database.
func (t *table) get(northbound, southbound ovsdb.View, id ovsdb.UUID) ovsdb.Record {
	if t.southbound {
		return t.layout.Get(southbound, id)
	}
	return t.layout.Get(northbound, id)
}

// at returns a column of an existing row.
func (t *table) at(r ovsdb.Record, column string) any { return r.Column(t.places[column]) }

// refs returns a column with references; none for a missing row.
func (t *table) refs(r ovsdb.Record, column string) []ovsdb.UUID {
	if !r.Exists() {
		return nil
	}
	switch v := t.at(r, column).(type) {
	case **ovsdb.UUID:
		if *v == nil {
			return nil
		}
		return []ovsdb.UUID{**v}
	case *[]ovsdb.UUID:
		return *v
	}
	panic(column + " has no references")
}

// ids returns external_ids; none for a missing row.
func (t *table) ids(r ovsdb.Record) map[string]string {
	if !r.Exists() {
		return nil
	}
	return *t.at(r, idsColumn).(*map[string]string)
}

// label returns the row's name, in a table that has names; empty for a missing row.
func (t *table) label(r ovsdb.Record) string {
	if !r.Exists() {
		return ""
	}
	return *t.at(r, "name").(*string)
}
