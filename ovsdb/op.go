package ovsdb

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Op is one operation of a transaction (RFC 7047, 5.2). It is a value: methods return a changed
// copy.
type Op struct {
	kind    string
	table   string
	row     Row
	columns []string
	where   []condition
	all     bool // where is empty on purpose
	changes []Mutation
}

type condition struct {
	column, function string
	value            any
}

// Insert inserts a row, without the columns that have their zero value, which is OVSDB's default.
// Its UUID field may be empty, a [NamedUUID] by which other operations of the transaction refer to
// it, or the [NewUUID] of the new row.
func Insert(row Row) Op { return Op{kind: "insert", table: row.Table(), row: row} }

// Update sets the given columns (without any: all that the row type has) of the row with the UUID
// of row, or of those that Where selects.
func Update(row Row, columns ...string) Op {
	return Op{kind: "update", table: row.Table(), row: row, columns: columns}
}

// Mutate changes columns of the rows that Where selects by a difference. This is cheaper than to
// set them, and keeps concurrent changes by others.
func Mutate(table string, changes ...Mutation) Op {
	return Op{kind: "mutate", table: table, changes: changes}
}

// Delete deletes the rows that Where selects.
func Delete(table string) Op { return Op{kind: "delete", table: table} }

// Select reads the given columns (without any: all that T has) of the rows that Where selects, or
// of all. See [Selected].
func Select[T Row](columns ...string) Op {
	var row T
	return Op{kind: "select", table: row.Table(), row: row, columns: columns, all: true}
}

// Where adds a condition: function is one of == != < <= > >= includes excludes, value as for
// [InsertInto]. A row is selected if all conditions hold. The column _uuid may be used.
func (o Op) Where(column, function string, value any) Op {
	o.where = append(slices.Clip(o.where), condition{column, function, value})
	return o
}

// Row selects one row.
func (o Op) Row(id UUID) Op { return o.Where("_uuid", "==", id) }

// All selects every row of the table. Without it an operation that changes rows needs a condition.
func (o Op) All() Op {
	o.where, o.all = nil, true
	return o
}

// Mutation is one change of a column (RFC 7047, 5.1).
type Mutation struct {
	column, mutator string
	value           any
}

// InsertInto adds to a set or map column. Value is a string, bool, int, float64, UUID, a slice of
// these for a set, or a map from string to string, int or UUID, or from int to UUID. A key that is
// already in a map keeps its value.
func InsertInto(column string, value any) Mutation { return Mutation{column, "insert", value} }

// DeleteFrom removes from a set or map column. Value is as for InsertInto; a slice of strings or
// ints removes these keys from a map whatever their values are.
func DeleteFrom(column string, value any) Mutation { return Mutation{column, "delete", value} }

// Add adds n to an integer column.
func Add(column string, n int) Mutation { return Mutation{column, "+=", n} }

// String describes the operation for logs and error texts.
func (o Op) String() string {
	var b strings.Builder
	b.WriteString(o.kind + " " + o.table)
	if o.kind == "insert" || o.kind == "update" {
		b.WriteString(label(o.row))
	}
	for i, c := range o.where {
		fmt.Fprintf(&b, "%s %s %s %v", []string{" where", " and"}[min(i, 1)], c.column, c.function, c.value)
	}
	return b.String()
}

func label(row Row) string {
	v := structOf(row)
	c, err := newCodec(v.Type())
	if err != nil {
		return ""
	}
	if l := c.label(v); l != "" {
		return " " + l
	}
	return ""
}

// appendOp renders an operation.
func (cs *codecs) appendOp(buf []byte, o Op) (_ []byte, err error) {
	buf = append(appendString(append(buf, `{"op":`...), o.kind), `,`...)
	switch o.kind {
	case "insert":
		buf, err = cs.appendInsert(buf, o)
	case "update":
		buf, err = cs.appendUpdate(buf, o)
	case "mutate":
		buf, err = cs.appendMutate(buf, o)
	case "delete":
		buf, err = cs.appendWhere(buf, o)
	case "select":
		buf, err = cs.appendSelect(buf, o)
	}
	return append(buf, '}'), err
}

