package controller_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/controller"
)

func nodeWithID(name string, id int) *cluster.Node { return &cluster.Node{Name: name, ID: id} }

func written(string, string, int) bool { return true }
func refused(string, string, int) bool { return false }

func wantIDs(t *testing.T, what string, got, want map[string]int) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: assigned IDs are %v, not %v", what, got, want)
	}
}

func TestNodeIDs(t *testing.T) {
	var n controller.IDAllocator
	wantIDs(t, "new nodes", n.ToWrite(written, nodeWithID("b", 0), nodeWithID("c", 7), nodeWithID("d", 0)),
		map[string]int{"b": 1, "d": 2})
	wantIDs(t, "the watch lags behind, and another node comes",
		n.ToWrite(written, nodeWithID("a", 0), nodeWithID("b", 0), nodeWithID("c", 7), nodeWithID("d", 2)),
		map[string]int{"a": 3})
	wantIDs(t, "the watch shows all",
		n.ToWrite(written, nodeWithID("a", 3), nodeWithID("b", 1), nodeWithID("c", 7), nodeWithID("d", 2)), nil)
	wantIDs(t, "two claim the same",
		n.ToWrite(written, nodeWithID("a", 7), nodeWithID("b", 1), nodeWithID("c", 7), nodeWithID("d", 2)),
		map[string]int{"c": 3})
	wantIDs(t, "another program removed one",
		n.ToWrite(written, nodeWithID("a", 7), nodeWithID("b", 0), nodeWithID("c", 3), nodeWithID("d", 2)),
		map[string]int{"b": 1})
	wantIDs(t, "a node went, and its ID with it",
		n.ToWrite(written, nodeWithID("a", 7), nodeWithID("b", 1), nodeWithID("c", 3), nodeWithID("e", 0)),
		map[string]int{"e": 2})
}

// TestNodeIDsRemovedAtOnce checks that another program removes an ID, by a write of the old Node,
// before the watch has shown it.
func TestNodeIDsRemovedAtOnce(t *testing.T) {
	var n controller.IDAllocator
	wantIDs(t, "a new node", n.ToWrite(written, nodeWithID("a", 0)), map[string]int{"a": 1})
	wantIDs(t, "the watch may lag behind", n.ToWrite(written, nodeWithID("a", 0)), nil)
	n.Wait()
	wantIDs(t, "it never showed it", n.ToWrite(written, nodeWithID("a", 0)), map[string]int{"a": 1})
}

// TestNodeIDsWatchLate checks that the watch shows an ID later than expected. The node keeps the
// ID, and no other node gets it.
func TestNodeIDsWatchLate(t *testing.T) {
	var n controller.IDAllocator
	wantIDs(t, "a new node", n.ToWrite(written, nodeWithID("b", 0)), map[string]int{"b": 1})
	n.Wait()
	wantIDs(t, "another, before it in the alphabet", n.ToWrite(written, nodeWithID("a", 0), nodeWithID("b", 0)),
		map[string]int{"a": 2, "b": 1})
	wantIDs(t, "the watch shows all", n.ToWrite(written, nodeWithID("a", 2), nodeWithID("b", 1)), nil)
}

func TestNodeIDsThatCannotBeWritten(t *testing.T) {
	var n controller.IDAllocator
	wantIDs(t, "first try", n.ToWrite(refused, nodeWithID("b", 0)), map[string]int{"b": 1})
	wantIDs(t, "the same again, although another comes before it",
		n.ToWrite(written, nodeWithID("a", 0), nodeWithID("b", 0)), map[string]int{"a": 2, "b": 1})
	wantIDs(t, "both were written", n.ToWrite(written, nodeWithID("a", 0), nodeWithID("b", 0)), nil)
}

// api has the successive states of an API server's Nodes.
type api []map[string]cluster.Node

func (a api) last() map[string]cluster.Node { return a[len(a)-1] }

func (a *api) change(name string, change func(n cluster.Node, there bool) (cluster.Node, bool)) {
	next := maps.Clone(a.last())
	n, there := next[name]
	if n, there = change(n, there); there {
		next[name] = n
	} else {
		delete(next, name)
	}
	*a = append(*a, next)
}

func (a api) nodes(state int) []*cluster.Node {
	var out []*cluster.Node
	for _, name := range slices.Sorted(maps.Keys(a[state])) {
		n := a[state][name]
		out = append(out, &n)
	}
	return out
}

// TestNodeIDsStay adds, removes and re-adds nodes, with failing writes and a watch that lags by any
// amount. A Node keeps its ID, no other gets it, and in the end each has its own.
func TestNodeIDsStay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var n controller.IDAllocator
		a, shown := api{{}}, 0
		write := func(name, uid string, id int) bool {
			if rapid.IntRange(0, 4).Draw(t, "fails") == 0 || a.last()[name].UID != uid {
				return false
			}
			a.change(name, func(n cluster.Node, there bool) (cluster.Node, bool) {
				if there && n.ID != 0 && n.ID != id {
					t.Fatalf("%s had %d and gets %d", name, n.ID, id)
				}
				for other, x := range a.last() {
					if other != name && x.ID == id {
						t.Fatalf("%s has %d, and %s gets it", other, id, name)
					}
				}
				n.ID = id
				return n, there
			})
			return true
		}
		for i := range rapid.IntRange(1, 40).Draw(t, "steps") {
			name := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "node")
			a.change(name, func(_ cluster.Node, there bool) (cluster.Node, bool) {
				return cluster.Node{Name: name, UID: fmt.Sprint(i)}, !there
			})
			shown = rapid.IntRange(shown, len(a)-1).Draw(t, "shown")
			if rapid.Bool().Draw(t, "the watch is late") {
				n.Wait()
			}
			n.ToWrite(write, a.nodes(shown)...)
		}
		for range 100 { // the watch catches up, and a write works at last
			n.ToWrite(write, a.nodes(len(a)-1)...)
		}
		owner := map[int]string{}
		for name, x := range a.last() {
			if x.ID == 0 || owner[x.ID] != "" {
				t.Fatalf("in the end they are %v", a.last())
			}
			owner[x.ID] = name
		}
	})
}
