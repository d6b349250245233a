package plan

import (
	"reflect"
	"slices"

	"hairpin/cluster"
)

// egressSelection knows which pods each EgressIP has: of several that select a pod, the oldest has it.
type egressSelection struct {
	selection
	egressIPs []*cluster.EgressIP
}

func newEgressSelection() *egressSelection { return &egressSelection{selection: newSelection()} }

// update takes a new Snapshot and names the EgressIPs that changed, or whose pods did.
func (x *egressSelection) update(s *cluster.Snapshot) map[string]bool {
	touched, others := map[string]bool{}, false
	if !sameSlice(x.egressIPs, s.EgressIPs) {
		c := compareLists(x.egressIPs, s.EgressIPs, func(e, f *cluster.EgressIP) int { return e.Owner.Compare(f.Owner) })
		for _, e := range slices.Concat(c.gone, c.come) {
			touched[e.Owner.Name] = true
		}
		others = len(c.changed) != len(c.gone) || len(c.changed) != len(c.come) ||
			slices.ContainsFunc(c.changed, func(p [2]*cluster.EgressIP) bool { return !sameChoice(p[0], p[1]) })
	}
	x.egressIPs = s.EgressIPs
	x.selection.update(s, x.byAge, others, touched)
	return touched
}

// byAge returns what the EgressIPs select, the oldest first.
func (x *egressSelection) byAge() []*selector {
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

// SelectorConflict is that two EgressIPs select the same pods: the older has them.
type SelectorConflict struct {
	Older, Younger cluster.Owner
	Pods           int
	Example        cluster.Owner // the first of them by name
}

// SelectorConflicts finds EgressIPs that select the same pods, again and again at the cost of what changed. It is not safe for
// concurrent use.
type SelectorConflicts struct {
	selection *egressSelection
}

// NewSelectorConflicts returns SelectorConflicts that know nothing yet.
func NewSelectorConflicts() *SelectorConflicts { return &SelectorConflicts{newEgressSelection()} }

// Of returns the rivalries of a Snapshot, sorted by the younger and the older.
func (r *SelectorConflicts) Of(s *cluster.Snapshot) []SelectorConflict {
	r.selection.update(s)
	pairs := map[[2]string]*SelectorConflict{}
	for pod, c := range r.selection.chosen {
		for _, younger := range c.by[1:] {
			k := [2]string{younger.name, c.first()}
			if pairs[k] == nil {
				pairs[k] = &SelectorConflict{Older: egressOwner(c.first()), Younger: egressOwner(younger.name), Example: pod}
			}
			pairs[k].Pods++
			if pod.Compare(pairs[k].Example) < 0 {
				pairs[k].Example = pod
			}
		}
	}
	list := make([]SelectorConflict, 0, len(pairs))
	for _, p := range pairs {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b SelectorConflict) int {
		if c := a.Younger.Compare(b.Younger); c != 0 {
			return c
		}
		return a.Older.Compare(b.Older)
	})
	return list
}

func egressOwner(name string) cluster.Owner { return cluster.Owner{Kind: "EgressIP", Name: name} }
