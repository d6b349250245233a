package ovsdb

import (
	"fmt"
	"reflect"
	"slices"
	"sync"
)

// Row is a struct whose fields stand for the columns of a table; see the package comment for its
// form. As type parameter it is the struct, not a pointer to it.
type Row interface {
	// Table returns the name of the table. It is called on zero values.
	Table() string
}

// codec is the result of reflection on a row type, computed once.
type codec struct {
	typ    reflect.Type
	table  string
	uuid   int // index of the field for _uuid
	fields []field
}

// field is one column of a row type.
type field struct {
	name  string // of the column
	index int    // of the struct field
	column
}

// codecs caches the codec of every row type and the column of every type of value. Its zero value
// is ready to use.
type codecs struct {
	rows   sync.Map // reflect.Type to *codec
	values sync.Map // reflect.Type to column
}

// of returns the codec for the type of a row or of a pointer to a row.
func (cs *codecs) of(t reflect.Type) (*codec, error) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if c, ok := cs.rows.Load(t); ok {
		return c.(*codec), nil
	}
	c, err := newCodec(t)
	if err != nil {
		return nil, err
	}
	cs.rows.Store(t, c)
	return c, nil
}

// column returns the column for the type of a value, or nil.
func (cs *codecs) column(t reflect.Type) column {
	if t == nil {
		return nil
	}
	if c, ok := cs.values.Load(t); ok {
		return c.(column)
	}
	c := columnOf(t)
	if c != nil {
		cs.values.Store(t, c)
	}
	return c
}

func newCodec(t reflect.Type) (*codec, error) {
	c := &codec{typ: t, uuid: -1}
	switch {
	case laidOut(t) != "":
		c.table = laidOut(t)
	case t.Implements(reflect.TypeFor[Row]()) && t.Kind() == reflect.Struct:
		c.table = reflect.Zero(t).Interface().(Row).Table()
	default:
		return nil, fmt.Errorf("ovsdb: %s is not a row: want a struct with a method Table() string", t)
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("ovsdb")
		switch {
		case name == "":
		case name == "_uuid" && f.Type == reflect.TypeFor[UUID]():
			c.uuid = i
		default:
			col := columnOf(f.Type)
			if col == nil || !f.IsExported() {
				return nil, fmt.Errorf("ovsdb: %s: field %s of type %s cannot stand for a column", t, f.Name, f.Type)
			}
			c.fields = append(c.fields, field{name, i, col})
		}
	}
	if c.uuid < 0 {
		return nil, fmt.Errorf("ovsdb: %s has no field UUID of type UUID with the tag _uuid", t)
	}
	return c, nil
}

// field returns the field for a column, or nil if the row type has none.
func (c *codec) field(name []byte) *field {
	for i := range c.fields {
		if c.fields[i].name == string(name) {
			return &c.fields[i]
		}
	}
	return nil
}

// pick returns the fields for some columns, or all if columns is empty.
func (c *codec) pick(columns []string) ([]*field, error) {
	var picked []*field
	for i := range c.fields {
		if len(columns) == 0 || slices.Contains(columns, c.fields[i].name) {
			picked = append(picked, &c.fields[i])
		}
	}
	for _, name := range columns {
		if c.field([]byte(name)) == nil {
			return nil, fmt.Errorf("%s has no column %q", c.typ, name)
		}
	}
	return picked, nil
}

// uuidOf returns the UUID of a row.
func (c *codec) uuidOf(row reflect.Value) UUID { return UUID(row.Field(c.uuid).String()) }

// label identifies a row in an error text by its first string, which is its name in every table
// with names.
func (c *codec) label(row reflect.Value) string {
	for _, f := range c.fields {
		if v := row.Field(f.index); v.Kind() == reflect.String && v.Len() > 0 {
			return fmt.Sprintf("%q", v.String())
		}
	}
	return string(c.uuidOf(row))
}

// appendRow renders columns of a row as a JSON object. With sparse it leaves out zero values, which
// are the defaults of OVSDB (RFC 7047, 5.2.1).
func (c *codec) appendRow(buf []byte, row reflect.Value, fields []*field, sparse bool) (_ []byte, err error) {
	buf = append(buf, '{')
	some := false
	for _, f := range fields {
		v := row.Field(f.index)
		if sparse && (v.IsZero() || (v.Kind() == reflect.Map || v.Kind() == reflect.Slice) && v.Len() == 0) {
			continue
		}
		if some {
			buf = append(buf, ',')
		}
		some = true
		buf = append(appendString(buf, f.name), ':')
		if buf, err = f.append(buf, v); err != nil {
			return buf, fmt.Errorf("column %s: %w", f.name, err)
		}
	}
	return append(buf, '}'), nil
}

// read fills a row from the JSON object that comes next. It skips columns that the row type does
// not have, and keeps the values of missing columns.
func (c *codec) read(p *parser, row reflect.Value) {
	p.open('{')
	for p.more('}') {
		name := p.key()
		if string(name) == "_uuid" {
			row.Field(c.uuid).SetString(string(p.uuid()))
		} else if f := c.field(name); f != nil {
			f.read(p, row.Field(f.index))
			p.note(f.name)
		} else {
			p.skip()
		}
	}
}

// note adds the location to an error, from the inside to the outside.
func (p *parser) note(where string) {
	if p.err != nil {
		p.err = fmt.Errorf("%s: %w", where, p.err)
	}
}

// equal compares the columns of two rows.
func (c *codec) equal(a, b reflect.Value) bool {
	for _, f := range c.fields {
		if !f.equal(a.Field(f.index), b.Field(f.index)) {
			return false
		}
	}
	return true
}
