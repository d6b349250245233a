package selection

import (
	"iter"
	"net/netip"
	"reflect"
	"slices"

	"hairpin/cluster"
)

// EgressIPs is an index of the pods that each EgressIP has, by family. Of several that select a
// pod, the oldest with an assigned address of the family has it. An EgressService has its pods
// whether it has an address or not.
type EgressIPs struct {
	index
	egressIPs []*cluster.EgressIP
}

// NewEgressIPs returns an empty index. It is not safe for concurrent use.
func NewEgressIPs() *EgressIPs { return &EgressIPs{index: newIndex()} }

// Update takes a new Snapshot and returns the EgressIPs that changed or whose pods changed.
func (x *EgressIPs) Update(s *cluster.Snapshot) map[cluster.Owner]bool {
	touched, others, carries := map[cluster.Owner]bool{}, false, map[cluster.Owner]families{}
	if !cluster.SameList(x.egressIPs, s.EgressIPs) {
		c := cluster.Compare(x.egressIPs, s.EgressIPs,
			func(e, f *cluster.EgressIP) int { return e.Owner.Compare(f.Owner) })
		for _, e := range slices.Concat(c.Gone, c.Come) {
			touched[e.Owner] = true
		}
		others = len(c.Changed) != len(c.Gone) || len(c.Changed) != len(c.Come) ||
			slices.ContainsFunc(c.Changed, func(p [2]*cluster.EgressIP) bool { return !sameChoice(p[0], p[1]) })
		for _, p := range c.Changed {
			if now := assigned(p[1]); now != assigned(p[0]) {
				carries[p[1].Owner] = now
			}
		}
	}
	x.egressIPs = s.EgressIPs
	if !others {
		x.reassign(carries, touched)
	}
	x.update(s, x.byAge, others, touched)
	return touched
}

// Pods returns the pods that an EgressIP has for a family.
func (x *EgressIPs) Pods(owner cluster.Owner, f cluster.Family) map[cluster.Owner]*cluster.Pod {
	return x.members[familyIndex(f)][owner]
}

// Contested yields every pod that several EgressIPs select for a family, with the owner of the one
// that has it and of each younger one.
func (x *EgressIPs) Contested() iter.Seq2[cluster.Owner, [2]cluster.Owner] {
	return func(yield func(cluster.Owner, [2]cluster.Owner) bool) {
		for pod, c := range x.chosen {
			for _, younger := range c.by[1:] {
				older, is := c.rivalOf(younger)
				if is && !yield(pod, [2]cluster.Owner{older, younger.owner}) {
					return
				}
			}
		}
	}
}

// rivalOf returns the older EgressIP that has the pod for a family that a younger one wants, too.
// It returns false if there is none.
func (c *choice) rivalOf(younger *selector) (cluster.Owner, bool) {
	for f, wants := range younger.wants {
		if !wants {
			continue
		}
		for _, e := range c.by {
			if e == younger || c.has[f] == younger.owner {
				break
			}
			if e.owner == c.has[f] {
				return e.owner, true
			}
		}
	}
	return cluster.Owner{}, false
}

// assigned returns the families of which an EgressIP has an assigned or moving address.
func assigned(e *cluster.EgressIP) (f families) {
	for _, a := range e.Assigned {
		f[familyIndex(cluster.FamilyOf(a.Address))] = true
	}
	for _, m := range e.Moving {
		f[familyIndex(cluster.FamilyOf(m.Address))] = true
	}
	return served(e, f)
}

// served returns which of the families are those of an EgressIP's destinations. An EgressService
// has both.
func served(e *cluster.EgressIP, f families) families {
	if e.Service != nil {
		return families{true, true}
	}
	for _, x := range []cluster.Family{cluster.IPv4, cluster.IPv6} {
		f[familyIndex(x)] = f[familyIndex(x)] && e.ServesFamily(x)
	}
	return f
}

// wanted returns the families of which an EgressIP has an address, assigned or not.
func wanted(e *cluster.EgressIP) (f families) {
	for _, a := range e.Addresses {
		f[familyIndex(cluster.FamilyOf(a))] = true
	}
	return served(e, f)
}

// byAge returns the selectors of the EgressIPs, the oldest first.
func (x *EgressIPs) byAge() []*selector {
	var list []*selector
	for _, e := range slices.SortedFunc(slices.Values(x.egressIPs), (*cluster.EgressIP).Older) {
		x := &selector{owner: e.Owner, namespaces: e.Namespaces, pods: e.Pods, wants: wanted(e), carries: assigned(e)}
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
	if (e.Service == nil) != (f.Service == nil) || e.Service != nil &&
		(e.Service.Ended != f.Service.Ended || !slices.Equal(e.Service.Endpoints, f.Service.Endpoints)) {
		return false
	}
	return e.Created.Equal(f.Created) && wanted(e) == wanted(f) && reflect.DeepEqual(e.Namespaces, f.Namespaces) &&
		reflect.DeepEqual(e.Pods, f.Pods)
}
