package assign

import (
	"slices"

	"hairpin/cluster"
)

// NodeIDs returns the ID of every node. Nodes keep the ID that they have; of two with the same ID,
// the older keeps it. The others get the lowest free ID, starting at 1.
func NodeIDs(nodes []*cluster.Node) map[string]int {
	ids := make(map[string]int, len(nodes))
	taken := make(map[int]bool, len(nodes))
	nodes = slices.SortedFunc(slices.Values(nodes), (*cluster.Node).CompareAge)
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
