// Package selection knows which pods an object selects by labels, of their namespaces and their own, at the cost of what changed: an
// index from selectors to members. EgressIPs are the first such objects. It is pure, as package plan is.
package selection

import (
	"cmp"
	"net/netip"
	"slices"

	"hairpin/cluster"
)

// selector is what selects pods: by labels of their namespaces, and their own, or by their addresses.
type selector struct {
	owner            cluster.Owner
	namespaces, pods cluster.Selector
	endpoints        map[netip.Addr]bool // if not nil: pods of the owner's namespace with one of these, and no labels count
	order            int                 // of several that select a pod, the first has it
}

// index is an index from selectors to the pods that they have, brought up to date by what changed.
type index struct {
	spaces []*cluster.Namespace
	pods   []*cluster.Pod

	candidates map[string]*candidates // by namespace
	chosen     map[cluster.Owner]choice
	members    map[cluster.Owner]map[cluster.Owner]*cluster.Pod // by the selector's owner
}

// choice is what selects a pod, in order.
type choice struct {
	pod *cluster.Pod
	by  []*selector
}

// first is the owner of the selector that has the pod; zero where there is none.
func (c choice) first() cluster.Owner {
	if len(c.by) == 0 {
		return cluster.Owner{}
	}
	return c.by[0].owner
}

// candidates are the selectors of a namespace. Those that ask a pod for a label stand under each value of it.
type candidates struct {
	byLabel map[[2]string][]*selector
	others  []*selector
}

func newIndex() index {
	return index{chosen: map[cluster.Owner]choice{}, members: map[cluster.Owner]map[cluster.Owner]*cluster.Pod{}}
}

// update takes a new Snapshot, and the selectors in order where they are others than the last time. It notes the owners of those
// whose pods changed.
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

// reindex prepares the choice of pods.
func (x *index) reindex(spaces []*cluster.Namespace, selectors []*selector) {
	x.candidates = make(map[string]*candidates, len(spaces))
	for i, e := range selectors {
		e.order = i
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

// in reports whether pods of a namespace may be selected.
func (e *selector) in(n *cluster.Namespace) bool {
	if e.endpoints != nil {
		return n.Name == e.owner.Namespace
	}
	return e.namespaces.Matches(n.Labels)
}

// has reports whether a pod of such a namespace is selected.
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

// choose finds what selects a pod. A pod whose namespace is not known yet is not selected.
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

// put notes what selects a pod.
func (x *index) put(pod cluster.Owner, now choice, touched map[cluster.Owner]bool) {
	was := x.chosen[pod]
	had, has := was.first(), now.first()
	none := cluster.Owner{}
	if had != none && had != has {
		touched[had] = true
		if delete(x.members[had], pod); len(x.members[had]) == 0 {
			delete(x.members, had)
		}
	}
	if has == none {
		delete(x.chosen, pod)
		return
	}
	x.chosen[pod] = now
	if x.members[has] == nil {
		x.members[has] = map[cluster.Owner]*cluster.Pod{}
	}
	x.members[has][pod] = now.pod
	if had != has || now.pod.Node != was.pod.Node || !slices.Equal(now.pod.IPs, was.pod.IPs) {
		touched[has] = true
	}
}
