package ovsdb

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"hairpin/ovsdb/codec"
	"hairpin/ovsdb/jsontext"
)

// Table defines which columns of a table a [Client] mirrors.
type Table struct {
	typ       reflect.Type
	columns   []string
	deletions bool
}

// Mirror makes a client mirror the table of T: the given columns, or all that T has. The others
// keep their zero value.
func Mirror[T Row](columns ...string) Table {
	return Table{typ: reflect.TypeFor[T](), columns: columns}
}

// Deletions makes the server notify a client of deleted rows of a table only: the View has no row,
// and [Stats.Updates] counts the notifications. So a large table costs the client nothing.
func Deletions(table string) Table {
	return Table{typ: NewLayout(table).typ, deletions: true}
}

// String returns the name of the row type.
func (t Table) String() string { return t.typ.String() }

// mirror reads the messages of a monitor into a View. Its methods must not run concurrently.
type mirror struct {
	rowTypes *codec.Cache
	tables   []mirrored // in the order of their names
	interner *jsontext.Interner
	last     string // the transaction after which to resume; empty: none
}

// mirrored is a Table after its check.
type mirrored struct {
	*codec.RowType
	fields    []*codec.Field
	deletions bool
}

func byTable(m mirrored, name string) int { return cmp.Compare(m.Table, name) }

func newMirror(tables []Table) (*mirror, error) {
	m := &mirror{rowTypes: new(codec.Cache), interner: new(jsontext.Interner)}
	for _, t := range tables {
		c, err := codec.NewRowType(t.typ)
		if err != nil {
			return nil, err
		}
		fields, err := c.Pick(t.columns)
		if err != nil {
			return nil, fmt.Errorf("ovsdb: mirror %s: %w", c.Table, err)
		}
		at, found := slices.BinarySearchFunc(m.tables, c.Table, byTable)
		if found {
			return nil, fmt.Errorf("ovsdb: mirror %s: given twice", c.Table)
		}
		m.tables = slices.Insert(m.tables, at, mirrored{c, fields, t.deletions})
	}
	return m, nil
}

// empty returns the View without rows.
func (m *mirror) empty() View {
	s := &snapshot{rows: make([]rowset, len(m.tables))}
	for _, t := range m.tables {
		s.tables = append(s.tables, t.RowType)
	}
	return View{s}
}

// check returns why the tables cannot be mirrored from a database with this schema.
func (m *mirror) check(s *Schema) error {
	var bad []error
	for _, t := range m.tables {
		bad = append(bad, s.Check(t.RowType, t.fields))
	}
	return errors.Join(bad...)
}

// Methods of a client's monitor: an extension of ovsdb-server(7), which every supported server has.
const (
	monitorRequest = "monitor_cond_since"
	monitorNotice  = "update3"
)

// params renders the parameters of the request: database, the monitor's name (there is one per
// connection), tables, and the transaction after which to resume.
func (m *mirror) params(db string) []byte {
	buf := append(jsontext.AppendString([]byte{'['}, db), ',')
	buf = append(jsontext.AppendString(buf, db), ",{"...)
	for i, t := range m.tables {
		if i > 0 {
			buf = append(buf, ',')
		}
		var names []string
		for _, f := range t.fields {
			names = append(names, f.Name)
		}
		buf = append(jsontext.AppendString(buf, t.Table), `:[{"columns":`...)
		buf = jsontext.AppendStrings(buf, names)
		if t.deletions {
			buf = append(buf, `,"select":{"initial":false,"insert":false,"modify":false}`...)
		}
		buf = append(buf, "}]"...)
	}
	return append(jsontext.AppendString(append(buf, "},"...), cmp.Or(m.last, "00000000-0000-0000-0000-000000000000")), ']')
}

// first reads the result of the request. Resumed reports that it had only the changes since v.
func (m *mirror) first(p *jsontext.Parser, v View) (_ View, resumed bool) {
	p.Interner = m.interner
	p.Open('[')
	p.Next()
	resumed = p.Boolean()
	p.Next()
	last := p.Text()
	p.Next()
	edits := m.updates(p, v)
	p.Shut()
	if p.Err() != nil {
		m.last = ""
		return v, false
	}
	m.last = last
	if !resumed {
		edits = m.difference(v, edits)
	}
	return v.with(edits), resumed
}

// next reads the parameters of a notification.
func (m *mirror) next(p *jsontext.Parser, v View) View {
	p.Interner = m.interner
	p.Open('[')
	p.Next()
	p.Skip() // the monitor's name
	p.Next()
	last := p.Text()
	p.Next()
	edits := m.updates(p, v)
	p.Shut()
	if p.End() != nil {
		m.last = ""
		return v
	}
	m.last = last
	return v.with(edits)
}

// updates reads table-updates: an object with, for each table, an object with the change of each
// row.
func (m *mirror) updates(p *jsontext.Parser, v View) [][]entry {
	edits := make([][]entry, len(m.tables))
	p.Open('{')
	for p.More('}') {
		name := string(p.Key())
		i, found := slices.BinarySearchFunc(m.tables, name, byTable)
		if !found {
			p.Fail("table %q was not asked for", name)
		}
		p.Open('{')
		for p.More('}') {
			id := UUID(p.Key())
			if !codec.IsUUID(string(id)) {
				p.Fail("want a UUID, have %q", id)
			}
			edit := m.update(p, v, i, id)
			p.Note(name + " row " + string(id))
			edits[i] = append(edits[i], edit)
		}
	}
	return edits
}

// update reads a row-update2: {"initial": row}, {"insert": row}, {"modify": difference} or
// {"delete": null}.
func (m *mirror) update(p *jsontext.Parser, v View, table int, id UUID) entry {
	e := entry{id: id}
	p.Open('{')
	for p.More('}') {
		switch what := string(p.Key()); what {
		case "initial", "insert":
			e.row = m.read(p, table, id)
		case "modify":
			e.row = m.modify(p, v, table, id)
		case "delete":
			p.Skip()
		default:
			p.Fail("unknown update %q", what)
		}
	}
	return e
}

// read reads a whole row. Missing columns have their defaults.
func (m *mirror) read(p *jsontext.Parser, table int, id UUID) any {
	c := m.tables[table].RowType
	row := c.New(id)
	c.Read(p, row.Elem())
	return row.Interface()
}

// modify reads a difference to the row in v.
func (m *mirror) modify(p *jsontext.Parser, v View, table int, id UUID) any {
	c := m.tables[table].RowType
	old := v.s.rows[table].find(id)
	if old == nil {
		p.Fail("modified, but not known")
		return nil
	}
	row := c.New(id)
	row.Elem().Set(reflect.ValueOf(old).Elem())
	c.Patch(p, row.Elem())
	return row.Interface()
}

// difference returns the edits that change v to the rows that the server has now. So unchanged rows
// keep their pointer when the server sends all rows again.
func (m *mirror) difference(v View, now [][]entry) [][]entry {
	edits := make([][]entry, len(now))
	for i, rows := range m.empty().with(now).s.rows {
		old := v.s.rows[i]
		for e := range rows.all() {
			was := old.find(e.id)
			if was == nil || !m.tables[i].Equal(reflect.ValueOf(was).Elem(), reflect.ValueOf(e.row).Elem()) {
				edits[i] = append(edits[i], e)
			}
		}
		for e := range old.all() {
			if rows.find(e.id) == nil {
				edits[i] = append(edits[i], entry{id: e.id})
			}
		}
	}
	return edits
}
