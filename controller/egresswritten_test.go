package controller_test

import (
	"net/netip"
	"slices"
	"testing"

	"hairpin/cluster"
	"hairpin/controller"
)

// TestAssignmentWatchLate checks that a written assignment counts until the watch shows another
// status than before. Otherwise an address would be assigned again from the old state, and move.
func TestAssignmentWatchLate(t *testing.T) {
	at := func(node string) []cluster.Assignment {
		return []cluster.Assignment{{Node: node, Address: netip.MustParseAddr("172.18.0.33")}}
	}
	e := func(uid, node string) *cluster.EgressIP {
		return &cluster.EgressIP{Owner: cluster.Owner{Kind: "EgressIP", Name: "e"}, UID: uid, Assigned: at(node)}
	}
	for _, c := range []struct {
		what  string
		shows *cluster.EgressIP
		want  string
	}{
		{"the watch is late", e("1", "a"), "b"},
		{"it shows what was written", e("1", "b"), "b"},
		{"another program wrote another", e("1", "c"), "c"},
		{"another object has the name", e("2", "a"), "a"},
	} {
		if got := controller.Assigned(e("1", "a"), at("b"), c.shows); !slices.Equal(got, at(c.want)) {
			t.Errorf("%s: it is at %v, not at %s", c.what, got, c.want)
		}
	}
}

// TestAssignmentWrittenAgain checks that an assignment counts as a change once, although it is
// written in each round until the watch shows it.
func TestAssignmentWrittenAgain(t *testing.T) {
	a := netip.MustParseAddr("172.18.0.33")
	shown := []cluster.Assignment{{Node: "a", Address: a}}
	wanted := []cluster.Assignment{{Node: "b", Address: a}}
	first, second := controller.Rewritten(&cluster.EgressIP{UID: "1", Assigned: shown}, wanted)
	if !slices.Equal(first, shown) || !slices.Equal(second, wanted) {
		t.Errorf("it was %v, and then %v", first, second)
	}
}
