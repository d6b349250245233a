package plan

import (
	"net/netip"
	"reflect"
	"slices"

	"hairpin/cluster"
	"hairpin/cluster/trust"
	"hairpin/datapath"
	"hairpin/plan/admission"
	"hairpin/plan/node"
	"hairpin/plan/service"
)

// Planner plans a node again and again. It returns the same State as Node, except that Services
// keep their proxy ports and group slots. It remembers enough of the last plan that a change of one
// Service or Pod costs little more than a copy of the State. It is not safe for concurrent use.
type Planner struct {
	last *planned
	kept admission.Allocations
}

// ProxyPorts are the proxy ports that Services have.
type ProxyPorts = admission.ProxyPorts

// NewPlanner returns a Planner that remembers nothing yet.
func NewPlanner() *Planner { return &Planner{} }

// Keep makes Services keep the proxy ports that they have on the node. It is called before the
// first plan.
func (p *Planner) Keep(ports ProxyPorts) { p.kept.Ports = ports }

// IsolatedPods returns the number of the node's pods that a policy selects, as of the last plan.
func (p *Planner) IsolatedPods() (pods int) {
	if p.last == nil {
		return 0
	}
	for _, f := range p.last.incrementals {
		if f, ok := f.(interface{ SelectedPods() int }); ok {
			pods += f.SelectedPods()
		}
	}
	return pods
}

// planned is one result and its inputs.
type planned struct {
	snapshot     *cluster.Snapshot
	env          node.Env // without Peers, and without Frontends: those are in services
	services     *admission.Registry
	vetting      *trust.Vetting
	base         datapath.State
	incrementals []incremental
	state        datapath.State
	problems     []cluster.Problem // all of:

	nodeProblems        []cluster.Problem
	baseProblems        []cluster.Problem
	podProblems         []cluster.Problem       // of pods with the same address
	objectProblems      map[cluster.Problem]int // of objects features, with the number of objects that have it
	incrementalProblems []cluster.Problem       // of incremental features
	conflicts           []cluster.Problem       // if there is one, the State is not the union of its parts
}

// Node computes the State of the node of that name. Its Problems are sorted and without duplicates.
// Neither may be changed by the caller; later calls do not change them.
//
// When the node itself cannot be planned, because it lacks a number, addresses or a gateway, or
// because of the configuration, the State is the zero State (its NB is nil) and Problems say why:
// that State must not be applied.
func (p *Planner) Node(s *cluster.Snapshot, name string) (datapath.State, []cluster.Problem) {
	env, problems, ok := node.NewEnv(s, name)
	if !ok {
		p.last = nil
		return datapath.State{}, cluster.SortProblems(problems)
	}
	if p.last == nil || !p.last.update(s, &env) {
		p.last = planAll(s, env, problems, p.kept)
	}
	p.kept = p.last.services.Allocations()
	return p.last.state, p.last.problems
}

// planAll plans without an earlier result.
func planAll(s *cluster.Snapshot, env node.Env, nodeProblems []cluster.Problem, keep admission.Allocations) *planned {
	vetting := trust.NewVetting(env.Node.Name, s.Config.ClusterSubnets)
	env.Vetted, _ = vetting.Vet(s.Nodes)
	var pods []netip.Prefix
	for _, r := range s.Config.ClusterSubnets {
		pods = append(pods, r.CIDR)
	}
	facts := admission.Facts{Node: env.Node, Vetted: env.Vetted, PodRanges: pods}
	n := &planned{
		snapshot: s, vetting: vetting, services: admission.New(facts, s.Frontends, keep),
		incrementals: newIncrementals(), nodeProblems: nodeProblems, objectProblems: map[cluster.Problem]int{},
	}
	frontends, rejections := n.services.Admitted()
	n.countProblems(rejections, 1)
	env.RestrictedPorts = service.RestrictedPorts(frontends)
	env.Pods, n.podProblems = podsOn(env.Node.Name, s.Pods)
	n.env = env
	env.Frontends = frontends
	env.Peers = slices.DeleteFunc(slices.Clone(s.Nodes), func(x *cluster.Node) bool { return x.Name == env.Node.Name })

	part, objectProblems, _ := planFeatures(objects, env) // Merge finds their conflicts below
	n.countProblems(objectProblems, 1)
	var baseConflicts []datapath.Conflict
	n.base, n.baseProblems, baseConflicts = planFeatures(base, env)
	parts := []datapath.State{n.base, part}
	added := node.Changes{
		Pods:      cluster.Changes[cluster.Pod]{Added: env.Pods},
		Frontends: cluster.Changes[admission.Frontend]{Added: env.Frontends},
		Nodes:     cluster.Changes[cluster.Node]{Added: env.Peers},
	}
	for _, f := range n.incrementals {
		_, come := f.Update(s, &env, added, true)
		parts = append(parts, come)
	}
	n.incrementalProblems = n.problemsOfIncrementals()
	state, conflicts := datapath.Merge(parts...)
	for _, c := range slices.Concat(baseConflicts, conflicts) {
		n.conflicts = append(n.conflicts, cluster.Problem{Owner: c.Lost, Message: c.Key + " is already wanted by " +
			c.Kept.String()})
	}
	n.state = state
	n.listProblems()
	return n
}

