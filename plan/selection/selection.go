// Package selection finds the pods of each EgressIP. An EgressIP selects pods by their labels and
// those of their namespaces, an EgressService by the addresses of its endpoints. The cost of an
// update depends on what changed. It is pure, like package plan.
package selection

import (
	"cmp"
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
	// The objects of the last Snapshot.
	egressIPs  []*cluster.EgressIP
	namespaces []*cluster.Namespace
	pods       []*cluster.Pod

	selectors  map[cluster.Owner]*selector
	candidates map[string]*candidates // by namespace
	choices    map[cluster.Owner]choice
	members    [2]map[cluster.Owner]map[cluster.Owner]*cluster.Pod // by family and EgressIP
}

// selector is what an EgressIP selects.
type selector struct {
	owner            cluster.Owner
	namespaces, pods cluster.Selector
	// If endpoints is not nil, the selector selects pods of its own namespace with one of these
	// addresses, and ignores labels.
	endpoints map[netip.Addr]bool
	age       int // 0 is the oldest
	// The families of its addresses, and of those that are assigned to a node.
	wanted, assigned families
}

// families is a set of IP families. Its indexes are those of familyIndex.
type families [2]bool

func familyIndex(f cluster.Family) int {
	if f == cluster.IPv4 {
		return 0
	}
	return 1
}

// choice is the selectors that select a pod, and which of them has it.
type choice struct {
	pod       *cluster.Pod
	selectors []*selector      // the oldest first
	has       [2]cluster.Owner // by family; zero if no selector has the pod
}

// candidates has the selectors of a namespace. Those that require a pod label are listed under each
// of its values.
type candidates struct {
	byLabel map[[2]string][]*selector
	others  []*selector
}

// NewEgressIPs returns an empty index. It is not safe for concurrent use.
func NewEgressIPs() *EgressIPs {
	x := &EgressIPs{choices: map[cluster.Owner]choice{}}
	for f := range x.members {
		x.members[f] = map[cluster.Owner]map[cluster.Owner]*cluster.Pod{}
	}
	return x
}