func (cs *codecs) appendTable(buf []byte, o Op) []byte {
	return appendString(append(buf, `"table":`...), o.table)
}

// appendWhere renders the table and the conditions.
func (cs *codecs) appendWhere(buf []byte, o Op) (_ []byte, err error) {
	if len(o.where) == 0 && !o.all {
		return buf, errors.New("no rows chosen (by Where, Row or All)")
	}
	buf = append(cs.appendTable(buf, o), `,"where":`...)
	return cs.appendConditions(buf, o.where)
}

func (cs *codecs) appendConditions(buf []byte, where []condition) (_ []byte, err error) {
	buf = append(buf, '[')
	for i, c := range where {
		if i > 0 {
			buf = append(buf, ',')
		}
		if buf, err = cs.appendTriple(buf, c.column, c.function, c.value); err != nil {
			return buf, err
		}
	}
	return append(buf, ']'), nil
}

// appendTriple renders a condition or a mutation, whose forms are the same.
func (cs *codecs) appendTriple(buf []byte, column, verb string, value any) ([]byte, error) {
	buf = append(appendString(append(buf, '['), column), ',')
	buf = append(appendString(buf, verb), ',')
	col := cs.column(reflect.TypeOf(value))
	if col == nil {
		return buf, fmt.Errorf("column %s: a %T cannot be written", column, value)
	}
	buf, err := col.append(buf, reflect.ValueOf(value))
	if err != nil {
		return buf, fmt.Errorf("column %s: %w", column, err)
	}
	return append(buf, ']'), nil
}

func (cs *codecs) appendInsert(buf []byte, o Op) ([]byte, error) {
	row := structOf(o.row)
	c, err := cs.of(row.Type())
	if err != nil {
		return buf, err
	}
	buf = cs.appendTable(buf, o)
	switch id := c.uuidOf(row); {
	case id == "":
	case id.Named():
		buf = appendString(append(buf, `,"uuid-name":`...), string(id))
	default:
		buf = appendString(append(buf, `,"uuid":`...), string(id))
	}
	fields, err := c.pick(nil)
	if err != nil {
		return buf, err
	}
	return c.appendRow(append(buf, `,"row":`...), row, fields, true)
}

func (cs *codecs) appendUpdate(buf []byte, o Op) ([]byte, error) {
	row := structOf(o.row)
	c, err := cs.of(row.Type())
	if err != nil {
		return buf, err
	}
	fields, err := c.pick(o.columns)
	if err != nil {
		return buf, err
	}
	if id := c.uuidOf(row); len(o.where) == 0 && !o.all && id != "" {
		o = o.Row(id)
	}
	if buf, err = cs.appendWhere(buf, o); err != nil {
		return buf, err
	}
	return c.appendRow(append(buf, `,"row":`...), row, fields, false)
}

func (cs *codecs) appendMutate(buf []byte, o Op) (_ []byte, err error) {
	if buf, err = cs.appendWhere(buf, o); err != nil {
		return buf, err
	}
	buf = append(buf, `,"mutations":[`...)
	for i, m := range o.changes {
		if i > 0 {
			buf = append(buf, ',')
		}
		if buf, err = cs.appendTriple(buf, m.column, m.mutator, m.value); err != nil {
			return buf, err
		}
	}
	return append(buf, ']'), nil
}

func (cs *codecs) appendSelect(buf []byte, o Op) ([]byte, error) {
	c, err := cs.of(reflect.TypeOf(o.row))
	if err != nil {
		return buf, err
	}
	fields, err := c.pick(o.columns)
	if err != nil {
		return buf, err
	}
	if buf, err = cs.appendWhere(buf, o); err != nil {
		return buf, err
	}
	names := []string{"_uuid"}
	for _, f := range fields {
		names = append(names, f.name)
	}
	return appendStrings(append(buf, `,"columns":`...), names), nil
}
