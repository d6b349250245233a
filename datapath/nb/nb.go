// Package nb describes the wanted or found content of a node's OVN databases: the rows of the
// Northbound database, and the Southbound rows of remote chassis, which the Northbound database
// cannot express.
//
// Rows reference each other by name: a port names its switch, a load balancer its groups. Names are
// unique per table. If OVN has no names for rows (routes, policies, NAT), the identifying columns
// form the name.
//
// tables.go describes each table: its place in the order, and its row with key, equality and text.
// apply/nbdb describes the form of a row in the database.
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

// Key identifies a row. Name is the row's name, or for unnamed tables the identifying columns, in
// the syntax of Print.
type Key struct {
	Table Table
	Name  string
}

// Row is one row, of a closed set of types: those of Rows. Rows are immutable: a change needs a new
// row. State holds pointers, so an equal pointer is an equal row.
type Row interface {
	Key() Key

	owner() *cluster.Owner
	same(Row) bool  // SameContent
	print(*printer) // Line, without the owner
}

// OwnerOf returns the owner of a row.
func OwnerOf(r Row) cluster.Owner { return *r.owner() }

// SetOwner sets the owner of a new row.
func SetOwner(r Row, o cluster.Owner) { *r.owner() = o }

// Add adds rows to the state.
func (s State) Add(rows ...Row) {
	for _, r := range rows {
		s[r.Key()] = r
	}
}

// Delta is a difference of two States.
type Delta = delta.Delta[Key, Row]

// Diff returns the changes that turn have into want. It treats rows with the same pointer as equal
// without comparing them.
func Diff(want, have State) Delta { return delta.Of(want, have, Equal) }

// Compare orders keys by table, in the order in which rows are created, and by name.
func (k Key) Compare(l Key) int {
	return cmp.Or(cmp.Compare(k.Table, l.Table), cmp.Compare(k.Name, l.Name))
}

// String returns a row's name for messages: `Logical_Router "GR_node-a"`.
func (k Key) String() string { return fmt.Sprintf("%s %q", k.Table, k.Name) }

// Equal reports whether two rows have the same content, including the owner.
func Equal(a, b Row) bool { return a == b || OwnerOf(a) == OwnerOf(b) && a.same(b) }

// SameContent is Equal without the owner. It compares sets of OVN's schema as sets, and a nil map
// equals an empty one.
func SameContent(a, b Row) bool { return a.same(b) }

// sameSet compares slices as sets. They are usually sorted, so the first comparison decides.
func sameSet[T comparable](a, b []T, compare func(a, b T) int) bool {
	if len(a) != len(b) {
		return false
	}
	return slices.Equal(a, b) || slices.Equal(sorted(a, compare), sorted(b, compare))
}

func sorted[T any](list []T, compare func(a, b T) int) []T {
	return slices.SortedFunc(slices.Values(list), compare)
}
