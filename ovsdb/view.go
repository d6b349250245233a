package ovsdb

import (
	"fmt"
	"iter"
	"reflect"
	"slices"

	"hairpin/ovsdb/codec"
)

// View is the content of the mirrored tables at one moment. It never changes. The zero View is
// empty.
type View struct {
	s *snapshot
}

// snapshot is what a View points to.
type snapshot struct {
	tables []*codec.RowType // in the order of their names
	rows   []rowset         // for each table
}

// table returns the rows of T's table.
func table[T Row](v View) rowset { return v.rowsOf(reflect.TypeFor[T]()) }

func (v View) rowsOf(t reflect.Type) rowset {
	if v.s == nil {
		return rowset{}
	}
	for i, c := range v.s.tables {
		if c.Type == t {
			return v.s.rows[i]
		}
	}
	panic(fmt.Sprintf("ovsdb: %s is not among the tables that this client mirrors", t))
}

// Rows yields the rows of T's table in the order of their UUIDs. It panics when the client does not
// mirror T. The rows must not be modified.
func Rows[T Row](v View) iter.Seq[*T] {
	rows := table[T](v)
	return func(yield func(*T) bool) {
		for e := range rows.all() {
			if !yield(e.row.(*T)) {
				return
			}
		}
	}
}

// Get returns a row by its UUID, or nil. It panics when the client does not mirror T.
func Get[T Row](v View, id UUID) *T {
	row, _ := table[T](v).find(id).(*T)
	return row
}

// First returns the first row of T's table, or nil: for tables that have one row, such as
// NB_Global. It panics when the client does not mirror T.
func First[T Row](v View) *T {
	for row := range Rows[T](v) {
		return row
	}
	return nil
}

// Find returns the first row for which is returns true, or nil. It panics when the client does not
// mirror T.
func Find[T Row](v View, is func(*T) bool) *T {
	for row := range Rows[T](v) {
		if is(row) {
			return row
		}
	}
	return nil
}

// BridgeNamed returns the bridge with a name; nil if there is none.
func BridgeNamed(v View, name string) *Bridge {
	return Find(v, func(b *Bridge) bool { return b.Name == name })
}

// Len returns the number of rows of T's table. It panics when the client does not mirror T.
func Len[T Row](v View) int { return table[T](v).size }

// Change lists the rows of a table that differ between two Views, in ascending order.
type Change struct {
	Table   string
	Changed []UUID // new, or with other values
	Deleted []UUID
}

// Since returns what changed from old to v, two Views of one Client, by table name; it omits tables
// without a change. Its cost depends on the changes, not on the number of rows. All rows are new
// since the zero View. A server that restarts with the same content causes no change, even if it
// cannot resume.
func (v View) Since(old View) []Change {
	if v.s == nil || v.s == old.s {
		return nil
	}
	var list []Change
	for i, c := range v.s.tables {
		var before rowset
		if old.s != nil {
			before = old.s.rows[i]
		}
		ch := Change{Table: c.Table}
		if ch.Changed, ch.Deleted = v.s.rows[i].since(before); ch.Changed != nil || ch.Deleted != nil {
			list = append(list, ch)
		}
	}
	return list
}

// describe names a row by table and name, for error texts.
func (v View) describe(id UUID) string {
	if v.s == nil {
		return ""
	}
	for i, c := range v.s.tables {
		if row := v.s.rows[i].find(id); row != nil {
			return c.Table + " " + c.Label(reflect.ValueOf(row).Elem())
		}
	}
	return ""
}

// with returns a View after edits to each table. Edits need not be in order; of two with the same
// UUID, the later one counts.
func (v View) with(edits [][]entry) View {
	s := &snapshot{tables: v.s.tables, rows: slices.Clone(v.s.rows)}
	for i, list := range edits {
		slices.SortStableFunc(list, func(a, b entry) int { return byID(a, b.id) })
		last := list[:0]
		for j, e := range list {
			if j+1 == len(list) || list[j+1].id != e.id {
				last = append(last, e)
			}
		}
		s.rows[i] = s.rows[i].with(last)
	}
	return View{s}
}
