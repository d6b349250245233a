package store

import (
	"reflect"
	"slices"

	"hairpin/cluster"
)

// vetPools removes the ranges that pools cannot have, and adds the reasons to problems. It keeps
// pointers to pools that are as in the last Snapshot.
func (s *Store) vetPools(problems *[]cluster.Problem) []*cluster.Pool {
	all := s.pools.all()
	list := make([]*cluster.Pool, 0, len(all))
	for _, p := range all {
		var found cluster.Problems
		vetted := *p
		vetted.Ranges = nil
		for _, r := range p.Ranges {
			if why := s.guard.RejectsRange(p, r, all); why != "" {
				found.Add(p.Owner, "spec.ranges", "%s", why)
				continue
			}
			vetted.Ranges = append(vetted.Ranges, r)
		}
		*problems = append(*problems, found.List()...)
		i, there := slices.BinarySearchFunc(s.vettedPools, p.Owner,
			func(q *cluster.Pool, o cluster.Owner) int { return q.Owner.Compare(o) })
		if there && reflect.DeepEqual(s.vettedPools[i], &vetted) {
			list = append(list, s.vettedPools[i])
			continue
		}
		list = append(list, &vetted)
	}
	if !slices.Equal(list, s.vettedPools) {
		s.vettedPools = list
	}
	if len(s.vettedPools) == 0 {
		s.vettedPools = nil
	}
	return s.vettedPools
}
