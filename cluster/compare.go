package cluster

import "strings"

// SameList reports whether two immutable lists share their storage.
func SameList[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// Changes is the difference of two sorted lists of immutable values. A changed value is in Removed
// as it was before and in Added as it is now.
type Changes[T any] struct {
	Removed, Added []*T
	Changed        [][2]*T // before and after
}

// Compare returns the difference of two lists in the order of compare. Values with the same pointer
// are equal, all others are not. Two values that compare orders as equal are one that changed.
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
			c.Removed = append(c.Removed, old[0])
			old = old[1:]
		}
		if order >= 0 {
			c.Added = append(c.Added, new[0])
			new = new[1:]
		}
	}
	c.Removed = append(c.Removed, old...)
	c.Added = append(c.Added, new...)
	return c
}

// Compare orders Pods by name.
func (p *Pod) Compare(q *Pod) int { return p.Owner.Compare(q.Owner) }

// Compare orders Nodes by name.
func (n *Node) Compare(m *Node) int { return strings.Compare(n.Name, m.Name) }

// Compare orders Namespaces by name.
func (n *Namespace) Compare(m *Namespace) int { return strings.Compare(n.Name, m.Name) }

// Compare orders Policies by kind and name.
func (p *Policy) Compare(q *Policy) int { return p.Owner.Compare(q.Owner) }

// Compare orders EgressIPs by kind and name.
func (e *EgressIP) Compare(f *EgressIP) int { return e.Owner.Compare(f.Owner) }
