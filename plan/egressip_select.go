package plan

import (
	"reflect"
	"slices"

	"hairpin/cluster"
)

// selection knows which pods each EgressIP has: of several that select a pod, the oldest has it. It is brought up to date
// by what changed.
type selection struct {
	egressIPs []*cluster.EgressIP
	spaces    []*cluster.Namespace
	pods      []*cluster.Pod

	index   map[string]*candidates // by namespace
	chosen  map[cluster.Owner]choice
	members map[string]map[cluster.Owner]*cluster.Pod // by EgressIP
}

// choice is who has a pod.
type choice struct {
	pod    *cluster.Pod
	by     string   // EgressIP
	rivals []string // the younger ones that select it, too, oldest first
}

// candidates are the EgressIPs that select a namespace. Those that ask a pod for a label stand under each value of it.
type candidates struct {
	byLabel map[[2]string][]*cluster.EgressIP
	others  []*cluster.EgressIP
}

func newSelection() *selection {
	return &selection{chosen: map[cluster.Owner]choice{}, members: map[string]map[cluster.Owner]*cluster.Pod{}}
}

// update takes a new Snapshot and names the EgressIPs that changed, or whose pods did.
func (x *selection) update(s *cluster.Snapshot) map[string]bool {
	touched := map[string]bool{}
	again := x.index == nil || !sameSlice(x.spaces, s.Namespaces)
	if !sameSlice(x.egressIPs, s.EgressIPs) {
		c := compareLists(x.egressIPs, s.EgressIPs, func(e, f *cluster.EgressIP) int { return e.Owner.Compare(f.Owner) })
		for _, e := range slices.Concat(c.gone, c.come) {
			touched[e.Owner.Name] = true
		}
		again = again || len(c.changed) != len(c.gone) || len(c.changed) != len(c.come) ||
			slices.ContainsFunc(c.changed, func(p [2]*cluster.EgressIP) bool { return !sameChoice(p[0], p[1]) })
	}
	x.egressIPs, x.spaces = s.EgressIPs, s.Namespaces
	if again {
		x.reindex()
	}
	if again || !sameSlice(x.pods, s.Pods) {
		c := compareLists(x.pods, s.Pods, func(p, q *cluster.Pod) int { return p.Owner.Compare(q.Owner) })
		come := c.come
		if again {
			come = s.Pods
		}
		stays := map[cluster.Owner]bool{}
		for _, p := range c.changed {
			stays[p[0].Owner] = true
		}
		for _, p := range c.gone {
			if !stays[p.Owner] {
				x.put(p.Owner, choice{}, touched)
			}
		}
		for _, p := range come {
			x.put(p.Owner, x.choose(p), touched)
		}
	}
	x.pods = s.Pods
	return touched
}

// sameChoice tells whether two states of an EgressIP select the same pods.
func sameChoice(e, f *cluster.EgressIP) bool {
	return e.Created.Equal(f.Created) && reflect.DeepEqual(e.Namespaces, f.Namespaces) && reflect.DeepEqual(e.Pods, f.Pods)
}

// reindex prepares the choice of pods, oldest EgressIPs first.
func (x *selection) reindex() {
	x.index = make(map[string]*candidates, len(x.spaces))
	byAge := slices.SortedFunc(slices.Values(x.egressIPs), (*cluster.EgressIP).Older)
	for _, n := range x.spaces {
		c := &candidates{byLabel: map[[2]string][]*cluster.EgressIP{}}
		for _, e := range byAge {
			if e.Namespaces.Matches(n.Labels) {
				c.add(e)
			}
		}
		x.index[n.Name] = c
	}
}

func (c *candidates) add(e *cluster.EgressIP) {
	for _, r := range e.Pods.Requirements {
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

// choose finds the EgressIP of a pod. A pod whose namespace is not known yet has none.
func (x *selection) choose(p *cluster.Pod) choice {
	c := x.index[p.Owner.Namespace]
	if c == nil {
		return choice{}
	}
	var found []*cluster.EgressIP
	take := func(list []*cluster.EgressIP) {
		for _, e := range list {
			if e.Pods.Matches(p.Labels) {
				found = append(found, e)
			}
		}
	}
	take(c.others)
	for k, v := range p.Labels {
		take(c.byLabel[[2]string{k, v}])
	}
	if len(found) == 0 {
		return choice{}
	}
	slices.SortFunc(found, (*cluster.EgressIP).Older)
	out := choice{pod: p, by: found[0].Owner.Name}
	for _, e := range found[1:] {
		out.rivals = append(out.rivals, e.Owner.Name)
	}
	return out
}

// put notes who has a pod; nobody, when the choice is the zero one.
func (x *selection) put(pod cluster.Owner, now choice, touched map[string]bool) {
	was, had := x.chosen[pod]
	same := had && now.by == was.by && now.pod.Node == was.pod.Node && slices.Equal(now.pod.IPs, was.pod.IPs)
	if had && now.by != was.by {
		delete(x.members[was.by], pod)
		touched[was.by] = true
		if len(x.members[was.by]) == 0 {
			delete(x.members, was.by)
		}
	}
	if now.pod == nil {
		delete(x.chosen, pod)
		return
	}
	x.chosen[pod] = now
	if x.members[now.by] == nil {
		x.members[now.by] = map[cluster.Owner]*cluster.Pod{}
	}
	x.members[now.by][pod] = now.pod
	if !same {
		touched[now.by] = true
	}
}

// Rivalry is that two EgressIPs select the same pods: the older has them.
type Rivalry struct {
	Older, Younger cluster.Owner
	Pods           int
	Example        cluster.Owner // the first of them by name
}

// Rivals finds EgressIPs that select the same pods, again and again at the cost of what changed. It is not safe for
// concurrent use.
type Rivals struct {
	selection *selection
}

// NewRivals gives Rivals that know nothing yet.
func NewRivals() *Rivals { return &Rivals{newSelection()} }

// Of gives the rivalries of a Snapshot, sorted by the younger and the older.
func (r *Rivals) Of(s *cluster.Snapshot) []Rivalry {
	r.selection.update(s)
	pairs := map[[2]string]*Rivalry{}
	for pod, c := range r.selection.chosen {
		for _, younger := range c.rivals {
			k := [2]string{younger, c.by}
			if pairs[k] == nil {
				pairs[k] = &Rivalry{Older: egressOwner(c.by), Younger: egressOwner(younger), Example: pod}
			}
			pairs[k].Pods++
			if pod.Compare(pairs[k].Example) < 0 {
				pairs[k].Example = pod
			}
		}
	}
	list := make([]Rivalry, 0, len(pairs))
	for _, p := range pairs {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b Rivalry) int {
		if c := a.Younger.Compare(b.Younger); c != 0 {
			return c
		}
		return a.Older.Compare(b.Older)
	})
	return list
}

func egressOwner(name string) cluster.Owner { return cluster.Owner{Kind: "EgressIP", Name: name} }
