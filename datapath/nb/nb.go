// Package nb is the wanted or found content of a node's OVN databases: the rows of the Northbound
// database, and the Southbound rows of remote chassis, which the Northbound database cannot
// express.
//
// A row's references are by name: a port names its switch, a load balancer its groups. Names are
// unique per table; where OVN does not name rows (routes, policies, NAT) the identifying columns
// make the name.
//
// A table is described in tables.go: its place in the order, its row with key, equality and text.
// How a row stands in the database is described in apply/nbdb.
package nb

import (
	"cmp"
	"fmt"
	"slices"

	"hairpin/cluster"
	"hairpin/delta"
)

// State is a set of rows.
type State map[Key]Row

// Key identifies a row. Name is the row's name, or for unnamed tables what identifies the row, in
// the words that Print uses.
type Key struct {
	Table Table
	Name  string
}

// Row is one row, of a closed set of types: those of Rows. Rows are immutable: to change one, make
// a new one. State holds pointers, so an equal pointer is an equal row.
type Row interface {
	Key() Key
	// Why tells what wanted the row.
	Why() cluster.Owner

	owner() *cluster.Owner
	same(Row) bool  // SameContent
	print(*printer) // Line, without the owner
}

// SetOwner completes a row that was just made.
func SetOwner(r Row, o cluster.Owner) { *r.owner() = o }

// Add puts rows into the state.
func (s State) Add(rows ...Row) {
	for _, r := range rows {
		s[r.Key()] = r
	}
}

// Delta is a difference of two States.
type Delta = delta.Delta[Key, Row]

// Diff tells what makes have into want. Rows that are the same pointer are taken as equal without a
// look at them.
func Diff(want, have State) Delta { return delta.Of(want, have, Equal) }

// Compare orders keys by table, in the order in which rows are made, and by name.
func (k Key) Compare(l Key) int {
	return cmp.Or(cmp.Compare(k.Table, l.Table), cmp.Compare(k.Name, l.Name))
}

// String names a row for messages: `Logical_Router "GR_node-a"`.
func (k Key) String() string { return fmt.Sprintf("%s %q", k.Table, k.Name) }

// Equal tells whether two rows have the same content, the owner included.
func Equal(a, b Row) bool { return a == b || a.Why() == b.Why() && a.same(b) }

// SameContent is Equal without the owner. What is a set in OVN's schema is compared as a set, and a
// nil map is an empty one.
func SameContent(a, b Row) bool { return a.same(b) }

// sameSet compares slices as sets. They are sorted in practice, so the first look decides.
func sameSet[T comparable](a, b []T, compare func(a, b T) int) bool {
	if len(a) != len(b) {
		return false
	}
	return slices.Equal(a, b) || slices.Equal(sorted(a, compare), sorted(b, compare))
}

func sorted[T any](list []T, compare func(a, b T) int) []T {
	return slices.SortedFunc(slices.Values(list), compare)
}
