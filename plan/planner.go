package plan

import (
	"cmp"
	"reflect"
	"slices"

	"hairpin/cluster"
	"hairpin/datapath"
)

// Planner plans a node again and again. It gives what Node gives, and remembers enough of the last time that a change of
// one Service or Pod costs little more than a copy of the State. It is not safe for concurrent use.
type Planner struct {
	last *planned
}

// NewPlanner gives a Planner that remembers nothing yet.
func NewPlanner() *Planner { return &Planner{} }

// planned is one answer and what it came from.
type planned struct {
	snapshot *cluster.Snapshot
	env      Env
	fixed    []Problem // of the node, of base features and of refused objects
	counted  map[Problem]int
	clean    bool // no Conflict and no Frontend refused: the State is the union of its parts
	egress   *egressPlan
	state    datapath.State
	problems []Problem
}

// Node computes the State of the node of that name. Its Problems are sorted and without duplicates. Neither may be
// changed by the caller; later calls do not change them.
//
// When the node itself cannot be planned, because it lacks a number, addresses or a gateway, or because of the
// configuration, the State is the zero State (its NB is nil) and Problems say why: that State must not be applied.
func (p *Planner) Node(s *cluster.Snapshot, name string) (datapath.State, []Problem) {
	env, problems, ok := newEnv(s, name)
	if !ok {
		p.last = nil
		return datapath.State{}, sorted(problems)
	}
	if p.last == nil || !p.last.update(s, &env) {
		p.last = planAll(s, env, problems)
	}
	return p.last.state, p.last.problems
}

// planAll plans from nothing.
func planAll(s *cluster.Snapshot, env Env, problems []Problem) *planned {
	n := &planned{snapshot: s, counted: map[Problem]int{}}
	n.fixed = problems
	var refused, twice []Problem
	env.Frontends, refused = accept(s.Frontends, s.Nodes)
	env.Pods, twice = podsOn(env.Node.Name, s.Pods)
	env.Guarded = guardedBy(env.Frontends)
	env.Vetted = cluster.Vet(s.Nodes, env.Node.Name, &s.Config)
	n.env = env
	n.fixed = append(append(n.fixed, refused...), twice...)

	var parts []datapath.State
	for _, f := range base {
		part, found := f(env)
		parts = append(parts, part)
		n.fixed = append(n.fixed, found...)
	}
	part, found := planObjects(env)
	parts = append(parts, part)
	n.count(found, 1)
	n.egress = newEgress()
	_, part = n.egress.update(s, &env)
	parts = append(parts, part)

	state, conflicts := datapath.Merge(parts...)
	for _, c := range conflicts {
		n.fixed = append(n.fixed, Problem{Owner: c.Lost, Message: c.Key + " is already wanted by " + c.Kept.String()})
	}
	n.state = state
	n.clean = len(refused)+len(twice)+len(conflicts) == 0
	n.list()
	return n
}

// planObjects runs the features that look at single Pods and Services.
func planObjects(env Env) (datapath.State, []Problem) {
	var parts []datapath.State
	var problems []Problem
	for _, f := range objects {
		part, found := f(env)
		parts = append(parts, part)
		problems = append(problems, found...)
	}
	// Their keys are those of their objects: there is nothing to conflict here that Merge of the whole would not find.
	state, _ := datapath.Merge(parts...)
	return state, problems
}

// update brings the answer up to a new Snapshot by planning only the objects that changed. It gives false when more than
// that is needed; then n is of no use any more.
func (n *planned) update(s *cluster.Snapshot, env *Env) bool {
	if !n.clean || !sameNodes(n.snapshot, s, env.Node.Name) || n.env.Node.Name != env.Node.Name {
		return false
	}
	env.Vetted = n.env.Vetted
	frontends := compareLists(n.env.Frontends, s.Frontends, (*cluster.Frontend).Compare)
	for _, c := range frontends.changed {
		if !sameClaims(c[0], c[1]) {
			return false
		}
	}
	if !slices.Equal(guardedBy(frontends.gone), guardedBy(frontends.come)) {
		return false
	}
	if len(frontends.changed) != len(frontends.come) || len(frontends.changed) != len(frontends.gone) {
		if _, refused := accept(s.Frontends, s.Nodes); len(refused) > 0 {
			return false
		}
	}
	pods := n.env.Pods
	if !sameSlice(n.snapshot.Pods, s.Pods) {
		var twice []Problem
		if pods, twice = podsOn(env.Node.Name, s.Pods); len(twice) > 0 {
			return false
		}
	}
	podChanges := compareLists(n.env.Pods, pods, func(a, b *cluster.Pod) int { return a.Owner.Compare(b.Owner) })

	before, after := n.env, n.env
	owners := changedServices(frontends)
	before.Frontends, before.Pods = ofServices(n.env.Frontends, owners), podChanges.gone
	after.Frontends, after.Pods = ofServices(s.Frontends, owners), podChanges.come
	gone, oldProblems := planObjects(before)
	come, newProblems := planObjects(after)
	goneEgress, comeEgress := n.egress.update(s, env)
	state, ok := replace(n.state, union(gone, goneEgress), union(come, comeEgress))
	if !ok {
		return false
	}
	n.snapshot, n.state = s, state
	n.env.Frontends, n.env.Pods = s.Frontends, pods
	if !slices.Equal(oldProblems, newProblems) {
		n.count(oldProblems, -1)
		n.count(newProblems, 1)
		n.list()
	}
	return true
}

