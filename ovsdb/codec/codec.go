// Package codec converts rows between Go structs and the JSON of OVSDB (RFC 7047, 5.1), and checks
// such structs against a database's schema.
//
// A [RowType] is the result of reflection on a struct, computed once; a [Cache] keeps them. It
// reads rows and the differences of update2 (ovsdb-server(7)), and renders rows of a transaction.
//
// Equal rows are equal Go values (reflect.DeepEqual): sets are in ascending order without
// duplicates, and an empty set or map is nil.
package codec

import (
	"fmt"
	"reflect"
	"slices"
	"sync"

	"hairpin/ovsdb/jsontext"
)

// Row is a row of a table: a struct whose fields are columns, as package ovsdb describes. A type
// argument must be the struct itself, not a pointer to it.
type Row interface {
	// Table returns the name of the table. It is called on zero values.
	Table() string
}

// LayoutTag is the key of a tag that names the table of a struct without a method Table, at its
// first field. Package ovsdb makes such structs for layouts.
const LayoutTag = "table"

// LayoutTable returns the table in the LayoutTag of a struct; empty for any other type.
func LayoutTable(t reflect.Type) string {
	if t.Kind() != reflect.Struct || t.NumField() == 0 {
		return ""
	}
	return t.Field(0).Tag.Get(LayoutTag)
}

// RowType describes a type of rows: its table and its columns.
type RowType struct {
	Type   reflect.Type
	Table  string
	uuid   int // index of the field for _uuid
	fields []Field
}

// Field is one column of a row type.
type Field struct {
	Name  string // of the column
	index int    // of the struct field
	Column
}

// Cache keeps the RowType of every row and the Column of every type of value. Its zero value is
// ready to use.
type Cache struct {
	rows   sync.Map // reflect.Type to *RowType
	values sync.Map // reflect.Type to Column
}

// Of returns the RowType for the type of a row or of a pointer to a row.
func (cache *Cache) Of(t reflect.Type) (*RowType, error) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if rt, ok := cache.rows.Load(t); ok {
		return rt.(*RowType), nil
	}
	rt, err := NewRowType(t)
	if err != nil {
		return nil, err
	}
	cache.rows.Store(t, rt)
	return rt, nil
}

// Column returns the column for the type of a value, or nil.
func (cache *Cache) Column(t reflect.Type) Column {
	if t == nil {
		return nil
	}
	if c, ok := cache.values.Load(t); ok {
		return c.(Column)
	}
	c := columnOf(t)
	if c != nil {
		cache.values.Store(t, c)
	}
	return c
}

// NewRowType returns the RowType of a struct that is a Row or the type of a layout.
func NewRowType(t reflect.Type) (*RowType, error) {
	rt := &RowType{Type: t, uuid: -1}
	switch {
	case LayoutTable(t) != "":
		rt.Table = LayoutTable(t)
	case t.Implements(reflect.TypeFor[Row]()) && t.Kind() == reflect.Struct:
		rt.Table = reflect.Zero(t).Interface().(Row).Table()
	default:
		return nil, fmt.Errorf("ovsdb: %s is not a row: want a struct with a method Table() string", t)
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("ovsdb")
		switch {
		case name == "":
		case name == "_uuid" && f.Type == reflect.TypeFor[UUID]():
			rt.uuid = i
		default:
			col := columnOf(f.Type)
			if col == nil || !f.IsExported() {
				return nil, fmt.Errorf("ovsdb: %s: field %s of type %s cannot stand for a column", t, f.Name, f.Type)
			}
			rt.fields = append(rt.fields, Field{name, i, col})
		}
	}
	if rt.uuid < 0 {
		return nil, fmt.Errorf("ovsdb: %s has no field UUID of type UUID with the tag _uuid", t)
	}
	return rt, nil
}

// field returns the field for a column, or nil if the row type has none.
func (rt *RowType) field(name []byte) *Field {
	for i := range rt.fields {
		if rt.fields[i].Name == string(name) {
			return &rt.fields[i]
		}
	}
	return nil
}

// Pick returns the fields for some columns, or all if columns is empty.
func (rt *RowType) Pick(columns []string) ([]*Field, error) {
	var picked []*Field
	for i := range rt.fields {
		if len(columns) == 0 || slices.Contains(columns, rt.fields[i].Name) {
			picked = append(picked, &rt.fields[i])
		}
	}
	for _, name := range columns {
		if rt.field([]byte(name)) == nil {
			return nil, fmt.Errorf("%s has no column %q", rt.Type, name)
		}
	}
	return picked, nil
}

// New returns a pointer to a new row, which has only its UUID.
func (rt *RowType) New(id UUID) reflect.Value {
	row := reflect.New(rt.Type)
	row.Elem().Field(rt.uuid).SetString(string(id))
	return row
}

// UUIDOf returns the UUID of a row.
func (rt *RowType) UUIDOf(row reflect.Value) UUID { return UUID(row.Field(rt.uuid).String()) }

// Label identifies a row in an error text by its first string, which is its name in every table
// with names.
func (rt *RowType) Label(row reflect.Value) string {
	for _, f := range rt.fields {
		if v := row.Field(f.index); v.Kind() == reflect.String && v.Len() > 0 {
			return fmt.Sprintf("%q", v.String())
		}
	}
	return string(rt.UUIDOf(row))
}

// Append renders columns of a row as a JSON object. With sparse it leaves out zero values, which
// are the defaults of OVSDB (RFC 7047, 5.2.1).
func (rt *RowType) Append(buf []byte, row reflect.Value, fields []*Field, sparse bool) (_ []byte, err error) {
	buf = append(buf, '{')
	comma := false
	for _, f := range fields {
		v := row.Field(f.index)
		if sparse && (v.IsZero() || (v.Kind() == reflect.Map || v.Kind() == reflect.Slice) && v.Len() == 0) {
			continue
		}
		if comma {
			buf = append(buf, ',')
		}
		comma = true
		buf = append(jsontext.AppendString(buf, f.Name), ':')
		if buf, err = f.Append(buf, v); err != nil {
			return buf, fmt.Errorf("column %s: %w", f.Name, err)
		}
	}
	return append(buf, '}'), nil
}

// Read fills a row from the JSON object that comes next. It skips columns that the row type does
// not have, and keeps the values of missing columns.
func (rt *RowType) Read(p *jsontext.Parser, row reflect.Value) {
	p.Open('{')
	for p.More('}') {
		name := p.Key()
		if string(name) == "_uuid" {
			row.Field(rt.uuid).SetString(string(ReadUUID(p)))
		} else if f := rt.field(name); f != nil {
			f.read(p, row.Field(f.index))
			p.Note(f.Name)
		} else {
			p.Skip()
		}
	}
}

// Patch changes a row by the difference that comes next (update2 in ovsdb-server(7)).
func (rt *RowType) Patch(p *jsontext.Parser, row reflect.Value) {
	p.Open('{')
	for p.More('}') {
		if f := rt.field(p.Key()); f != nil {
			f.patch(p, row.Field(f.index))
			p.Note(f.Name)
		} else {
			p.Skip()
		}
	}
}

// Equal compares the columns of two rows.
func (rt *RowType) Equal(a, b reflect.Value) bool {
	for _, f := range rt.fields {
		if !f.equal(a.Field(f.index), b.Field(f.index)) {
			return false
		}
	}
	return true
}
