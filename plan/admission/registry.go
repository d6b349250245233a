package admission

import (
	"maps"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/cluster/trust"
)

// Registry holds the bids of all Services. It is kept from one plan to the next.
type Registry struct {
	facts     Facts
	services  map[cluster.Owner]*service
	holders   map[key]bid   // the winning bids
	runnersUp map[key][]bid // the other bids for a key, in order; nearly always none
	portPool
	slots *slotPool

	// During an update: the former holders of keys that were bid for, the Services that changed,
	// and those whose result may change.
	before         map[key]holder
	changed, dirty map[*service]bool
}

// Facts is what a Registry reads besides Services.
type Facts struct {
	Node      *cluster.Node // the planned node
	Vetted    *trust.Vetted // the addresses of all nodes, which have node ports
	PodRanges []netip.Prefix
}

// Allocations are proxy ports and group slots that Services keep from one Registry to the next.
type Allocations struct {
	Ports ProxyPorts
	slots *slotPool
}

// Changes are what an Update changed.
type Changes struct {
	cluster.Changes[Frontend] // all Frontends of each changed Service
	Solved, Found             []cluster.Problem
}

// service is a Service that bids for something.
type service struct {
	owner     cluster.Owner
	frontends []*cluster.Frontend // as in the Snapshot
	admitted  []*Frontend         // what of them is served
	problems  []cluster.Problem
}

// New returns a Registry of all Services. Frontends are sorted by cluster.Frontend.Compare.
func New(facts Facts, frontends []*cluster.Frontend, keep Allocations) *Registry {
	r := &Registry{
		facts: facts, services: map[cluster.Owner]*service{}, portPool: newPortPool(), slots: newSlotPool(keep.slots),
		holders: make(map[key]bid, len(frontends)), runnersUp: map[key][]bid{},
	}
	r.changed, r.dirty = map[*service]bool{}, map[*service]bool{} // r.before stays nil: former holders do not matter
	for _, f := range frontends {
		if n := keep.Ports[servicePortOf(f)]; n != 0 && NeedsProxyPort(f) {
			r.setPort(f, n)
		}
	}
	for len(frontends) > 0 {
		list := cluster.FrontendsOf(frontends, frontends[0].Owner)
		r.set(frontends[0].Owner, list)
		frontends = frontends[len(list):]
	}
	r.finish()
	return r
}

// Update replaces the changed Services by their state in frontends. moved has the addresses that
// belong to another node now.
func (r *Registry) Update(
	vetted *trust.Vetted, moved map[netip.Addr]string, changed []cluster.Owner, frontends []*cluster.Frontend,
) Changes {
	r.before, r.changed, r.dirty = map[key]holder{}, map[*service]bool{}, map[*service]bool{}
	r.setNodes(vetted, moved)
	for _, o := range changed {
		r.set(o, cluster.FrontendsOf(frontends, o))
	}
	return r.finish()
}

// Allocations returns what the Services have now. It changes with the next Update.
func (r *Registry) Allocations() Allocations { return Allocations{r.ports, r.slots} }

// Admitted returns all Frontends that are served, in order, and all problems.
func (r *Registry) Admitted() ([]*Frontend, []cluster.Problem) {
	var list []*Frontend
	var problems []cluster.Problem
	for _, s := range slices.SortedFunc(maps.Values(r.services), compareOwners) {
		list, problems = append(list, s.admitted...), append(problems, s.problems...)
	}
	return list, problems
}

func compareOwners(a, b *service) int { return a.owner.Compare(b.owner) }

// set replaces the Frontends of a Service; it has none when it is gone.
func (r *Registry) set(owner cluster.Owner, list []*cluster.Frontend) {
	s := r.services[owner]
	if s == nil {
		s = &service{owner: owner}
		r.services[owner] = s
	}
	r.dirty[s] = true
	if slices.EqualFunc(s.frontends, list, r.sameBids) {
		s.frontends = list
		return
	}
	r.requeueExternal(s)
	r.eachBid(s, r.withdrawBid)
	for _, f := range s.frontends {
		delete(r.waiting, requestOf(s, f))
		r.slots.release(f)
	}
	r.releasePorts(s.frontends, func(f *cluster.Frontend) bool {
		return slices.ContainsFunc(list, func(g *cluster.Frontend) bool {
			return NeedsProxyPort(g) && servicePortOf(f) == servicePortOf(g)
		})
	})
	if s.frontends = list; len(list) == 0 {
		delete(r.services, owner)
		return
	}
	r.changed[s] = true
	for _, f := range list {
		r.placeBid(clusterIPKey(f.ClusterIP), bid{service: s})
	}
	r.requeueExternal(s)
}

