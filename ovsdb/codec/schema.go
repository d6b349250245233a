package codec

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// Schema is a database schema (RFC 7047, 3.2), as far as a client needs it.
type Schema struct {
	Name    string                 `json:"name"`
	Version string                 `json:"version"`
	Tables  map[string]TableSchema `json:"tables"`
}

// TableSchema is the schema of a table.
type TableSchema struct {
	Columns map[string]ColumnSchema `json:"columns"`
	Indexes [][]string              `json:"indexes"`
	IsRoot  bool                    `json:"isRoot"`
}

// ColumnSchema is the type of a column: between Min and Max keys, or pairs of key and value where
// Value is not nil.
type ColumnSchema struct {
	Key       BaseType
	Value     *BaseType
	Min, Max  int // Max is math.MaxInt for "unlimited"
	Ephemeral bool
	ReadOnly  bool // once the row exists
}

// BaseType is an atomic type.
type BaseType struct {
	Type     string `json:"type"`     // integer, real, boolean, string or uuid
	RefTable string `json:"refTable"` // the table that a uuid refers to
}

// String describes the type for an error text.
func (s ColumnSchema) String() string {
	what := s.Key.Type
	if s.Value != nil {
		what = "map of " + what + " to " + s.Value.Type
	}
	if s.Max == math.MaxInt {
		return fmt.Sprintf("%d or more of %s", s.Min, what)
	}
	return fmt.Sprintf("%d to %d of %s", s.Min, s.Max, what)
}

// UnmarshalJSON reads a column schema. Its types may be written in a short form: "integer" for
// {"key": {"type": "integer"}}.
func (s *ColumnSchema) UnmarshalJSON(text []byte) error {
	var c struct {
		Type      json.RawMessage `json:"type"`
		Ephemeral bool            `json:"ephemeral"`
		Mutable   *bool           `json:"mutable"`
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return err
	}
	*s = ColumnSchema{Min: 1, Max: 1, Ephemeral: c.Ephemeral, ReadOnly: c.Mutable != nil && !*c.Mutable}
	if json.Unmarshal(c.Type, &s.Key.Type) == nil {
		return nil
	}
	var t struct {
		Key   BaseType        `json:"key"`
		Value *BaseType       `json:"value"`
		Min   *int            `json:"min"`
		Max   json.RawMessage `json:"max"`
	}
	if err := json.Unmarshal(c.Type, &t); err != nil {
		return err
	}
	s.Key, s.Value = t.Key, t.Value
	if t.Min != nil {
		s.Min = *t.Min
	}
	switch {
	case t.Max == nil:
	case string(t.Max) == `"unlimited"`:
		s.Max = math.MaxInt
	default:
		return json.Unmarshal(t.Max, &s.Max)
	}
	return nil
}

// UnmarshalJSON reads a base type, which may be written as a bare string.
func (b *BaseType) UnmarshalJSON(text []byte) error {
	if json.Unmarshal(text, &b.Type) == nil {
		return nil
	}
	type plain BaseType
	return json.Unmarshal(text, (*plain)(b))
}

// Check returns an error with the columns of a row type that the database lacks, or has with
// another type.
func (s *Schema) Check(rt *RowType, fields []*Field) error {
	t, ok := s.Tables[rt.Table]
	if !ok {
		return fmt.Errorf("database %s %s has no table %s", s.Name, s.Version, rt.Table)
	}
	var bad []error
	for _, f := range fields {
		if col, ok := t.Columns[f.Name]; !ok {
			bad = append(bad, fmt.Errorf("database %s %s: table %s has no column %s", s.Name, s.Version, rt.Table,
				f.Name))
		} else if err := f.check(col); err != nil {
			bad = append(bad, fmt.Errorf("database %s %s: table %s: column %s: %w", s.Name, s.Version, rt.Table, f.Name,
				err))
		}
	}
	return errors.Join(bad...)
}
