package ovsdb

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"hairpin/ovsdb/codec"
	"hairpin/ovsdb/jsontext"
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

// SetKeys sets keys of a map column and keeps the others. InsertInto alone does not change the
// value of a key that exists.
func SetKeys(column string, values map[string]string) []Mutation {
	return []Mutation{DeleteFrom(column, slices.Sorted(maps.Keys(values))), InsertInto(column, values)}
}

// Add adds n to an integer column.
func Add(column string, n int) Mutation { return Mutation{column, "+=", n} }

// String describes the operation for logs and error texts.
func (o Op) String() string {
	var b strings.Builder
	b.WriteString(o.kind + " " + o.table)
	if o.kind == "insert" || o.kind == "update" {
		b.WriteString(label(o.row))
	}
	before := "where"
	for _, c := range o.where {
		fmt.Fprintf(&b, " %s %s %s %v", before, c.column, c.function, c.value)
		before = "and"
	}
	return b.String()
}

func label(row Row) string {
	v := structOf(row)
	c, err := codec.NewRowType(v.Type())
	if err != nil {
		return ""
	}
	if l := c.Label(v); l != "" {
		return " " + l
	}
	return ""
}

// appendOp renders an operation.
func appendOp(buf []byte, cache *codec.Cache, o Op) (_ []byte, err error) {
	buf = append(jsontext.AppendString(append(buf, `{"op":`...), o.kind), `,`...)
	switch o.kind {
	case "insert":
		buf, err = appendInsert(buf, cache, o)
	case "update":
		buf, err = appendUpdate(buf, cache, o)
	case "mutate":
		buf, err = appendMutate(buf, cache, o)
	case "delete":
		buf, err = appendWhere(buf, cache, o)
	case "select":
		buf, err = appendSelect(buf, cache, o)
	}
	return append(buf, '}'), err
}

func appendTable(buf []byte, o Op) []byte {
	return jsontext.AppendString(append(buf, `"table":`...), o.table)
}

// appendWhere renders the table and the conditions.
func appendWhere(buf []byte, cache *codec.Cache, o Op) (_ []byte, err error) {
	if len(o.where) == 0 && !o.all {
		return buf, errors.New("no rows chosen (by Where, Row or All)")
	}
	buf = append(appendTable(buf, o), `,"where":`...)
	return appendConditions(buf, cache, o.where)
}

func appendConditions(buf []byte, cache *codec.Cache, where []condition) (_ []byte, err error) {
	buf = append(buf, '[')
	for i, c := range where {
		if i > 0 {
			buf = append(buf, ',')
		}
		if buf, err = appendTriple(buf, cache, c.column, c.function, c.value); err != nil {
			return buf, err
		}
	}
	return append(buf, ']'), nil
}

// appendTriple renders a condition or a mutation, whose forms are the same.
func appendTriple(buf []byte, cache *codec.Cache, column, verb string, value any) ([]byte, error) {
	buf = append(jsontext.AppendString(append(buf, '['), column), ',')
	buf = append(jsontext.AppendString(buf, verb), ',')
	col := cache.Column(reflect.TypeOf(value))
	if col == nil {
		return buf, fmt.Errorf("column %s: a %T cannot be written", column, value)
	}
	buf, err := col.Append(buf, reflect.ValueOf(value))
	if err != nil {
		return buf, fmt.Errorf("column %s: %w", column, err)
	}
	return append(buf, ']'), nil
}

func appendInsert(buf []byte, cache *codec.Cache, o Op) ([]byte, error) {
	row := structOf(o.row)
	c, err := cache.Of(row.Type())
	if err != nil {
		return buf, err
	}
	buf = appendTable(buf, o)
	switch id := c.UUIDOf(row); {
	case id == "":
	case id.Named():
		buf = jsontext.AppendString(append(buf, `,"uuid-name":`...), string(id))
	default:
		buf = jsontext.AppendString(append(buf, `,"uuid":`...), string(id))
	}
	fields, err := c.Pick(nil)
	if err != nil {
		return buf, err
	}
	return c.Append(append(buf, `,"row":`...), row, fields, true)
}

func appendUpdate(buf []byte, cache *codec.Cache, o Op) ([]byte, error) {
	row := structOf(o.row)
	c, err := cache.Of(row.Type())
	if err != nil {
		return buf, err
	}
	fields, err := c.Pick(o.columns)
	if err != nil {
		return buf, err
	}
	if id := c.UUIDOf(row); len(o.where) == 0 && !o.all && id != "" {
		o = o.Row(id)
	}
	if buf, err = appendWhere(buf, cache, o); err != nil {
		return buf, err
	}
	return c.Append(append(buf, `,"row":`...), row, fields, false)
}

func appendMutate(buf []byte, cache *codec.Cache, o Op) (_ []byte, err error) {
	if buf, err = appendWhere(buf, cache, o); err != nil {
		return buf, err
	}
	buf = append(buf, `,"mutations":[`...)
	for i, m := range o.changes {
		if i > 0 {
			buf = append(buf, ',')
		}
		if buf, err = appendTriple(buf, cache, m.column, m.mutator, m.value); err != nil {
			return buf, err
		}
	}
	return append(buf, ']'), nil
}

func appendSelect(buf []byte, cache *codec.Cache, o Op) ([]byte, error) {
	c, err := cache.Of(reflect.TypeOf(o.row))
	if err != nil {
		return buf, err
	}
	fields, err := c.Pick(o.columns)
	if err != nil {
		return buf, err
	}
	if buf, err = appendWhere(buf, cache, o); err != nil {
		return buf, err
	}
	names := []string{"_uuid"}
	for _, f := range fields {
		names = append(names, f.Name)
	}
	return jsontext.AppendStrings(append(buf, `,"columns":`...), names), nil
}