// requeueExternal requeues the Services whose external addresses are cluster IPs of s, which is
// about to change or has changed.
func (r *Registry) requeueExternal(s *service) {
	for _, f := range s.frontends {
		r.requeue(addressKey(f.ClusterIP))
	}
}

// nodeWith returns the name of the node that has an address, or "". The planned node has every
// address that it reports.
func (r *Registry) nodeWith(a netip.Addr) string {
	if slices.ContainsFunc(r.facts.Node.HostAddresses, func(p netip.Prefix) bool { return p.Addr() == a }) {
		return r.facts.Node.Name
	}
	return r.facts.Vetted.Hosts.At(a)
}

// setNodes replaces the nodes' addresses; those in moved belong to another node now.
func (r *Registry) setNodes(vetted *trust.Vetted, moved map[netip.Addr]string) {
	r.facts.Vetted = vetted
	for a := range moved {
		k := addressKey(a)
		r.requeue(k)
		for _, b := range r.bids(k) {
			r.eachBid(b.service, func(k key, _ bid) {
				if k.kind == keyExternalPort {
					r.requeue(portKey(keyNodePort, k.family, k.protocol, k.port))
				}
			})
		}
	}
}

// finish ends an update: it places the bids that depend on cluster IPs, allocates slots and ports,
// and decides about all requeued Services.
func (r *Registry) finish() Changes {
	for k, was := range r.before {
		if k.kind == keyClusterIP && !was.same(r.holder(k)) {
			for _, b := range r.bids(k) { // the holder bids for the rest now, the others no more
				r.changed[b.service] = true
			}
		}
	}
	for s := range r.changed {
		r.placeOtherBids(s)
	}
	r.slots.allocate()
	r.allocatePorts()
	for k, was := range r.before {
		if !was.same(r.holder(k)) {
			r.requeueDependents(k)
		}
	}
	return r.decide()
}

// decide decides about all requeued Services.
func (r *Registry) decide() Changes {
	var out Changes
	for _, s := range slices.SortedFunc(maps.Keys(r.dirty), compareOwners) {
		list, problems := r.admit(s)
		if slices.EqualFunc(list, s.admitted, (*Frontend).same) && slices.Equal(problems, s.problems) {
			continue
		}
		out.Removed, out.Added = append(out.Removed, s.admitted...), append(out.Added, list...)
		out.Solved, out.Found = append(out.Solved, s.problems...), append(out.Found, problems...)
		s.admitted, s.problems = list, problems
	}
	r.before, r.changed, r.dirty = nil, nil, nil
	return out
}

// requeueDependents requeues the Services whose result depends on the holder of a key.
func (r *Registry) requeueDependents(k key) {
	r.requeue(k)
	switch k.kind {
	case keyClusterIP:
		r.requeue(addressKey(k.addr))
	case keyNodePort:
		r.requeue(portKey(keyExternalPort, k.family, k.protocol, k.port))
	case keyExternal, keyEndpoint:
		r.requeue(externalKey(k.addr, k.protocol, k.port))
		r.requeue(portKey(keyNodePort, cluster.FamilyOf(k.addr), k.protocol, k.port))
	}
}

// placeOtherBids bids for what a Service has besides its cluster IPs, for those of its Frontends
// that have a cluster IP which the Service holds.
func (r *Registry) placeOtherBids(s *service) {
	holds := func(f *cluster.Frontend) bool { return r.holders[clusterIPKey(f.ClusterIP)].service == s }
	lost := slices.ContainsFunc(s.frontends, func(f *cluster.Frontend) bool { return !holds(f) })
	if lost {
		r.eachBid(s, func(k key, b bid) {
			if k.kind != keyClusterIP {
				r.withdrawBid(k, b)
			}
		})
		r.releasePorts(s.frontends, holds)
		for _, f := range s.frontends {
			r.slots.release(f)
		}
	}
	for _, f := range s.frontends {
		if lost && !holds(f) {
			continue
		}
		r.eachOtherBid(s, f, r.placeBid)
		r.slots.request(f)
		if NeedsProxyPort(f) {
			r.requests = append(r.requests, requestOf(s, f))
		}
	}
}

// eachBid calls do for every bid that a Service may have placed.
func (r *Registry) eachBid(s *service, do func(key, bid)) {
	for _, f := range s.frontends {
		do(clusterIPKey(f.ClusterIP), bid{service: s})
		r.eachOtherBid(s, f, do)
		if n := r.ports[servicePortOf(f)]; n != 0 && NeedsProxyPort(f) {
			do(proxyPortKey(f, n), bid{s, rankAllocated, f.Port})
		}
	}
}

