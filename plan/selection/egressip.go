package selection

import (
	"iter"
	"reflect"
	"slices"

	"hairpin/cluster"
)

// EgressIPs knows which pods each EgressIP has: of several that select a pod, the oldest has it.
type EgressIPs struct {
	index
	egressIPs []*cluster.EgressIP
}

// NewEgressIPs returns EgressIPs that know nothing yet. They are not safe for concurrent use.
func NewEgressIPs() *EgressIPs { return &EgressIPs{index: newIndex()} }

// Update takes a new Snapshot and names the EgressIPs that changed, or whose pods did.
func (x *EgressIPs) Update(s *cluster.Snapshot) map[string]bool {
	touched, others := map[string]bool{}, false
	if !cluster.SameList(x.egressIPs, s.EgressIPs) {
		c := cluster.Compare(x.egressIPs, s.EgressIPs, func(e, f *cluster.EgressIP) int { return e.Owner.Compare(f.Owner) })
		for _, e := range slices.Concat(c.Gone, c.Come) {
			touched[e.Owner.Name] = true
		}
		others = len(c.Changed) != len(c.Gone) || len(c.Changed) != len(c.Come) ||
			slices.ContainsFunc(c.Changed, func(p [2]*cluster.EgressIP) bool { return !sameChoice(p[0], p[1]) })
	}
	x.egressIPs = s.EgressIPs
	x.update(s, x.byAge, others, touched)
	return touched
}

// Pods returns the pods that an EgressIP has.
func (x *EgressIPs) Pods(name string) map[cluster.Owner]*cluster.Pod { return x.members[name] }

// Contested gives every pod that several EgressIPs select, with the name of the one that has it and of each other.
func (x *EgressIPs) Contested() iter.Seq2[cluster.Owner, [2]string] {
	return func(yield func(cluster.Owner, [2]string) bool) {
		for pod, c := range x.chosen {
			for _, younger := range c.by[1:] {
				if !yield(pod, [2]string{c.first(), younger.name}) {
					return
				}
			}
		}
	}
}

// byAge returns what the EgressIPs select, the oldest first.
func (x *EgressIPs) byAge() []*selector {
	var list []*selector
	for _, e := range slices.SortedFunc(slices.Values(x.egressIPs), (*cluster.EgressIP).Older) {
		list = append(list, &selector{name: e.Owner.Name, namespaces: e.Namespaces, pods: e.Pods})
	}
	return list
}

// sameChoice reports whether two states of an EgressIP select the same pods.
func sameChoice(e, f *cluster.EgressIP) bool {
	return e.Created.Equal(f.Created) && reflect.DeepEqual(e.Namespaces, f.Namespaces) && reflect.DeepEqual(e.Pods, f.Pods)
}
