package plan

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"hairpin/cluster"
)

// registry is what Services claim, and which one has it. It is kept from one plan to the next: a Service that changes costs a look at
// those that want the same, whether one of them is refused or not.
type registry struct {
	self     *cluster.Node
	vetted   *cluster.Vetted // whose addresses are nodes', which have NodePorts
	pods     []netip.Prefix  // ranges of pods
	services map[cluster.Owner]*claimant
	first    map[claim]claimed   // the one that has it
	others   map[claim][]claimed // the others that want it, in order; nearly always none
	numberPool
	groups *groupPool // nil where Services have no groups

	// During an update: the former holders of touched claims, the claimants that changed, and those whose answer may change.
	before         map[claim]holder
	changed, dirty map[*claimant]bool
}

// claimant is a Service that claims something.
type claimant struct {
	owner    cluster.Owner
	given    []*cluster.Frontend // as the Snapshot has them
	accepted []*cluster.Frontend // what of them is served
	problems []Problem
}

// claim is something that only one Service can have, or, of the kinds that say "all", a list of Services.
type claim struct {
	kind     claimKind
	family   cluster.Family
	protocol cluster.Protocol
	port     uint16
	addr     netip.Addr
}

type claimKind uint8

const (
	claimClusterIP claimKind = iota // addr
	claimNodePort                   // family, protocol, port
	claimExternal                   // addr, protocol, port: of an external IP or of a load balancer
	claimAddress                    // addr: all that are served at one from outside
	claimOutside                    // family, protocol, port: all that have the port at an address from outside
	claimEndpoint                   // addr, protocol, port: all that have it as an endpoint, which is no pod's
	claimStandIn                    // family, protocol, port: of the proxy addresses
)

// claimed is a claim of a Service. The one with the lowest rank has it, of the same rank the oldest.
type claimed struct {
	by   *claimant
	rank uint8
	port uint16 // of the Service, where each of its ports claims for itself
}

// An administrator assigns load balancer addresses; any user who may create Services sets spec.externalIPs.
const (
	rankBalancer uint8 = iota
	rankExternal
)

// compare orders claims: the first one wins.
func (c claimed) compare(d claimed) int {
	return cmp.Or(cmp.Compare(c.rank, d.rank), c.by.given[0].CompareAge(d.by.given[0]), cmp.Compare(c.port, d.port))
}

// holder is the former holder of a claim, and its age: a recreated Service is another one.
type holder struct {
	by  *claimant
	age *cluster.Frontend
}

func (h holder) same(g holder) bool {
	return h.by == g.by && (h.age == g.age || h.age.CompareAge(g.age) == 0)
}

func newRegistry(all []*cluster.Frontend, env *Env, pods []netip.Prefix, had held) *registry {
	r := &registry{
		self: env.Node, vetted: env.Vetted, pods: pods, services: map[cluster.Owner]*claimant{}, numberPool: newNumberPool(),
		first: make(map[claim]claimed, len(all)), others: map[claim][]claimed{},
	}
	if env.Node.Gateway.OpenFlow {
		r.groups = newGroupPool(had.groups)
	}
	r.changed, r.dirty = map[*claimant]bool{}, map[*claimant]bool{} // former holders do not matter
	for _, f := range all {
		if n := had.numbers[servicePortOf(f)]; n != 0 && wantsNumber(f) {
			r.hold(f, n)
		}
	}
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].Owner == all[0].Owner {
			n++
		}
		r.set(all[0].Owner, all[:n:n])
		all = all[n:]
	}
	r.finish()
	return r
}

func (r *registry) begin() {
	r.before, r.changed, r.dirty = map[claim]holder{}, map[*claimant]bool{}, map[*claimant]bool{}
}

// set takes the Frontends of a Service, none for one that is gone.
func (r *registry) set(owner cluster.Owner, list []*cluster.Frontend) {
	c := r.services[owner]
	if c == nil {
		c = &claimant{owner: owner}
		r.services[owner] = c
	}
	r.dirty[c] = true
	if slices.EqualFunc(c.given, list, r.sameClaims) {
		c.given = list
		return
	}
	r.touchAsking(c)
	r.each(c, r.drop)
	for _, f := range c.given {
		delete(r.waiting, requestOf(c, f))
		r.groups.release(f)
	}
	r.forget(c.given, func(f *cluster.Frontend) bool {
		return slices.ContainsFunc(list, func(g *cluster.Frontend) bool { return wantsNumber(g) && servicePortOf(f) == servicePortOf(g) })
	})
	if c.given = list; len(list) == 0 {
		delete(r.services, owner)
		return
	}
	r.changed[c] = true
	for _, f := range list {
		r.add(claim{kind: claimClusterIP, addr: f.ClusterIP}, claimed{by: c})
	}
	r.touchAsking(c)
}

