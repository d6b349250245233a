package assign_test

import (
	"fmt"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/plan/assign"
)

// crowd returns nodes of the same age with the IDs that id returns, 0 for none.
func crowd(name string, n, age int, id func(i int) int) (list []*cluster.Node) {
	for i := range n {
		list = append(list, &cluster.Node{Name: fmt.Sprintf("%s-%04d", name, i), Created: time.Unix(int64(age), 0),
			ID: id(i)})
	}
	return list
}

// TestNodeIDsOfManyNodes: 5 000 nodes have the IDs 1 to 5 000. That holds after a thousand were
// replaced, and after a restored etcd gave a thousand nodes IDs that others have got meanwhile. A
// node with a unique ID keeps it.
func TestNodeIDsOfManyNodes(t *testing.T) {
	none := func(int) int { return 0 }
	given := func(list []*cluster.Node) (ids map[string]int) {
		t.Helper()
		ids = assign.NodeIDs(list)
		owner := map[int]string{}
		for _, n := range list {
			id := ids[n.Name]
			if id < 1 || id > len(list) || owner[id] != "" {
				t.Fatalf("%s has %d, as %q", n.Name, id, owner[id])
			}
			owner[id] = n.Name
		}
		return ids
	}
	old := crowd("old", 5000, 1, none)
	ids := given(old)
	for _, n := range old {
		n.ID = ids[n.Name]
	}
	left := old[1000:]
	young := crowd("new", 1000, 2, none)
	ids = given(append(left[:len(left):len(left)], young...))
	for _, n := range left {
		if ids[n.Name] != n.ID {
			t.Fatalf("%s had %d and has %d", n.Name, n.ID, ids[n.Name])
		}
	}
	// The backup is older than the thousand added nodes: their kubelets register them again, and
	// the removed ones are back.
	back := crowd("back", 1000, 0, func(i int) int { return ids[young[i].Name] })
	for _, n := range young {
		n.ID = ids[n.Name]
	}
	all := append(append(left[:len(left):len(left)], young...), back...)
	ids = given(all)
	for _, n := range append(left[:len(left):len(left)], back...) {
		if ids[n.Name] != n.ID {
			t.Fatalf("%s, the older, had %d and has %d", n.Name, n.ID, ids[n.Name])
		}
	}
}
