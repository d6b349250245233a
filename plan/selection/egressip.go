package selection

import (
	"iter"
	"net/netip"
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
func (x *EgressIPs) Update(s *cluster.Snapshot) map[cluster.Owner]bool {
	touched, others := map[cluster.Owner]bool{}, false
	if !cluster.SameList(x.egressIPs, s.EgressIPs) {
		c := cluster.Compare(x.egressIPs, s.EgressIPs, func(e, f *cluster.EgressIP) int { return e.Owner.Compare(f.Owner) })
		for _, e := range slices.Concat(c.Gone, c.Come) {
			touched[e.Owner] = true
		}
		others = len(c.Changed) != len(c.Gone) || len(c.Changed) != len(c.Come) ||
			slices.ContainsFunc(c.Changed, func(p [2]*cluster.EgressIP) bool { return !sameChoice(p[0], p[1]) })
	}
	x.egressIPs = s.EgressIPs
	x.update(s, x.byAge, others, touched)
	return touched
}

// Pods returns the pods that an EgressIP has.
func (x *EgressIPs) Pods(owner cluster.Owner) map[cluster.Owner]*cluster.Pod { return x.members[owner] }

// Contested gives every pod that several EgressIPs select, with the owner of the one that has it and of each other.
func (x *EgressIPs) Contested() iter.Seq2[cluster.Owner, [2]cluster.Owner] {
	return func(yield func(cluster.Owner, [2]cluster.Owner) bool) {
		for pod, c := range x.chosen {
			for _, younger := range c.by[1:] {
				if !yield(pod, [2]cluster.Owner{c.first(), younger.owner}) {
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
		x := &selector{owner: e.Owner, namespaces: e.Namespaces, pods: e.Pods}
		if e.Service != nil {
			x.endpoints = make(map[netip.Addr]bool, len(e.Service.Endpoints))
			for _, a := range e.Service.Endpoints {
				x.endpoints[a] = true
			}
		}
		list = append(list, x)
	}
	return list
}

// sameChoice reports whether two states of an EgressIP select the same pods.
func sameChoice(e, f *cluster.EgressIP) bool {
	if (e.Service == nil) != (f.Service == nil) || e.Service != nil && (e.Service.Ended != f.Service.Ended || !slices.Equal(e.Service.Endpoints, f.Service.Endpoints)) {
		return false
	}
	return e.Created.Equal(f.Created) && reflect.DeepEqual(e.Namespaces, f.Namespaces) && reflect.DeepEqual(e.Pods, f.Pods)
}