// planFeatures returns the merged parts of some features, and the conflicts between them.
func planFeatures(features []feature, env node.Env) (datapath.State, []cluster.Problem, []datapath.Conflict) {
	var parts []datapath.State
	var problems []cluster.Problem
	for _, f := range features {
		part, found := f(env)
		parts = append(parts, part)
		problems = append(problems, found...)
	}
	state, conflicts := datapath.Merge(parts...)
	return state, problems, conflicts
}

// planObjects plans only the objects in env; without any, it returns zero values.
func planObjects(env node.Env) (state datapath.State, problems []cluster.Problem) {
	if len(env.Frontends)+len(env.Pods)+len(env.Peers) > 0 {
		state, problems, _ = planFeatures(objects, env)
	}
	return state, problems
}

// update applies a new Snapshot by planning only what changed. It returns false when that is not
// enough; then n must not be used any more.
func (n *planned) update(s *cluster.Snapshot, env *node.Env) bool {
	if len(n.conflicts) > 0 || !sameSelf(n.env.Node, env.Node) || !reflect.DeepEqual(n.snapshot.Config, s.Config) {
		return false
	}
	next := *env
	next.Pods, next.RestrictedPorts, next.Vetted = n.env.Pods, n.env.RestrictedPorts, n.env.Vetted
	peers, hosts := n.changedPeers(s, &next)
	changed := changedServices(cluster.Compare(n.snapshot.Frontends, s.Frontends, (*cluster.Frontend).Compare))
	services := n.services.Update(next.Vetted, hosts, changed, s.Frontends)
	if !slices.Equal(service.RestrictedPorts(services.Removed), service.RestrictedPorts(services.Added)) {
		all, _ := n.services.Admitted()
		next.RestrictedPorts = service.RestrictedPorts(all)
	}
	// What else base features read is the same: otherwise update has returned false.
	baseChanged := !slices.Equal(n.env.RestrictedPorts, next.RestrictedPorts)
	podProblems := n.podProblems
	if !cluster.SameList(n.snapshot.Pods, s.Pods) {
		next.Pods, podProblems = podsOn(env.Node.Name, s.Pods)
	}
	pods := cluster.Compare(n.env.Pods, next.Pods, (*cluster.Pod).Compare)

	before, after := n.env, next
	before.Frontends, before.Pods, before.Peers = services.Removed, pods.Removed, peers.Removed
	after.Frontends, after.Pods, after.Peers = services.Added, pods.Added, peers.Added
	gone, oldProblems := planObjects(before)
	come, newProblems := planObjects(after)
	oldProblems, newProblems = append(oldProblems, services.Solved...), append(newProblems, services.Found...)

	changes := node.Changes{Pods: pods, Frontends: services.Changes, Nodes: peers}
	for _, f := range n.incrementals {
		oldPart, newPart := f.Update(s, &next, changes, baseChanged)
		gone, come = datapath.Union(gone, oldPart), datapath.Union(come, newPart)
	}
	if baseChanged {
		part, problems, conflicts := planFeatures(base, next)
		if len(conflicts) > 0 {
			return false
		}
		gone, come = datapath.Union(gone, n.base), datapath.Union(come, part)
		n.base, n.baseProblems = part, problems
	}
	var ok bool
	if n.state, ok = datapath.Replace(n.state, gone, come); !ok {
		return false
	}
	n.snapshot, n.env = s, next
	incrementalProblems := n.problemsOfIncrementals()
	if baseChanged || !slices.Equal(oldProblems, newProblems) || !slices.Equal(n.podProblems, podProblems) ||
		!slices.Equal(n.incrementalProblems, incrementalProblems) {
		n.podProblems, n.incrementalProblems = podProblems, incrementalProblems
		n.countProblems(oldProblems, -1)
		n.countProblems(newProblems, 1)
		n.listProblems()
	}
	return true
}

