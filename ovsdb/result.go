package ovsdb

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"hairpin/ovsdb/codec"
	"hairpin/ovsdb/jsontext"
)

// Result is the result of one operation of a transaction.
type Result struct {
	UUID  UUID   // of the inserted row
	Count int    // rows that update, mutate or delete matched
	rows  []byte // select: a JSON array of rows
}

// Selected returns the rows that a [Select] of the same T found.
func Selected[T Row](r Result) ([]T, error) {
	if r.rows == nil {
		return nil, errors.New("ovsdb: not the result of a select")
	}
	c, err := codec.NewRowType(reflect.TypeFor[T]())
	if err != nil {
		return nil, err
	}
	var rows []T
	p := jsontext.NewParser(r.rows)
	p.Open('[')
	for p.More(']') {
		var row T
		c.Read(p, reflect.ValueOf(&row).Elem())
		rows = append(rows, row)
	}
	if err := p.End(); err != nil {
		return nil, fmt.Errorf("ovsdb: read rows of %s: %w", c.Table, err)
	}
	return rows, nil
}

// Reasons for which a server rejects an operation (RFC 7047, 3.1 and 5.2), as in
// [TransactError.Reason].
const (
	ConstraintViolation = "constraint violation" // a value out of range, two rows with one key
	// a reference to a missing row, or removal of the last reference to a row that needs one
	ReferentialViolation = "referential integrity violation"
	DuplicateUUID        = "duplicate uuid" // a row with the UUID of the inserted one exists
)

// TransactError names the operation that made a transaction fail. Nothing of the transaction was
// executed.
type TransactError struct {
	Database string
	Index    int    // of the operation; -1 if each was valid alone, but not all together
	Op       Op     // the operation, if Index is not negative
	Reason   string // ConstraintViolation and so on
	Details  string // the server's explanation
	Rows     string // the rows whose UUIDs are in Details, by table and name
}

func (e *TransactError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "ovsdb: transact %s: ", e.Database)
	if e.Index >= 0 {
		fmt.Fprintf(&b, "operation %d (%s): ", e.Index, e.Op)
	}
	b.WriteString(e.Reason)
	if e.Details != "" {
		fmt.Fprintf(&b, ": %s", e.Details)
	}
	if e.Rows != "" {
		fmt.Fprintf(&b, " [%s]", e.Rows)
	}
	return b.String()
}

// RPCError is a request that the server rejected as a whole.
type RPCError struct {
	Method  string
	Reason  string // "unknown database", "unknown method" and so on
	Details string
}

func (e *RPCError) Error() string {
	s := fmt.Sprintf("ovsdb: %s: %s", e.Method, e.Reason)
	if e.Details != "" {
		s += ": " + e.Details
	}
	return s
}

// reply is one element of a transact result.
type reply struct {
	Result
	reason, details string // if it is an error
	null            bool   // if it was not tried, because an earlier one failed
}

// readReplies consumes the result of transact (RFC 7047, 4.1.3): an element per operation, and one
// more if each operation is valid alone, but not all together.
func readReplies(p *jsontext.Parser) []reply {
	var list []reply
	p.Open('[')
	for p.More(']') {
		r := reply{null: p.Null()}
		if !r.null {
			p.Open('{')
			for p.More('}') {
				switch string(p.Key()) {
				case "uuid":
					r.UUID = codec.ReadUUID(p)
				case "count":
					r.Count = p.Integer()
				case "rows":
					r.rows = append([]byte{}, p.Raw()...)
				case "error":
					r.reason = p.Text()
				case "details":
					r.details = p.Text()
				default:
					p.Skip()
				}
			}
		}
		list = append(list, r)
	}
	return list
}

// results converts the server's reply for the caller. Describe names a row that existed before.
func results(db string, ops []Op, list []reply, describe func(UUID) string) ([]Result, error) {
	for i, r := range list {
		if r.reason == "" {
			continue
		}
		e := &TransactError{Database: db, Index: -1, Reason: r.reason, Details: r.details}
		if i < len(ops) {
			e.Index, e.Op = i, ops[i]
		}
		var rows []string
		for _, id := range uuidsIn(r.details) {
			what := describe(id)
			if j := slices.IndexFunc(list, func(in reply) bool { return in.UUID == id }); j >= 0 && j < len(ops) {
				what = fmt.Sprintf("operation %d: %s", j, ops[j])
			}
			if what != "" {
				rows = append(rows, fmt.Sprintf("%s is %s", id, what))
			}
		}
		e.Rows = strings.Join(rows, "; ")
		return nil, e
	}
	if len(list) != len(ops) {
		return nil, fmt.Errorf("ovsdb: transact %s: %d operations, but %d results", db, len(ops), len(list))
	}
	out := make([]Result, len(ops))
	for i, r := range list {
		out[i] = r.Result
	}
	return out, nil
}

// uuidsIn returns the UUIDs in a text.
func uuidsIn(text string) []UUID {
	var list []UUID
	for i := 0; i+36 <= len(text); i++ {
		if codec.IsUUID(text[i : i+36]) {
			list = append(list, UUID(text[i:i+36]))
			i += 35
		}
	}
	return list
}
