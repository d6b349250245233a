package netpolicy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sort"

	"hairpin/cluster"
)

// Pod is an own pod to which a Policy applies in some direction.
type Pod struct {
	*cluster.Pod
	Egress, Ingress uint32 // IDs of its Profiles, or Open
	// Joined is the Profile for packets that will get the gateway router's address on the join
	// switch as their source.
	Joined uint32
}

// Member is an address range, and the sets of one Place of which it is part.
type Member struct {
	Direction Direction
	Place
	Prefix netip.Prefix
	Sets   []uint32 // sorted, never empty
}

// member identifies a Member of a direction.
type member struct {
	Place
	netip.Prefix
}

// Delta is what an update changed: parts that are no longer valid, and new ones.
type Delta struct {
	Pods     Change[*Pod]
	Profiles Change[*Profile]
	Members  Change[Member]
}

// Change is the removed and added parts of one kind.
type Change[T any] struct{ Removed, Added []T }

// Index compiles the Policies of the own pods of a node. It is not safe for concurrent use.
type Index struct {
	// The facts of the last update.
	policies      []*cluster.Policy
	namespaceList []*cluster.Namespace
	namespaces    map[string]*cluster.Namespace
	pods, own     []*cluster.Pod // all, and the node's
	nodes         []*cluster.Node

	byNamespace map[string][]*cluster.Policy // NetworkPolicies, sorted by name
	clusterwide []*cluster.Policy            // ClusterNetworkPolicies, sorted by name
	selected    map[cluster.Owner]*subject
	profiles    map[string]*Profile        // by text
	sets        [2]map[string]*set         // by text
	members     [2]map[member]map[*set]int // how often each set has the range, see countRange
	named       map[string]*namedPort

	profileIDs idPool
	setIDs     idPool
}

// subject is an own pod with what its rules depend on.
type subject struct {
	Pod
	profiles []*Profile
	named    map[string]bool
}

// namedPort is a named port of an expression, and the numbers that pods have for it.
type namedPort struct {
	peers
	numbers []uint16
	users   int // pods
}

// NewIndex returns an Index without Policies and Pods.
func NewIndex() *Index {
	x := &Index{byNamespace: map[string][]*cluster.Policy{}, selected: map[cluster.Owner]*subject{},
		profiles: map[string]*Profile{}, named: map[string]*namedPort{}}
	for _, d := range directions {
		x.sets[d], x.members[d] = map[string]*set{}, map[member]map[*set]int{}
	}
	return x
}

// Selected returns the number of own pods to which a Policy applies.
func (x *Index) Selected() int { return len(x.selected) }

// update is one call of Update.
type update struct {
	*Index
	join       []netip.Addr
	subjects   map[cluster.Owner]bool // own pods to compile again
	before     [2]map[member][]uint32 // the former sets of the ranges that changed
	relabelled map[string]bool        // namespaces with other labels
	delta      Delta
}

// Update takes a new Snapshot and the node's own pods, sorted by Owner. join are the gateway
// router's addresses on the join switch; they never change.
func (x *Index) Update(s *cluster.Snapshot, own []*cluster.Pod, join []netip.Addr) Delta {
	u := update{Index: x, join: join, subjects: map[cluster.Owner]bool{}}
	for _, d := range directions {
		u.before[d] = map[member][]uint32{}
	}
	u.updatePeers(s)
	u.updateNodes(s.Nodes)
	u.updateOwnPods(own)
	u.updatePolicies(s.Policies)
	for _, name := range slices.SortedFunc(maps.Keys(u.subjects), cluster.Owner.Compare) {
		u.compile(name)
	}
	for name, n := range x.named {
		if n.users == 0 {
			delete(x.named, name)
		}
	}
	for _, d := range directions {
		u.listMembers(d)
	}
	return u.delta
}