// touchAsking touches those that want from outside what a Service, which is about to change or has changed, has as cluster IPs.
func (r *registry) touchAsking(c *claimant) {
	for _, f := range c.given {
		r.touch(claim{kind: claimAddress, addr: f.ClusterIP})
	}
}

// host is the name of the node that has an address. All that the planned one says it has are its own.
func (r *registry) host(a netip.Addr) string {
	if slices.ContainsFunc(r.self.HostAddresses, func(p netip.Prefix) bool { return p.Addr() == a }) {
		return r.self.Name
	}
	return r.vetted.Hosts.At(a)
}

// setHosts takes the nodes' addresses, of which some are other nodes' than before.
func (r *registry) setHosts(vetted *cluster.Vetted, changed map[netip.Addr]string) {
	r.vetted = vetted
	for a := range changed {
		k := claim{kind: claimAddress, addr: a}
		r.touch(k)
		for _, c := range r.all(k) {
			r.each(c.by, func(k claim, _ claimed) {
				if k.kind == claimOutside {
					r.touch(claim{kind: claimNodePort, family: k.family, protocol: k.protocol, port: k.port})
				}
			})
		}
	}
}

// finish decides again for all that were touched.
func (r *registry) finish() serviceChanges {
	for k, was := range r.before {
		if k.kind == claimClusterIP && !was.same(r.holder(k)) {
			for _, c := range r.all(k) {
				r.changed[c.by] = true
			}
		}
	}
	for c := range r.changed {
		r.claimFurther(c)
	}
	r.groups.allocate()
	r.allocate()
	for k, was := range r.before {
		if !was.same(r.holder(k)) {
			r.touchAbout(k)
		}
	}
	var out serviceChanges
	for _, c := range slices.SortedFunc(maps.Keys(r.dirty), func(a, b *claimant) int { return a.owner.Compare(b.owner) }) {
		list, problems := r.judge(c)
		if slices.Equal(list, c.accepted) && slices.Equal(problems, c.problems) {
			continue
		}
		out.Gone, out.Come = append(out.Gone, c.accepted...), append(out.Come, list...)
		out.solved, out.found = append(out.solved, c.problems...), append(out.found, problems...)
		c.accepted, c.problems = list, problems
	}
	r.before, r.changed, r.dirty = nil, nil, nil
	return out
}

// touchAbout touches all whose answer depends on the holder of a claim.
func (r *registry) touchAbout(k claim) {
	r.touch(k)
	switch k.kind {
	case claimClusterIP:
		r.touch(claim{kind: claimAddress, addr: k.addr})
	case claimNodePort:
		r.touch(claim{kind: claimOutside, family: k.family, protocol: k.protocol, port: k.port})
	case claimExternal:
		r.touch(claim{kind: claimNodePort, family: cluster.FamilyOf(k.addr), protocol: k.protocol, port: k.port})
	case claimEndpoint:
		r.touch(claim{kind: claimExternal, addr: k.addr, protocol: k.protocol, port: k.port})
		r.touch(claim{kind: claimNodePort, family: cluster.FamilyOf(k.addr), protocol: k.protocol, port: k.port})
	}
}

// served returns all that is served, in order, and why the rest is not.
func (r *registry) served() ([]*cluster.Frontend, []Problem) {
	var list []*cluster.Frontend
	var problems []Problem
	for _, c := range slices.SortedFunc(maps.Values(r.services), func(a, b *claimant) int { return a.owner.Compare(b.owner) }) {
		list, problems = append(list, c.accepted...), append(problems, c.problems...)
	}
	return list, problems
}

// claimFurther claims what a Service has besides its cluster IPs, of those Frontends whose cluster IP it has.
func (r *registry) claimFurther(c *claimant) {
	has := func(f *cluster.Frontend) bool { return r.first[claim{kind: claimClusterIP, addr: f.ClusterIP}].by == c }
	lost := slices.ContainsFunc(c.given, func(f *cluster.Frontend) bool { return !has(f) })
	if lost {
		r.each(c, func(k claim, x claimed) {
			if k.kind != claimClusterIP {
				r.drop(k, x)
			}
		})
		r.forget(c.given, has)
		for _, f := range c.given {
			r.groups.release(f)
		}
	}
	for _, f := range c.given {
		if lost && !has(f) {
			continue
		}
		r.claimsOf(c, f, r.add)
		r.groups.request(f)
		if wantsNumber(f) {
			r.requests = append(r.requests, requestOf(c, f))
		}
	}
}

