package ovsdb

import (
	"iter"
	"reflect"

	"hairpin/ovsdb/codec"
)

// Column is a column of a [Layout].
type Column struct {
	Name string
	Type reflect.Type // of its values, as in a row type: string, *string, []UUID, map[string]string …
}

// Layout is a row type built from a description at run time, for callers that do not describe
// tables by a struct. Two layouts with equal columns are equal.
type Layout struct {
	table string
	typ   reflect.Type
}

// NewLayout makes a layout. It panics if a column is given twice, as
// reflect.StructOf does.
func NewLayout(table string, columns ...Column) Layout {
	fields := []reflect.StructField{{Name: "UUID", Type: reflect.TypeFor[UUID](),
		Tag: reflect.StructTag(`ovsdb:"_uuid" ` + codec.LayoutTag + `:"` + table + `"`)}}
	for _, c := range columns {
		fields = append(fields, reflect.StructField{Name: "Column_" + c.Name, Type: c.Type,
			Tag: reflect.StructTag(`ovsdb:"` + c.Name + `"`)})
	}
	return Layout{table, reflect.StructOf(fields)}
}

// Mirror makes a client mirror the layout's columns.
func (l Layout) Mirror() Table { return Table{typ: l.typ} }

// New makes a row, with every column at OVSDB's default.
func (l Layout) New(id UUID) Record {
	r := Record{reflect.New(l.typ).Elem()}
	r.row.Field(0).SetString(string(id))
	return r
}

// Get returns a row by its UUID; see [Record.Exists]. It panics when the client of the View does
// not mirror the layout.
func (l Layout) Get(v View, id UUID) Record {
	if row := v.rowsOf(l.typ).find(id); row != nil {
		return Record{reflect.ValueOf(row).Elem()}
	}
	return Record{}
}

// Rows yields the rows in the order of their UUIDs. It panics when the client of the View does not
// mirror the layout.
func (l Layout) Rows(v View) iter.Seq[Record] {
	return func(yield func(Record) bool) {
		for e := range v.rowsOf(l.typ).all() {
			if !yield(Record{reflect.ValueOf(e.row).Elem()}) {
				return
			}
		}
	}
}

// Record is a row of a [Layout]. A Record of a View must not be modified.
type Record struct {
	row reflect.Value // a struct
}

// Table returns the name of the table.
func (r Record) Table() string { return codec.LayoutTable(r.row.Type()) }

// Exists reports whether the row exists.
func (r Record) Exists() bool { return r.row.IsValid() }

// UUID returns the row's UUID.
func (r Record) UUID() UUID { return UUID(r.row.Field(0).String()) }

// Column returns a pointer to the value of the layout's column with index i.
func (r Record) Column(i int) any { return r.row.Field(i + 1).Addr().Interface() }

// structOf returns the struct of a row.
func structOf(r Row) reflect.Value {
	if r, ok := r.(Record); ok {
		return r.row
	}
	return reflect.Indirect(reflect.ValueOf(r))
}