// sameNodes tells whether nothing but Pods and Services differs.
func sameNodes(a, b *cluster.Snapshot, own string) bool {
	if !slices.EqualFunc(a.Nodes, b.Nodes, func(m, n *cluster.Node) bool { return sameNode(m, n, own) }) {
		return false
	}
	return reflect.DeepEqual(a.Config, b.Config)
}

// sameNode leaves out what changes nothing that a node must have.
func sameNode(m, n *cluster.Node, own string) bool {
	if m == n {
		return true
	}
	a, b := *m, *n
	if m.Name != own {
		a.Links, b.Links = nil, nil
	}
	a.Egress, b.Egress = cluster.NodeEgress{}, cluster.NodeEgress{}
	return reflect.DeepEqual(a, b)
}

// union puts what EgressIPs have beside what Pods and Services have: other rows, and other maps and sets of nft.
func union(s, more datapath.State) datapath.State {
	s, _ = datapath.Merge(s, more)
	return s
}

// sameSlice tells whether two immutable lists are one.
func sameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// changes is the difference of two sorted lists of immutable values.
type changes[T any] struct {
	gone, come []*T
	changed    [][2]*T // before and after, of those that are in both gone and come
}

// compareLists compares by pointer: the same pointer is the same value.
func compareLists[T any](old, new []*T, compare func(a, b *T) int) changes[T] {
	var c changes[T]
	for len(old) > 0 && len(new) > 0 {
		if old[0] == new[0] {
			old, new = old[1:], new[1:]
			continue
		}
		order := compare(old[0], new[0])
		if order == 0 {
			c.changed = append(c.changed, [2]*T{old[0], new[0]})
		}
		if order <= 0 {
			c.gone = append(c.gone, old[0])
			old = old[1:]
		}
		if order >= 0 {
			c.come = append(c.come, new[0])
			new = new[1:]
		}
	}
	c.gone = append(c.gone, old...)
	c.come = append(c.come, new...)
	return c
}

// changedServices names the Services of what came and went, sorted.
func changedServices(c changes[cluster.Frontend]) []cluster.Owner {
	var owners []cluster.Owner
	for _, f := range slices.Concat(c.gone, c.come) {
		owners = append(owners, f.Owner)
	}
	slices.SortFunc(owners, cluster.Owner.Compare)
	return slices.Compact(owners)
}

// ofServices gives all Frontends of some Services.
func ofServices(list []*cluster.Frontend, owners []cluster.Owner) []*cluster.Frontend {
	var out []*cluster.Frontend
	for _, o := range owners {
		i, _ := slices.BinarySearchFunc(list, o, func(f *cluster.Frontend, o cluster.Owner) int { return f.Owner.Compare(o) })
		for ; i < len(list) && list[i].Owner == o; i++ {
			out = append(out, list[i])
		}
	}
	return out
}

// count adds to the objects' problems, or takes away: several Frontends of a Service have the same one.
func (n *planned) count(problems []Problem, by int) {
	for _, p := range problems {
		n.counted[p] += by
		if n.counted[p] == 0 {
			delete(n.counted, p)
		}
	}
}

// list makes the list of all problems.
func (n *planned) list() {
	all := slices.Clone(n.fixed)
	for p := range n.counted {
		all = append(all, p)
	}
	n.problems = sorted(all)
}

// sorted sorts problems and drops duplicates.
func sorted(problems []Problem) []Problem {
	slices.SortFunc(problems, func(a, b Problem) int {
		return cmp.Or(a.Owner.Compare(b.Owner), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Message, b.Message))
	})
	return slices.Compact(problems)
}
