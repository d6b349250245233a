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

func numbered(name string, id int) *cluster.Node { return &cluster.Node{Name: name, ID: id} }

func written(string, string, int) bool { return true }
func refused(string, string, int) bool { return false }

func wantNumbers(t *testing.T, what string, got, want map[string]int) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: numbers given are %v, not %v", what, got, want)
	}
}

func TestNumbers(t *testing.T) {
	var n controller.Numbers
	wantNumbers(t, "new nodes", n.Missing(written, numbered("b", 0), numbered("c", 7), numbered("d", 0)),
		map[string]int{"b": 1, "d": 2})
	wantNumbers(t, "the watch lags behind, and another node comes",
		n.Missing(written, numbered("a", 0), numbered("b", 0), numbered("c", 7), numbered("d", 2)),
		map[string]int{"a": 3})
	wantNumbers(t, "the watch shows all",
		n.Missing(written, numbered("a", 3), numbered("b", 1), numbered("c", 7), numbered("d", 2)), nil)
	wantNumbers(t, "two claim the same",
		n.Missing(written, numbered("a", 7), numbered("b", 1), numbered("c", 7), numbered("d", 2)),
		map[string]int{"c": 3})
	wantNumbers(t, "somebody removed one",
		n.Missing(written, numbered("a", 7), numbered("b", 0), numbered("c", 3), numbered("d", 2)),
		map[string]int{"b": 1})
	wantNumbers(t, "a node went, and its number with it",
		n.Missing(written, numbered("a", 7), numbered("b", 1), numbered("c", 3), numbered("e", 0)),
		map[string]int{"e": 2})
}

// TestNumbersRemovedAtOnce checks that another program removes an ID, by a write of the old Node,
// before the watch has shown it.
func TestNumbersRemovedAtOnce(t *testing.T) {
	var n controller.Numbers
	wantNumbers(t, "a new node", n.Missing(written, numbered("a", 0)), map[string]int{"a": 1})
	wantNumbers(t, "the watch may lag behind", n.Missing(written, numbered("a", 0)), nil)
	n.Wait()
	wantNumbers(t, "it never showed it", n.Missing(written, numbered("a", 0)), map[string]int{"a": 1})
}

// TestNumbersWatchLate checks that the watch shows an ID later than expected. The node keeps the
// ID, and no other node gets it.
func TestNumbersWatchLate(t *testing.T) {
	var n controller.Numbers
	wantNumbers(t, "a new node", n.Missing(written, numbered("b", 0)), map[string]int{"b": 1})
	n.Wait()
	wantNumbers(t, "another, before it in the alphabet", n.Missing(written, numbered("a", 0), numbered("b", 0)),
		map[string]int{"a": 2, "b": 1})
	wantNumbers(t, "the watch shows all", n.Missing(written, numbered("a", 2), numbered("b", 1)), nil)
}

func TestNumbersThatCannotBeWritten(t *testing.T) {
	var n controller.Numbers
	wantNumbers(t, "first try", n.Missing(refused, numbered("b", 0)), map[string]int{"b": 1})
	wantNumbers(t, "the same again, although another comes before it",
		n.Missing(written, numbered("a", 0), numbered("b", 0)), map[string]int{"a": 2, "b": 1})
	wantNumbers(t, "both were written", n.Missing(written, numbered("a", 0), numbered("b", 0)), nil)
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

// TestNumbersStay adds, removes and re-adds nodes, with failing writes and a watch that lags by any
// amount. A Node keeps its ID, no other gets it, and in the end each has its own.
func TestNumbersStay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var n controller.Numbers
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
			n.Missing(write, a.nodes(shown)...)
		}
		for range 100 { // the watch catches up, and a write works at last
			n.Missing(write, a.nodes(len(a)-1)...)
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
