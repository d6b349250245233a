package assign

import (
	"slices"

	"hairpin/cluster"
)

// NodeIDs gives every node its small number: nodes keep the one they have, of two with the same
// number the older, and the others get the lowest that is free, starting at 1.
func NodeIDs(nodes []*cluster.Node) map[string]int {
	ids := make(map[string]int, len(nodes))
	taken := make(map[int]bool, len(nodes))
	nodes = slices.SortedFunc(slices.Values(nodes), (*cluster.Node).Older)
	for _, n := range nodes {
		if n.ID > 0 && !taken[n.ID] {
			ids[n.Name] = n.ID
			taken[n.ID] = true
		}
	}
	next := 1
	for _, n := range nodes {
		if ids[n.Name] != 0 {
			continue
		}
		for taken[next] {
			next++
		}
		ids[n.Name] = next
		taken[next] = true
	}
	return ids
}