// updatePeers updates the members of all sets, and the numbers of named ports.
func (u *update) updatePeers(s *cluster.Snapshot) {
	x := u.Index
	namespaces, changed := x.namespaces, cluster.Changes[cluster.Namespace]{}
	if !cluster.SameList(x.namespaceList, s.Namespaces) || namespaces == nil {
		changed = cluster.Compare(x.namespaceList, s.Namespaces, (*cluster.Namespace).Compare)
		namespaces = make(map[string]*cluster.Namespace, len(s.Namespaces))
		for _, n := range s.Namespaces {
			namespaces[n.Name] = n
		}
	}
	var pods cluster.Changes[cluster.Pod]
	if !cluster.SameList(x.pods, s.Pods) {
		pods = cluster.Compare(x.pods, s.Pods, (*cluster.Pod).Compare)
	}
	// If the labels of a namespace changed, its pods are removed by the former labels, and added by
	// the new ones.
	u.relabelled = map[string]bool{}
	for _, n := range slices.Concat(changed.Removed, changed.Added) {
		u.relabelled[n.Name] = true
	}
	gone, come := pods.Removed, pods.Added
	if len(u.relabelled) > 0 {
		gone, come = slices.Clone(gone), slices.Clone(come)
		for _, list := range []struct {
			all []*cluster.Pod
			to  *[]*cluster.Pod
		}{{x.pods, &gone}, {s.Pods, &come}} {
			done := map[*cluster.Pod]bool{}
			for _, p := range *list.to {
				done[p] = true
			}
			for name := range u.relabelled {
				for _, p := range podsIn(list.all, name) {
					if !done[p] {
						*list.to = append(*list.to, p)
					}
				}
			}
		}
	}
	for _, d := range directions {
		for _, y := range x.sets[d] {
			for _, p := range gone {
				if y.selectsPod(p, x.namespaces[p.Owner.Namespace]) {
					u.countPod(y, p, -1)
				}
			}
			for _, p := range come {
				if y.selectsPod(p, namespaces[p.Owner.Namespace]) {
					u.countPod(y, p, 1)
				}
			}
		}
	}
	former := x.namespaces
	x.pods, x.namespaceList, x.namespaces = s.Pods, s.Namespaces, namespaces
	for key, n := range x.named {
		affected := func(list []*cluster.Pod, namespaces map[string]*cluster.Namespace) bool {
			return slices.ContainsFunc(list,
				func(p *cluster.Pod) bool { return n.isAffectedBy(p, namespaces[p.Owner.Namespace]) })
		}
		if affected(gone, former) || affected(come, namespaces) {
			u.renumber(key, n)
		}
	}
}

// isAffectedBy reports whether the expression selects a pod that has a port of the name and
// protocol.
func (n *namedPort) isAffectedBy(p *cluster.Pod, namespace *cluster.Namespace) bool {
	return slices.ContainsFunc(p.Ports, n.matchesPort) && selects(n.pods, p, namespace)
}

func (n *namedPort) matchesPort(port cluster.PodPort) bool {
	return port.Name == n.port.Name && port.Protocol == n.port.Protocol
}

// renumber reads the numbers of a named port again. If they changed, it compiles the pods with
// rules for that port again.
func (u *update) renumber(key string, n *namedPort) {
	before := n.numbers
	if n.numbers = u.readNumbers(n); slices.Equal(before, n.numbers) {
		return
	}
	for name, s := range u.selected {
		if s.named[key] {
			u.subjects[name] = true
		}
	}
}

// portNumbers returns the numbers of a named port, sorted.
func (x *Index) portNumbers(key string, p *peers) []uint16 {
	n := x.named[key]
	if n == nil {
		n = &namedPort{peers: *p}
		n.numbers = x.readNumbers(n)
		x.named[key] = n
	}
	return n.numbers
}

