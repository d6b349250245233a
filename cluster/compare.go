package cluster

import (
	"strings"
)

// SameList reports whether two immutable lists share their storage.
func SameList[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// Changes is the difference of two sorted lists of immutable values.
type Changes[T any] struct {
	Gone, Come []*T
	Changed    [][2]*T // before and after, for values in both Gone and Come
}

// Compare compares values by pointer: the same pointer is the same value.
func Compare[T any](old, new []*T, compare func(a, b *T) int) Changes[T] {
	var c Changes[T]
	for len(old) > 0 && len(new) > 0 {
		if old[0] == new[0] {
			old, new = old[1:], new[1:]
			continue
		}
		order := compare(old[0], new[0])
		if order == 0 {
			c.Changed = append(c.Changed, [2]*T{old[0], new[0]})
		}
		if order <= 0 {
			c.Gone = append(c.Gone, old[0])
			old = old[1:]
		}
		if order >= 0 {
			c.Come = append(c.Come, new[0])
			new = new[1:]
		}
	}
	c.Gone = append(c.Gone, old...)
	c.Come = append(c.Come, new...)
	return c
}

func (p *Pod) Compare(q *Pod) int { return p.Owner.Compare(q.Owner) }

func (n *Node) Compare(m *Node) int { return strings.Compare(n.Name, m.Name) }

func (n *Namespace) Compare(m *Namespace) int { return strings.Compare(n.Name, m.Name) }

func (p *Policy) Compare(q *Policy) int { return p.Owner.Compare(q.Owner) }

func (e *EgressIP) Compare(f *EgressIP) int { return e.Owner.Compare(f.Owner) }
