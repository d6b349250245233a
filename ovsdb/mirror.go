package ovsdb

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
)

// Table defines which columns of a table a [Client] mirrors.
type Table struct {
	typ     reflect.Type
	columns []string
}

// Mirror makes a client mirror the table of T: the given columns, or all that T has. The others
// keep their zero value.
func Mirror[T Row](columns ...string) Table {
	return Table{typ: reflect.TypeFor[T](), columns: columns}
}

// String returns the name of the row type.
func (t Table) String() string { return t.typ.String() }

// mirror reads the messages of a monitor into a View. Its methods must not run concurrently.
type mirror struct {
	codecs *codecs
	tables []mirrored // in the order of their names
	words  *words
	last   string // the transaction after which to resume; empty: none
}

// mirrored is a Table after its check.
type mirrored struct {
	*codec
	fields []*field
}

func byTable(m mirrored, name string) int { return cmp.Compare(m.table, name) }

func newMirror(tables []Table) (*mirror, error) {
	m := &mirror{codecs: new(codecs), words: new(words)}
	for _, t := range tables {
		c, err := newCodec(t.typ)
		if err != nil {
			return nil, err
		}
		fields, err := c.pick(t.columns)
		if err != nil {
			return nil, fmt.Errorf("ovsdb: mirror %s: %w", c.table, err)
		}
		at, found := slices.BinarySearchFunc(m.tables, c.table, byTable)
		if found {
			return nil, fmt.Errorf("ovsdb: mirror %s: given twice", c.table)
		}
		m.tables = slices.Insert(m.tables, at, mirrored{c, fields})
	}
	return m, nil
}

// empty returns the View without rows.
func (m *mirror) empty() View {
	s := &snapshot{rows: make([]rowset, len(m.tables))}
	for _, t := range m.tables {
		s.tables = append(s.tables, t.codec)
	}
	return View{s}
}

// check returns why the tables cannot be mirrored from a database with this schema.
func (m *mirror) check(s *Schema) error {
	var bad []error
	for _, t := range m.tables {
		bad = append(bad, s.check(t.codec, t.fields))
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
	buf := append(appendString([]byte{'['}, db), ',')
	buf = append(appendString(buf, db), ",{"...)
	for i, t := range m.tables {
		if i > 0 {
			buf = append(buf, ',')
		}
		var names []string
		for _, f := range t.fields {
			names = append(names, f.name)
		}
		buf = append(appendString(buf, t.table), `:[{"columns":`...)
		buf = append(appendStrings(buf, names), "}]"...)
	}
	return append(appendString(append(buf, "},"...), cmp.Or(m.last, "00000000-0000-0000-0000-000000000000")), ']')
}

// first reads the result of the request. Resumed reports that it had only the changes since v.
func (m *mirror) first(p *parser, v View) (_ View, resumed bool) {
	p.words = m.words
	p.open('[')
	p.next()
	resumed = p.boolean()
	p.next()
	last := p.text()
	p.next()
	edits := m.updates(p, v)
	p.shut()
	if p.err != nil {
		m.last = ""
		return v, false
	}
	m.last = last
	if !resumed {
		edits = m.replay(v, edits)
	}
	return v.with(edits), resumed
}

// next reads the parameters of a notification.
func (m *mirror) next(p *parser, v View) View {
	p.words = m.words
	p.open('[')
	p.next()
	p.skip() // the monitor's name
	p.next()
	last := p.text()
	p.next()
	edits := m.updates(p, v)
	p.shut()
	if p.end() != nil {
		m.last = ""
		return v
	}
	m.last = last
	return v.with(edits)
}

// updates reads table-updates: an object with, for each table, an object with the change of each
// row.
func (m *mirror) updates(p *parser, v View) [][]entry {
	edits := make([][]entry, len(m.tables))
	p.open('{')
	for p.more('}') {
		name := string(p.key())
		i, found := slices.BinarySearchFunc(m.tables, name, byTable)
		if !found {
			p.fail("table %q was not asked for", name)
		}
		p.open('{')
		for p.more('}') {
			id := UUID(p.key())
			if !isUUID(string(id)) {
				p.fail("want a UUID, have %q", id)
			}
			edit := m.update(p, v, i, id)
			p.note(name + " row " + string(id))
			edits[i] = append(edits[i], edit)
		}
	}
	return edits
}

// update reads a row-update2: {"initial": row}, {"insert": row}, {"modify": difference} or
// {"delete": null}.
func (m *mirror) update(p *parser, v View, table int, id UUID) entry {
	e := entry{id: id}
	p.open('{')
	for p.more('}') {
		switch what := string(p.key()); what {
		case "initial", "insert":
			e.row = m.read(p, table, id)
		case "modify":
			e.row = m.modify(p, v, table, id)
		case "delete":
			p.skip()
		default:
			p.fail("unknown update %q", what)
		}
	}
	return e
}

// read reads a whole row. Missing columns have their defaults.
func (m *mirror) read(p *parser, table int, id UUID) any {
	c := m.tables[table].codec
	row := reflect.New(c.typ)
	row.Elem().Field(c.uuid).SetString(string(id))
	c.read(p, row.Elem())
	return row.Interface()
}

// modify reads a difference to the row in v.
func (m *mirror) modify(p *parser, v View, table int, id UUID) any {
	c := m.tables[table].codec
	old := v.s.rows[table].find(id)
	if old == nil {
		p.fail("modified, but not known")
		return nil
	}
	row := reflect.New(c.typ)
	row.Elem().Set(reflect.ValueOf(old).Elem())
	p.open('{')
	for p.more('}') {
		if f := c.field(p.key()); f != nil {
			f.patch(p, row.Elem().Field(f.index))
			p.note(f.name)
		} else {
			p.skip()
		}
	}
	return row.Interface()
}

// replay returns the edits from v to the server's rows, so that unchanged rows keep their pointer.
func (m *mirror) replay(v View, now [][]entry) [][]entry {
	edits := make([][]entry, len(now))
	for i, rows := range m.empty().with(now).s.rows {
		old := v.s.rows[i]
		for e := range rows.all() {
			was := old.find(e.id)
			if was == nil || !m.tables[i].equal(reflect.ValueOf(was).Elem(), reflect.ValueOf(e.row).Elem()) {
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