func (x *Index) readNumbers(n *namedPort) (list []uint16) {
	for _, p := range x.candidates(n.pods) {
		for _, port := range p.Ports {
			if n.matchesPort(port) && selects(n.pods, p, x.namespaces[p.Owner.Namespace]) {
				list = append(list, port.Port)
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// candidates returns the pods of the namespaces that a selector may select.
func (x *Index) candidates(s *cluster.PodSelector) []*cluster.Pod {
	if s.Namespace != "" {
		return podsIn(x.pods, s.Namespace)
	}
	return x.pods
}

// podsIn returns the part of a sorted list with the pods of a namespace.
func podsIn(list []*cluster.Pod, namespace string) []*cluster.Pod {
	first := sort.Search(len(list), func(i int) bool { return list[i].Owner.Namespace >= namespace })
	n := sort.Search(len(list)-first, func(i int) bool { return list[first+i].Owner.Namespace > namespace })
	return list[first : first+n]
}

// updateOwnPods sets the own pods, and requests compilation of those that changed.
func (u *update) updateOwnPods(own []*cluster.Pod) {
	c := cluster.Compare(u.own, own, (*cluster.Pod).Compare)
	u.own = own
	for _, p := range slices.Concat(c.Removed, c.Added) {
		u.subjects[p.Owner] = true
	}
	if len(u.clusterwide) > 0 {
		for name := range u.relabelled {
			for _, p := range podsIn(own, name) {
				u.subjects[p.Owner] = true
			}
		}
	}
}

// updateNodes updates the members of sets of nodes.
func (u *update) updateNodes(nodes []*cluster.Node) {
	if cluster.SameList(u.nodes, nodes) {
		return
	}
	c := cluster.Compare(u.nodes, nodes, (*cluster.Node).Compare)
	u.nodes = nodes
	for _, s := range u.sets[Egress] {
		if s.nodes != nil {
			u.countNodes(s, c.Removed, -1)
			u.countNodes(s, c.Added, 1)
		}
	}
}

// countNodes adds the addresses of those nodes that a set has, or removes them.
func (u *update) countNodes(s *set, nodes []*cluster.Node, by int) {
	for _, n := range nodes {
		if !s.nodes.Matches(n.Egress.Labels) {
			continue
		}
		for _, a := range n.IPs {
			u.countRange(s, netip.PrefixFrom(a, a.BitLen()), by)
		}
	}
}

// updatePolicies sets the Policies, and requests compilation of the own pods that changed ones
// select.
func (u *update) updatePolicies(policies []*cluster.Policy) {
	if cluster.SameList(u.policies, policies) {
		return
	}
	order := (*cluster.Policy).Compare
	c := cluster.Compare(u.policies, policies, order)
	u.policies = policies
	listFor := func(p *cluster.Policy) []*cluster.Policy {
		if p.Tier == cluster.TierNetworkPolicy {
			return u.byNamespace[p.Subject.Namespace]
		}
		return u.clusterwide
	}
	setList := func(p *cluster.Policy, list []*cluster.Policy) {
		if p.Tier == cluster.TierNetworkPolicy {
			u.byNamespace[p.Subject.Namespace] = list
		} else {
			u.clusterwide = list
		}
	}
	for _, p := range c.Removed {
		all := listFor(p)
		if i, found := slices.BinarySearchFunc(all, p, order); found {
			setList(p, slices.Delete(all, i, i+1))
		}
	}
	for _, p := range c.Added {
		all := listFor(p)
		i, _ := slices.BinarySearchFunc(all, p, order)
		setList(p, slices.Insert(all, i, p))
	}
	for _, p := range slices.Concat(c.Removed, c.Added) {
		pods := u.own
		if p.Tier == cluster.TierNetworkPolicy {
			pods = podsIn(u.own, p.Subject.Namespace)
		}
		for _, pod := range pods {
			if pod.Unread || selects(&p.Subject, pod, u.namespaces[pod.Owner.Namespace]) {
				u.subjects[pod.Owner] = true
			}
		}
	}
}

// fill adds all members of a set, or removes them.
func (u *update) fill(s *set, by int) {
	if s.nodes != nil {
		u.countNodes(s, u.nodes, by)
		return
	}
	if s.pods == nil {
		for _, r := range s.blocks {
			u.countRange(s, r, by)
		}
		return
	}
	for _, p := range u.candidates(s.pods) {
		if s.selectsPod(p, u.namespaces[p.Owner.Namespace]) {
			u.countPod(s, p, by)
		}
	}
}

// countPod adds the addresses of a pod to a set, or removes them.
func (u *update) countPod(s *set, p *cluster.Pod, by int) {
	for _, r := range s.addresses(p) {
		u.countRange(s, r, by)
	}
}

// countRange counts one more or one less use of a range by a set: two pods may have one address for
// a time.
func (u *update) countRange(s *set, r netip.Prefix, by int) {
	all, m := u.members[s.direction], member{s.place, r}
	sets := all[m]
	if _, touched := u.before[s.direction][m]; !touched {
		u.before[s.direction][m] = setIDs(sets)
	}
	if sets == nil {
		sets = map[*set]int{}
		all[m] = sets
	}
	if sets[s] += by; sets[s] == 0 {
		delete(sets, s)
	}
	if len(sets) == 0 {
		delete(all, m)
	}
}

func setIDs(sets map[*set]int) (list []uint32) {
	for s := range sets {
		list = append(list, s.id)
	}
	slices.Sort(list)
	return list
}

// listMembers adds the Members that changed to the Delta.
func (u *update) listMembers(d Direction) {
	order := func(a, b member) int {
		return cmp.Or(a.Prefix.Compare(b.Prefix), cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Level, b.Level))
	}
	for _, m := range slices.SortedFunc(maps.Keys(u.before[d]), order) {
		was, now := u.before[d][m], setIDs(u.members[d][m])
		if slices.Equal(was, now) {
			continue
		}
		if len(was) > 0 {
			u.delta.Members.Removed = append(u.delta.Members.Removed, Member{d, m.Place, m.Prefix, was})
		}
		if len(now) > 0 {
			u.delta.Members.Added = append(u.delta.Members.Added, Member{d, m.Place, m.Prefix, now})
		}
	}
}