// Update takes a new Snapshot and returns the EgressIPs that changed, or have other pods.
func (x *EgressIPs) Update(s *cluster.Snapshot) (touched map[cluster.Owner]bool) {
	touched = map[cluster.Owner]bool{}
	again := x.candidates == nil || !cluster.SameList(x.namespaces, s.Namespaces) // choose for all pods
	if !cluster.SameList(x.egressIPs, s.EgressIPs) {
		c := cluster.Compare(x.egressIPs, s.EgressIPs, (*cluster.EgressIP).Compare)
		for _, e := range slices.Concat(c.Removed, c.Added) {
			touched[e.Owner] = true
		}
		if len(c.Changed) != len(c.Removed) || len(c.Changed) != len(c.Added) ||
			slices.ContainsFunc(c.Changed, func(p [2]*cluster.EgressIP) bool { return !sameChoice(p[0], p[1]) }) {
			again = true
		} else {
			x.reassign(c.Changed, touched)
		}
	}
	if again {
		x.reindex(s)
	}
	if again || !cluster.SameList(x.pods, s.Pods) {
		c := cluster.Compare(x.pods, s.Pods, (*cluster.Pod).Compare)
		come := c.Added
		if again {
			come = s.Pods
		}
		stays := map[cluster.Owner]bool{}
		for _, p := range c.Changed {
			stays[p[0].Owner] = true
		}
		for _, p := range c.Removed {
			if !stays[p.Owner] {
				x.put(p.Owner, choice{}, touched)
			}
		}
		for _, p := range come {
			x.put(p.Owner, x.choose(p), touched)
		}
	}
	x.egressIPs, x.namespaces, x.pods = s.EgressIPs, s.Namespaces, s.Pods
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
		for pod, c := range x.choices {
			for _, younger := range c.selectors[1:] {
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
	for f, wants := range younger.wanted {
		if !wants {
			continue
		}
		for _, e := range c.selectors {
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

// sameChoice reports whether two states of an EgressIP select the same pods.
func sameChoice(e, f *cluster.EgressIP) bool {
	if (e.Service == nil) != (f.Service == nil) || e.Service != nil &&
		(e.Service.Ended != f.Service.Ended || !slices.Equal(e.Service.Endpoints, f.Service.Endpoints)) {
		return false
	}
	return e.Created.Equal(f.Created) && wanted(e) == wanted(f) && reflect.DeepEqual(e.Namespaces, f.Namespaces) &&
		reflect.DeepEqual(e.Pods, f.Pods)
}

// wanted returns the families of which an EgressIP has an address, assigned or not.
func wanted(e *cluster.EgressIP) (f families) {
	for _, a := range e.Addresses {
		f[familyIndex(cluster.FamilyOf(a))] = true
	}
	return served(e, f)
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

// served returns the families of f in which an EgressIP has destinations. An EgressService has
// both.
func served(e *cluster.EgressIP, f families) families {
	if e.Service != nil {
		return families{true, true}
	}
	for _, x := range cluster.Families {
		f[familyIndex(x)] = f[familyIndex(x)] && e.ServesFamily(x)
	}
	return f
}

// reassign updates the EgressIPs with changed families of assigned addresses. A pod that several
// select may move to another one.
func (x *EgressIPs) reassign(list [][2]*cluster.EgressIP, touched map[cluster.Owner]bool) {
	changed := map[*selector]bool{}
	for _, p := range list {
		if now := assigned(p[1]); now != assigned(p[0]) {
			e := x.selectors[p[1].Owner]
			e.assigned, changed[e] = now, true
		}
	}
	if len(changed) == 0 {
		return
	}
	for pod, c := range x.choices {
		if len(c.selectors) > 1 && slices.ContainsFunc(c.selectors, func(e *selector) bool { return changed[e] }) {
			x.put(pod, choice{pod: c.pod, selectors: c.selectors}, touched)
		}
	}
}

// reindex sets the selectors, and the candidates of each namespace.
func (x *EgressIPs) reindex(s *cluster.Snapshot) {
	x.candidates = make(map[string]*candidates, len(s.Namespaces))
	x.selectors = make(map[cluster.Owner]*selector, len(s.EgressIPs))
	var list []*selector
	for i, e := range slices.SortedFunc(slices.Values(s.EgressIPs), (*cluster.EgressIP).ComparePrecedence) {
		y := &selector{owner: e.Owner, namespaces: e.Namespaces, pods: e.Pods, age: i, wanted: wanted(e),
			assigned: assigned(e)}
		if e.Service != nil {
			y.endpoints = make(map[netip.Addr]bool, len(e.Service.Endpoints))
			for _, a := range e.Service.Endpoints {
				y.endpoints[a] = true
			}
		}
		x.selectors[y.owner] = y
		list = append(list, y)
	}
	for _, n := range s.Namespaces {
		c := &candidates{byLabel: map[[2]string][]*selector{}}
		for _, e := range list {
			if e.in(n) {
				c.add(e)
			}
		}
		x.candidates[n.Name] = c
	}
}

// in reports whether the selector may select pods of a namespace.
func (e *selector) in(n *cluster.Namespace) bool {
	if e.endpoints != nil {
		return n.Name == e.owner.Namespace
	}
	return e.namespaces.Matches(n.Labels)
}

// selects reports whether the selector selects a pod of such a namespace.
func (e *selector) selects(p *cluster.Pod) bool {
	if e.endpoints != nil {
		return slices.ContainsFunc(p.IPs, func(a netip.Addr) bool { return e.endpoints[a] })
	}
	return e.pods.Matches(p.Labels)
}

func (c *candidates) add(e *selector) {
	for _, r := range e.pods.Requirements {
		if r.Operator == "In" {
			for _, v := range r.Values {
				k := [2]string{r.Key, v}
				c.byLabel[k] = append(c.byLabel[k], e)
			}
			return
		}
	}
	c.others = append(c.others, e)
}

// choose returns the selectors of a pod. A pod whose namespace is not known yet is not selected.
func (x *EgressIPs) choose(p *cluster.Pod) choice {
	c := x.candidates[p.Owner.Namespace]
	if c == nil {
		return choice{}
	}
	out := choice{pod: p}
	take := func(list []*selector) {
		for _, e := range list {
			if e.selects(p) {
				out.selectors = append(out.selectors, e)
			}
		}
	}
	take(c.others)
	for k, v := range p.Labels {
		take(c.byLabel[[2]string{k, v}])
	}
	slices.SortFunc(out.selectors, func(a, b *selector) int { return cmp.Compare(a.age, b.age) })
	return out
}

// put decides which selectors have a pod, and updates their members.
func (x *EgressIPs) put(pod cluster.Owner, now choice, touched map[cluster.Owner]bool) {
	now.decide()
	was := x.choices[pod]
	for f := range now.has {
		x.move(f, pod, was, now, touched)
	}
	if len(now.selectors) == 0 {
		delete(x.choices, pod)
	} else {
		x.choices[pod] = now
	}
}

// decide sets which selector has the pod: for each family the oldest one with an assigned address,
// else the oldest one with an address.
func (c *choice) decide() {
	c.has = [2]cluster.Owner{}
	for f := range c.has {
		i := slices.IndexFunc(c.selectors, func(e *selector) bool { return e.assigned[f] })
		if i < 0 {
			i = slices.IndexFunc(c.selectors, func(e *selector) bool { return e.wanted[f] })
		}
		if i >= 0 {
			c.has[f] = c.selectors[i].owner
		}
	}
}

// move makes a pod, for a family, a member of the selector that has it now, and of no other.
func (x *EgressIPs) move(f int, pod cluster.Owner, was, now choice, touched map[cluster.Owner]bool) {
	members, had, has, none := x.members[f], was.has[f], now.has[f], cluster.Owner{}
	if had != none && had != has {
		touched[had] = true
		if delete(members[had], pod); len(members[had]) == 0 {
			delete(members, had)
		}
	}
	if has == none {
		return
	}
	if members[has] == nil {
		members[has] = map[cluster.Owner]*cluster.Pod{}
	}
	members[has][pod] = now.pod
	if had != has || now.pod.Node != was.pod.Node || !slices.Equal(now.pod.IPs, was.pod.IPs) {
		touched[has] = true
	}
}
