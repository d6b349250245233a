package cluster

import "slices"

// sorted is a set of values by owner whose sorted list is made when asked for and shared until the next change.
type sorted[T any] struct {
	byOwner map[Owner]*T
	compare func(a, b *T) int
	cached  []*T
}

func newSorted[T any](compare func(a, b *T) int) sorted[T] {
	return sorted[T]{byOwner: map[Owner]*T{}, compare: compare}
}

func (s *sorted[T]) set(o Owner, v *T) {
	s.byOwner[o] = v
	s.cached = nil
}

func (s *sorted[T]) remove(o Owner) {
	if _, ok := s.byOwner[o]; ok {
		delete(s.byOwner, o)
		s.cached = nil
	}
}

func (s *sorted[T]) list() []*T {
	if s.cached == nil && len(s.byOwner) > 0 {
		s.cached = make([]*T, 0, len(s.byOwner))
		for _, v := range s.byOwner {
			s.cached = append(s.cached, v)
		}
		slices.SortFunc(s.cached, s.compare)
	}
	return s.cached
}

// mergeSorted gives a new list: old without what drop names, and fresh. Both are sorted.
func mergeSorted[T any](old, fresh []*T, compare func(a, b *T) int, drop func(*T) bool) []*T {
	out := make([]*T, 0, len(old)+len(fresh))
	i := 0
	for _, o := range old {
		if drop(o) {
			continue
		}
		for i < len(fresh) && compare(fresh[i], o) < 0 {
			out = append(out, fresh[i])
			i++
		}
		out = append(out, o)
	}
	return append(out, fresh[i:]...)
}