// changedPeers returns the peers whose relevant facts or acceptance changed, and the addresses
// whose owner changed. It vets nodes only if a fact changed.
func (n *planned) changedPeers(s *cluster.Snapshot,
	next *node.Env) (c cluster.Changes[cluster.Node], hosts map[netip.Addr]string) {
	c = cluster.Compare(n.snapshot.Nodes, s.Nodes, (*cluster.Node).Compare)
	same := func(x, other *cluster.Node) bool {
		return other != nil && (x.Name == next.Node.Name || samePeer(x, other))
	}
	c.Removed = slices.DeleteFunc(c.Removed, func(x *cluster.Node) bool { return same(x, s.Node(x.Name)) })
	c.Added = slices.DeleteFunc(c.Added, func(x *cluster.Node) bool { return same(x, n.snapshot.Node(x.Name)) })
	c.Changed = nil // pairs are unused
	if len(c.Removed)+len(c.Added) == 0 {
		return c, nil
	}
	vetted, changes := n.vetting.Vet(s.Nodes)
	next.Vetted = vetted
	for _, name := range changes.Rejected {
		if was, is := n.snapshot.Node(name), s.Node(name); was != nil && is != nil && !slices.Contains(c.Added, is) {
			c.Removed, c.Added = append(c.Removed, was), append(c.Added, is)
		}
	}
	return c, changes.Hosts
}

// sameSelf reports whether the planned node is the same in everything that affects its State. The
// fields that it clears are for other nodes, for the controller, or for incremental features, which
// read them from the Snapshot.
func sameSelf(m, n *cluster.Node) bool {
	if m == n {
		return true
	}
	a, b := *m, *n
	for _, x := range []*cluster.Node{&a, &b} {
		x.UID, x.Leaving, x.NetworkUnavailable, x.Egress = "", false, "", cluster.NodeEgress{}
		x.HostPorts = cluster.HostPorts{}
	}
	return reflect.DeepEqual(a, b)
}

// samePeer reports whether two states of a peer are the same in everything that other nodes use.
func samePeer(a, b *cluster.Node) bool {
	g, h := &a.Gateway, &b.Gateway
	return a == b || a.Name == b.Name && a.UID == b.UID && a.Created.Equal(b.Created) && a.ID == b.ID &&
		slices.Equal(a.Addresses, b.Addresses) && slices.Equal(a.HostAddresses, b.HostAddresses) &&
		slices.Equal(a.PodCIDRs, b.PodCIDRs) && g.Mode == h.Mode && g.MAC == h.MAC && g.DeviceMAC == h.DeviceMAC
}

// changedServices returns the sorted Services of removed and added Frontends.
func changedServices(c cluster.Changes[cluster.Frontend]) []cluster.Owner {
	var owners []cluster.Owner
	for _, f := range slices.Concat(c.Removed, c.Added) {
		owners = append(owners, f.Owner)
	}
	slices.SortFunc(owners, cluster.Owner.Compare)
	return slices.Compact(owners)
}

// countProblems adds problems of objects (by = 1) or removes them (by = -1). It counts them,
// because several Frontends of a Service may have the same one.
func (n *planned) countProblems(problems []cluster.Problem, by int) {
	for _, p := range problems {
		n.objectProblems[p] += by
		if n.objectProblems[p] == 0 {
			delete(n.objectProblems, p)
		}
	}
}

// problemsOfIncrementals returns the sorted problems of incremental features.
func (n *planned) problemsOfIncrementals() (list []cluster.Problem) {
	for _, f := range n.incrementals {
		if f, ok := f.(interface{ Problems() []cluster.Problem }); ok {
			list = append(list, f.Problems()...)
		}
	}
	return cluster.SortProblems(list)
}

// listProblems updates the list of all problems.
func (n *planned) listProblems() {
	all := slices.Concat(n.nodeProblems, n.baseProblems, n.podProblems, n.conflicts, n.incrementalProblems)
	for p := range n.objectProblems {
		all = append(all, p)
	}
	n.problems = cluster.SortProblems(all)
}