// each names all that a Service may have claimed.
func (r *registry) each(c *claimant, do func(claim, claimed)) {
	for _, f := range c.given {
		do(claim{kind: claimClusterIP, addr: f.ClusterIP}, claimed{by: c})
		r.claimsOf(c, f, do)
		if n := r.Numbers[servicePortOf(f)]; n != 0 && wantsNumber(f) {
			do(proxyPortOf(f, n), claimed{c, rankHeld, f.Port})
		}
	}
}

// claimsOf names what a Frontend claims besides its cluster IP.
func (r *registry) claimsOf(c *claimant, f *cluster.Frontend, do func(claim, claimed)) {
	for _, k := range r.named(f) {
		do(k, claimed{by: c})
	}
	if f.NodePort != 0 {
		do(nodePortOf(f), claimed{by: c})
		do(proxyPortOf(f, f.NodePort), claimed{c, rankNodePort, f.Port})
	}
	if len(f.LoadBalancerIPs)+len(f.ExternalIPs) == 0 {
		return
	}
	do(claim{kind: claimOutside, family: f.Family, protocol: f.Protocol, port: f.Port}, claimed{by: c})
	outside := func(a netip.Addr, rank uint8) {
		do(claim{kind: claimExternal, addr: a, protocol: f.Protocol, port: f.Port}, claimed{by: c, rank: rank})
		do(claim{kind: claimAddress, addr: a}, claimed{by: c})
	}
	for _, a := range f.LoadBalancerIPs {
		outside(a, rankBalancer)
	}
	for _, a := range f.ExternalIPs {
		if !slices.Contains(f.LoadBalancerIPs, a) {
			outside(a, rankExternal)
		}
	}
}

// add claims something; it may be claimed by the same already.
func (r *registry) add(k claim, x claimed) {
	first, taken := r.first[k]
	r.remember(k, first)
	if !taken {
		r.first[k] = x
		r.count(k, 1)
		return
	}
	switch order := x.compare(first); {
	case order == 0:
	case order < 0:
		r.first[k], r.others[k] = x, slices.Insert(r.others[k], 0, first)
		r.requeue(k, first)
	default:
		if i, found := slices.BinarySearchFunc(r.others[k], x, claimed.compare); !found {
			r.others[k] = slices.Insert(r.others[k], i, x)
		}
	}
}

// drop gives a claim up; it may not be claimed.
func (r *registry) drop(k claim, x claimed) {
	first, taken := r.first[k]
	if !taken {
		return
	}
	r.remember(k, first)
	others := r.others[k]
	if first.compare(x) == 0 {
		if len(others) == 0 {
			delete(r.first, k)
			r.count(k, -1)
			return
		}
		r.first[k] = others[0]
		r.requeue(k, others[0])
		others = slices.Delete(others, 0, 1)
	} else if i, found := slices.BinarySearchFunc(others, x, claimed.compare); found {
		others = slices.Delete(others, i, i+1)
	}
	if r.others[k] = others; len(others) == 0 {
		delete(r.others, k)
	}
}

func (r *registry) remember(k claim, first claimed) {
	if r.before == nil {
		return
	}
	if _, known := r.before[k]; !known {
		r.before[k] = holderOf(first)
	}
}

func holderOf(x claimed) holder {
	if x.by == nil {
		return holder{}
	}
	return holder{x.by, x.by.given[0]}
}

func (r *registry) holder(k claim) holder { return holderOf(r.first[k]) }

// all returns all claimants, the holder first.
func (r *registry) all(k claim) []claimed {
	first, taken := r.first[k]
	if !taken {
		return nil
	}
	return append([]claimed{first}, r.others[k]...)
}

func (r *registry) touch(k claim) {
	for _, c := range r.all(k) {
		r.dirty[c.by] = true
	}
}

// sameClaims reports whether two states of a Frontend claim the same, as old as each other.
func (r *registry) sameClaims(a, b *cluster.Frontend) bool {
	return a == b || a.Owner == b.Owner && a.UID == b.UID && a.Created.Equal(b.Created) && a.Family == b.Family &&
		a.ClusterIP == b.ClusterIP && a.Protocol == b.Protocol && a.Port == b.Port && a.NodePort == b.NodePort && a.PortName == b.PortName &&
		slices.Equal(a.ExternalIPs, b.ExternalIPs) && slices.Equal(a.LoadBalancerIPs, b.LoadBalancerIPs) && wantsNumber(a) == wantsNumber(b) && slices.Equal(r.named(a), r.named(b))
}
