package assign

import (
	"cmp"
	"slices"

	"hairpin/cluster"
	"hairpin/plan/selection"
)

// Conflict records that two EgressIPs select the same pods: the older has them.
type Conflict struct {
	Older, Younger cluster.Owner
	Pods           int
	Example        cluster.Owner // the first of them by name
}

// Conflicts finds EgressIPs that select the same pods, at a cost that depends on what changed. It
// is not safe for concurrent use.
type Conflicts struct {
	selection *selection.EgressIPs
}

// NewConflicts returns Conflicts with an empty index.
func NewConflicts() *Conflicts { return &Conflicts{selection.NewEgressIPs()} }

// Of returns the Conflicts of a Snapshot, sorted by the younger and then the older EgressIP.
func (r *Conflicts) Of(s *cluster.Snapshot) []Conflict {
	r.selection.Update(s)
	pairs := map[[2]cluster.Owner]*Conflict{}
	for pod, k := range r.selection.Contested() {
		if pairs[k] == nil {
			pairs[k] = &Conflict{Older: k[0], Younger: k[1], Example: pod}
		}
		pairs[k].Pods++
		if pod.Compare(pairs[k].Example) < 0 {
			pairs[k].Example = pod
		}
	}
	list := make([]Conflict, 0, len(pairs))
	for _, p := range pairs {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b Conflict) int {
		return cmp.Or(a.Younger.Compare(b.Younger), a.Older.Compare(b.Older))
	})
	return list
}