// eachOtherBid calls do for what a Frontend bids for besides its cluster IP.
func (r *Registry) eachOtherBid(s *service, f *cluster.Frontend, do func(key, bid)) {
	for _, k := range r.endpointKeys(f) {
		do(k, bid{service: s})
	}
	if f.NodePort != 0 {
		do(nodePortKey(f), bid{service: s})
		do(proxyPortKey(f, f.NodePort), bid{s, rankNodePort, f.Port})
	}
	if len(f.LoadBalancerIPs)+len(f.ExternalIPs) == 0 {
		return
	}
	do(externalPortKey(f, f.Port), bid{service: s})
	external := func(a netip.Addr, rank uint8) {
		do(externalKey(a, f.Protocol, f.Port), bid{service: s, rank: rank})
		do(addressKey(a), bid{service: s})
	}
	for _, a := range f.LoadBalancerIPs {
		external(a, rankLoadBalancer)
	}
	for _, a := range f.ExternalIPs {
		if !slices.Contains(f.LoadBalancerIPs, a) {
			external(a, rankExternalIP)
		}
	}
}

// placeBid places a bid, which may have been placed already.
func (r *Registry) placeBid(k key, b bid) {
	winner, taken := r.holders[k]
	r.recordFormer(k, winner)
	if !taken {
		r.holders[k] = b
		r.countUsed(k, 1)
		return
	}
	switch order := b.compare(winner); {
	case order == 0:
	case order < 0:
		r.holders[k], r.runnersUp[k] = b, slices.Insert(r.runnersUp[k], 0, winner)
		r.reallocate(k, winner)
	default:
		if i, found := slices.BinarySearchFunc(r.runnersUp[k], b, bid.compare); !found {
			r.runnersUp[k] = slices.Insert(r.runnersUp[k], i, b)
		}
	}
}

// withdrawBid withdraws a bid, which may not have been placed.
func (r *Registry) withdrawBid(k key, b bid) {
	winner, taken := r.holders[k]
	if !taken {
		return
	}
	r.recordFormer(k, winner)
	others := r.runnersUp[k]
	if winner.compare(b) == 0 {
		if len(others) == 0 {
			delete(r.holders, k)
			r.countUsed(k, -1)
			return
		}
		r.holders[k] = others[0]
		r.reallocate(k, others[0])
		others = slices.Delete(others, 0, 1)
	} else if i, found := slices.BinarySearchFunc(others, b, bid.compare); found {
		others = slices.Delete(others, i, i+1)
	}
	if r.runnersUp[k] = others; len(others) == 0 {
		delete(r.runnersUp, k)
	}
}

// recordFormer notes the holder of a key before the update.
func (r *Registry) recordFormer(k key, first bid) {
	if r.before == nil {
		return
	}
	if _, known := r.before[k]; !known {
		r.before[k] = holderOf(first)
	}
}

func holderOf(b bid) holder {
	if b.service == nil {
		return holder{}
	}
	return holder{b.service, b.service.frontends[0]}
}

// holder returns the holder of a key now.
func (r *Registry) holder(k key) holder { return holderOf(r.holders[k]) }

// bids returns all bids for a key, the holder's first.
func (r *Registry) bids(k key) []bid {
	first, taken := r.holders[k]
	if !taken {
		return nil
	}
	return append([]bid{first}, r.runnersUp[k]...)
}

// requeue makes finish decide again about all Services that bid for a key.
func (r *Registry) requeue(k key) {
	for _, b := range r.bids(k) {
		r.dirty[b.service] = true
	}
}

// sameBids reports whether two states of a Frontend bid for the same keys and are as old as each
// other.
func (r *Registry) sameBids(a, b *cluster.Frontend) bool {
	return a == b || a.Owner == b.Owner && a.UID == b.UID && a.Created.Equal(b.Created) &&
		a.Family == b.Family && a.ClusterIP == b.ClusterIP && a.Protocol == b.Protocol && a.Port == b.Port &&
		a.NodePort == b.NodePort && a.PortName == b.PortName && slices.Equal(a.ExternalIPs, b.ExternalIPs) &&
		slices.Equal(a.LoadBalancerIPs, b.LoadBalancerIPs) && NeedsProxyPort(a) == NeedsProxyPort(b) &&
		slices.Equal(r.endpointKeys(a), r.endpointKeys(b))
}
