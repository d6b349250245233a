// Package selection is an index from selectors to pods. A selector selects pods by their labels and
// those of their namespaces. The cost of an update depends on what changed. EgressIPs are the first
// objects that use it. It is pure, like package plan.
package selection

import (
	"cmp"
	"net/netip"
	"slices"

	"hairpin/cluster"
)

// selector selects pods by labels, of their namespaces and their own, or by their addresses.
type selector struct {
	owner            cluster.Owner
	namespaces, pods cluster.Selector
	// if not nil: the selector selects pods of its namespace with one of these, and ignores labels
	endpoints map[netip.Addr]bool
	order     int // of several that select a pod, the lowest has it
	// families of its addresses, and of those assigned; with an assigned one, it has the pod
	wants, carries families
}

// families is a set of IP families.
type families [2]bool

// familyIndex returns the index of a family in arrays of two.
func familyIndex(f cluster.Family) int {
	if f == cluster.IPv4 {
		return 0
	}
	return 1
}

// index maps selectors to the pods that they have. Updates process only what changed.
type index struct {
	spaces []*cluster.Namespace
	pods   []*cluster.Pod

	candidates map[string]*candidates // by namespace
	chosen     map[cluster.Owner]choice
	members    [2]map[cluster.Owner]map[cluster.Owner]*cluster.Pod // by family and the selector's owner
	selectors  map[cluster.Owner]*selector
}

// choice has the selectors of a pod, in order.
type choice struct {
	pod *cluster.Pod
	by  []*selector
	has [2]cluster.Owner // owner of the selector that has the pod, by family; zero if there is none
}

// decide sets which selector has the pod: for each family the first one with an assigned address,
// else the first one with an address.
func (c *choice) decide() {
	c.has = [2]cluster.Owner{}
	for f := range c.has {
		i := slices.IndexFunc(c.by, func(e *selector) bool { return e.carries[f] })
		if i < 0 {
			i = slices.IndexFunc(c.by, func(e *selector) bool { return e.wants[f] })
		}
		if i >= 0 {
			c.has[f] = c.by[i].owner
		}
	}
}

// candidates has the selectors of a namespace. Those that require a pod label are listed under each
// of its values.
type candidates struct {
	byLabel map[[2]string][]*selector
	others  []*selector
}

func newIndex() index {
	x := index{chosen: map[cluster.Owner]choice{}}
	for f := range x.members {
		x.members[f] = map[cluster.Owner]map[cluster.Owner]*cluster.Pod{}
	}
	return x
}

// update takes a new Snapshot, and the selectors in order if they differ from the last ones. It
// adds the owners of selectors whose pods changed to touched.
func (x *index) update(s *cluster.Snapshot, selectors func() []*selector, others bool, touched map[cluster.Owner]bool) {
	again := others || x.candidates == nil || !cluster.SameList(x.spaces, s.Namespaces)
	if again {
		x.reindex(s.Namespaces, selectors())
	}
	if again || !cluster.SameList(x.pods, s.Pods) {
		c := cluster.Compare(x.pods, s.Pods, func(p, q *cluster.Pod) int { return p.Owner.Compare(q.Owner) })
		come := c.Come
		if again {
			come = s.Pods
		}
		stays := map[cluster.Owner]bool{}
		for _, p := range c.Changed {
			stays[p[0].Owner] = true
		}
		for _, p := range c.Gone {
			if !stays[p.Owner] {
				x.put(p.Owner, choice{}, touched)
			}
		}
		for _, p := range come {
			x.put(p.Owner, x.choose(p), touched)
		}
	}
	x.pods, x.spaces = s.Pods, s.Namespaces
}

// reindex sets the candidates of each namespace.
func (x *index) reindex(spaces []*cluster.Namespace, selectors []*selector) {
	x.candidates = make(map[string]*candidates, len(spaces))
	x.selectors = make(map[cluster.Owner]*selector, len(selectors))
	for i, e := range selectors {
		e.order = i
		x.selectors[e.owner] = e
	}
	for _, n := range spaces {
		c := &candidates{byLabel: map[[2]string][]*selector{}}
		for _, e := range selectors {
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

// has reports whether the selector selects a pod of such a namespace.
func (e *selector) has(p *cluster.Pod) bool {
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
func (x *index) choose(p *cluster.Pod) choice {
	c := x.candidates[p.Owner.Namespace]
	if c == nil {
		return choice{}
	}
	out := choice{pod: p}
	take := func(list []*selector) {
		for _, e := range list {
			if e.has(p) {
				out.by = append(out.by, e)
			}
		}
	}
	take(c.others)
	for k, v := range p.Labels {
		take(c.byLabel[[2]string{k, v}])
	}
	slices.SortFunc(out.by, func(a, b *selector) int { return cmp.Compare(a.order, b.order) })
	return out
}

// reassign updates the selectors whose families of assigned addresses changed. A pod that several
// select may move to another one.
func (x *index) reassign(changed map[cluster.Owner]families, touched map[cluster.Owner]bool) {
	for owner, carries := range changed {
		x.selectors[owner].carries = carries
	}
	if len(changed) == 0 {
		return
	}
	for pod, c := range x.chosen {
		if len(c.by) > 1 && slices.ContainsFunc(c.by, func(e *selector) bool { _, is := changed[e.owner]; return is }) {
			x.put(pod, choice{pod: c.pod, by: c.by}, touched)
		}
	}
}

// put records the selectors of a pod.
func (x *index) put(pod cluster.Owner, now choice, touched map[cluster.Owner]bool) {
	now.decide()
	was := x.chosen[pod]
	for f, has := range now.has {
		x.move(f, pod, was, now, was.has[f], has, touched)
	}
	if len(now.by) == 0 {
		delete(x.chosen, pod)
	} else {
		x.chosen[pod] = now
	}
}

// move gives a pod, for a family, to another selector or to none.
func (x *index) move(f int, pod cluster.Owner, was, now choice, had, has cluster.Owner,
	touched map[cluster.Owner]bool) {
	members, none := x.members[f], cluster.Owner{}
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
