package assign

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/cluster/trust"
)

// Allocation is what LoadBalancers decided for one Service or EgressIP.
type Allocation struct {
	Service   *cluster.LoadBalancer
	Addresses []netip.Addr          // at most one per family, or those of nodes, in the order of the Service's families
	Recorded  []cluster.IngressPort // of addresses of nodes, sorted
	Refused   []Refusal             // an address that it does not get, or the reason why it gets none
}

// PoolUse is which addresses of a pool Services and EgressIPs have.
type PoolUse struct {
	Pool      *cluster.Pool
	Addresses []UsedAddress // sorted
	Available int64         // addresses that a Service can still get; at most math.MaxInt64
	Exhausted []cluster.Family
}

// UsedAddress is an address and the Services that have it, the oldest first, or an EgressIP.
type UsedAddress struct {
	Address  netip.Addr
	Services []cluster.Owner
	Node     string // has it as its own address; empty: an address of the pool's ranges
}

// Reasons of Refusals of load balancer addresses.
const (
	ReasonNoPool       = "NoLoadBalancerPool"  // no pool selects the Service
	ReasonExhausted    = "AddressesExhausted"  // no pool that selects it has a free address
	ReasonNotAvailable = "AddressNotAvailable" // the requested address
	ReasonReleased     = "AddressReleased"     // an address that it had
	ReasonPort         = "PortNotAvailable"    // a port at addresses of nodes
	ReasonPortUnknown  = "PortNotReported"     // the same, until the agent has looked at the host's sockets
)

// LoadBalancers decides which Service has which addresses of LoadBalancerPools, in the order of
// s.LoadBalancers, and how the pools are used, in the order of s.Pools. It is a function of the
// Snapshot. Earlier decisions are in the Snapshot as Ingress, and stay while they are valid:
//   - A Service gets one address per family, the requested one, or the lowest free one of the first
//     pool that selects it, by name. Requests come first.
//   - A Service that has an address keeps it. If two Services have or request the same address, the
//     older one gets it.
//   - An EgressIP gets one address of each family that its pool has.
//   - Services of one namespace with the same sharing key share an address if their ports differ
//     and none has externalTrafficPolicy Local.
//   - A pool of node addresses gives a Service the addresses of all its nodes, and at each the ports
//     that no other Service has there.
func LoadBalancers(s *cluster.Snapshot) ([]Allocation, []PoolUse) {
	a := &allocator{reserved: trust.ReservedIn(s), pools: s.Pools, namespaces: map[string]map[string]string{},
		has: map[netip.Addr][]*cluster.LoadBalancer{}, next: map[cursorKey]netip.Addr{},
		given: map[*cluster.LoadBalancer]*Allocation{}}
	a.nodes = newNodeAllocator(s, a.reserved)
	for _, n := range s.Namespaces {
		a.namespaces[n.Name] = n.Labels
	}
	out := make([]Allocation, len(s.LoadBalancers))
	for i, l := range s.LoadBalancers {
		out[i].Service = l
		a.given[l] = &out[i]
	}
	a.unmanaged(s)
	byAge := slices.SortedFunc(slices.Values(s.LoadBalancers), (*cluster.LoadBalancer).CompareAge)
	for _, l := range byAge {
		a.keep(l)
		a.keepPorts(l)
	}
	for _, l := range byAge {
		a.placeRequested(l)
	}
	for _, l := range byAge {
		a.placeUnrequested(l)
	}
	for i := range out {
		out[i].sort()
	}
	return out, a.poolUses(byAge)
}

// allocator is the working state of LoadBalancers.
type allocator struct {
	reserved   *trust.Reserved
	pools      []*cluster.Pool
	namespaces map[string]map[string]string // labels
	has        map[netip.Addr][]*cluster.LoadBalancer
	given      map[*cluster.LoadBalancer]*Allocation
	next       map[cursorKey]netip.Addr // the lowest address that may be free: none gets free in one call
	nodes      nodeAllocator
}

type cursorKey struct {
	pool, index int
}

// unmanaged marks addresses that other Services have in their status, as those of another class.
func (a *allocator) unmanaged(s *cluster.Snapshot) {
	ours := map[cluster.Owner]bool{}
	for _, l := range s.LoadBalancers {
		ours[l.Owner] = true
	}
	for _, f := range s.Frontends {
		if ours[f.Owner] {
			continue
		}
		for _, x := range f.LoadBalancerIPs {
			a.has[x] = append(a.has[x], &cluster.LoadBalancer{Owner: f.Owner,
				Ports: []cluster.LoadBalancerPort{{Protocol: f.Protocol, Port: f.Port}}})
		}
	}
}

// keep keeps the addresses in a Service's status that it may have.
func (a *allocator) keep(l *cluster.LoadBalancer) {
	for _, x := range l.Ingress {
		// An address with records of ports is one of a node, unless it is now one of a pool's
		// ranges and no node has it. keepPorts keeps those of nodes.
		ofNode := cluster.HasRecords(l.Recorded, x) && (a.poolWith(x) < 0 || a.reserved.NodeWith(x) != "")
		if ofNode || a.hasFamily(l, cluster.FamilyOf(x)) {
			continue
		}
		if why := a.rejects(l, x, true); why != "" {
			a.refuse(l, x, ReasonReleased, "%s", why)
			continue
		}
		a.allocate(l, x)
	}
}

// rejects returns why a Service cannot have an address; empty if it can. Had reports that it is in
// its status.
func (a *allocator) rejects(l *cluster.LoadBalancer, x netip.Addr, had bool) string {
	family := cluster.FamilyOf(x)
	if !slices.Contains(l.Families, family) {
		return fmt.Sprintf("%s is an %s address, and the Service has no cluster IP of this family", x, family)
	}
	if want := requested(l, family); want.IsValid() && want != x {
		return fmt.Sprintf("%s is not the requested address, %s", x, want)
	}
	i := a.poolWith(x)
	switch {
	case i < 0:
		return fmt.Sprintf("%s is in no LoadBalancerPool", x)
	case !a.selects(a.pools[i], l):
		return fmt.Sprintf("%s is an address of %s, which does not select the %s", x, a.pools[i].Owner, l.Owner.Kind)
	}
	if why := a.reserved.For(x, l.Created, had); why != "" {
		return why
	}
	for _, other := range a.has[x] {
		if why := cannotShare(l, other, x); why != "" {
			return why
		}
	}
	return ""
}

// poolWith returns the index of the pool with an address in its ranges, or -1.
func (a *allocator) poolWith(x netip.Addr) int {
	return slices.IndexFunc(a.pools, func(p *cluster.Pool) bool { return p.Has(x) })
}

// cannotShare returns why a Service cannot have an address together with another Service.
func cannotShare(l, other *cluster.LoadBalancer, x netip.Addr) string {
	switch {
	case l.Sharing == "" || l.Sharing != other.Sharing || l.Owner.Namespace != other.Owner.Namespace:
		return fmt.Sprintf("%s is an address of %s", x, other.Owner)
	case l.Local || other.Local:
		return fmt.Sprintf("%s is an address of %s, and externalTrafficPolicy Local excludes sharing", x, other.Owner)
	}
	for _, p := range l.Ports {
		if slices.Contains(other.Ports, p) {
			return fmt.Sprintf("%s port %d of %s is one of %s", p.Protocol, p.Port, x, other.Owner)
		}
	}
	return ""
}

func requested(l *cluster.LoadBalancer, f cluster.Family) netip.Addr {
	for _, x := range l.Requested {
		if cluster.FamilyOf(x) == f {
			return x
		}
	}
	return netip.Addr{}
}

func (a *allocator) selects(p *cluster.Pool, l *cluster.LoadBalancer) bool {
	labels, known := a.namespaces[l.Owner.Namespace]
	return (known || l.Pool != "") && p.Selects(l, labels)
}

func (a *allocator) hasFamily(l *cluster.LoadBalancer, f cluster.Family) bool {
	return slices.ContainsFunc(a.given[l].Addresses, func(x netip.Addr) bool { return cluster.FamilyOf(x) == f })
}

func (a *allocator) allocate(l *cluster.LoadBalancer, x netip.Addr) {
	a.has[x] = append(a.has[x], l)
	a.given[l].Addresses = append(a.given[l].Addresses, x)
}

func (a *allocator) refuse(l *cluster.LoadBalancer, x netip.Addr, reason, format string, args ...any) {
	r := Refusal{x, reason, fmt.Sprintf(format, args...)}
	if list := &a.given[l].Refused; !slices.Contains(*list, r) {
		*list = append(*list, r)
	}
}

// placeRequested gives a Service the addresses that it requests, before other Services get one.
func (a *allocator) placeRequested(l *cluster.LoadBalancer) {
	for _, x := range l.Requested {
		if a.hasFamily(l, cluster.FamilyOf(x)) {
			continue
		}
		if why := a.rejects(l, x, false); why != "" {
			a.refuse(l, x, ReasonNotAvailable, "%s", why)
		} else {
			a.allocate(l, x)
		}
	}
}

// placeUnrequested gives a Service the addresses of families for which it requests none.
func (a *allocator) placeUnrequested(l *cluster.LoadBalancer) {
	for _, f := range l.Families {
		if a.hasFamily(l, f) || requested(l, f).IsValid() || a.keepNodeAddresses(l, f) {
			continue
		}
		if x := a.shareable(l, f); x.IsValid() {
			a.allocate(l, x)
			continue
		}
		a.allocateFromPools(l, f)
	}
}

// shareable returns the lowest address that the Service can share.
func (a *allocator) shareable(l *cluster.LoadBalancer, f cluster.Family) (lowest netip.Addr) {
	if l.Sharing == "" {
		return lowest
	}
	for x := range a.has {
		if cluster.FamilyOf(x) == f && a.rejects(l, x, false) == "" && (!lowest.IsValid() || x.Less(lowest)) {
			lowest = x
		}
	}
	return lowest
}

// allocateFromPools gives a Service an address of the first pool that has one: the lowest free one,
// or those of nodes. Otherwise it records why there is none.
func (a *allocator) allocateFromPools(l *cluster.LoadBalancer, f cluster.Family) {
	selected := false
	var onNodes []Refusal
	for i, p := range a.pools {
		if !a.selects(p, l) {
			continue
		}
		if p.NodeAddresses {
			refused, ok := a.allocateOnNodes(p, l, f)
			if ok {
				return
			}
			onNodes = append(onNodes, refused...)
			if slices.ContainsFunc(refused, func(r Refusal) bool { return r.Reason == ReasonPortUnknown }) {
				break // it would keep an address of another pool
			}
		}
		for j, r := range p.Ranges {
			if cluster.FamilyOf(r.First) != f {
				continue
			}
			selected = true
			if x := a.free(cursorKey{i, j}, r, l); x.IsValid() {
				a.allocate(l, x)
				return
			}
		}
	}
	// Whether the Service has no address after all families were tried.
	none := len(a.given[l].Addresses) == 0 && f == l.Families[len(l.Families)-1]
	for _, r := range onNodes {
		a.refuse(l, r.Address, r.Reason, "%s", r.Message)
	}
	switch {
	case len(onNodes) > 0:
	case l.Pool != "" && selected:
		a.refuse(l, netip.Addr{}, ReasonExhausted, "LoadBalancerPool %s has no free %s address", l.Pool, f)
	case l.Pool != "" && none && !slices.ContainsFunc(a.given[l].Refused, func(r Refusal) bool {
		return r.Reason == ReasonExhausted
	}):
		a.refuse(l, netip.Addr{}, ReasonNoPool, "there is no LoadBalancerPool %s with addresses", l.Pool)
	case l.Pool != "": // it has an address of the other family, or the reason why not
	case selected:
		a.refuse(l, netip.Addr{}, ReasonExhausted, "no LoadBalancerPool that selects the Service has a free %s address",
			f)
	case !l.Prefers || none:
		a.refuse(l, netip.Addr{}, ReasonNoPool, "no LoadBalancerPool with %s addresses selects the Service", f)
	}
}

// free returns the lowest free address of a range. Those before it are in use, or reserved for
// every Service.
func (a *allocator) free(k cursorKey, r cluster.AddressRange, l *cluster.LoadBalancer) netip.Addr {
	x, begun := a.next[k]
	if !begun {
		x = r.First
	}
	for x.IsValid() && r.Contains(x) && (len(a.has[x]) > 0 || a.reserved.For(x, l.Created, false) != "") {
		x = x.Next()
	}
	a.next[k] = x
	if !x.IsValid() || !r.Contains(x) {
		return netip.Addr{}
	}
	return x
}

func (x *Allocation) sort() {
	slices.SortStableFunc(x.Addresses, func(p, q netip.Addr) int {
		return slices.Index(x.Service.Families, cluster.FamilyOf(p)) -
			slices.Index(x.Service.Families, cluster.FamilyOf(q))
	})
	slices.SortFunc(x.Recorded, cluster.IngressPort.Compare)
}

// poolUses returns how the pools are used.
func (a *allocator) poolUses(byAge []*cluster.LoadBalancer) []PoolUse {
	out := make([]PoolUse, len(a.pools))
	for i, p := range a.pools {
		out[i].Pool = p
		if p.NodeAddresses {
			out[i].Available = a.availableNodes(p)
			continue
		}
		free := map[cluster.Family]int64{}
		for _, r := range p.Ranges {
			f := cluster.FamilyOf(r.First)
			n := size(r) - a.reserved.In(r)
			for x, by := range a.has {
				if r.Contains(x) && len(by) > 0 {
					n--
				}
			}
			free[f] = add(free[f], max(n, 0))
		}
		for f, n := range free {
			out[i].Available = add(out[i].Available, n)
			if n == 0 {
				out[i].Exhausted = append(out[i].Exhausted, f)
			}
		}
		slices.Sort(out[i].Exhausted)
	}
	type place struct {
		pool    int
		address netip.Addr
	}
	at := map[place]*UsedAddress{}
	for _, l := range byAge {
		for _, x := range a.given[l].Addresses {
			k, node := place{a.poolWith(x), x}, ""
			if p := a.nodes.from[serviceFamily{l, cluster.FamilyOf(x)}]; p != nil {
				k.pool, node = slices.Index(a.pools, p), a.reserved.NodeWith(x)
			}
			if at[k] == nil {
				at[k] = &UsedAddress{Address: x, Node: node}
			}
			at[k].Services = append(at[k].Services, l.Owner)
		}
	}
	for k, u := range at {
		out[k.pool].Addresses = append(out[k.pool].Addresses, *u)
	}
	for i := range out {
		slices.SortFunc(out[i].Addresses, func(p, q UsedAddress) int { return p.Address.Compare(q.Address) })
	}
	return out
}

// size returns the number of addresses of a range, at most math.MaxInt64.
func size(r cluster.AddressRange) int64 {
	first, last := r.First.As16(), r.Last.As16()
	var n uint64
	for i := range first {
		if n > math.MaxInt64>>8 {
			return math.MaxInt64
		}
		// The difference of the bytes up to i. It is not negative, because last is not before
		// first.
		n = n<<8 + uint64(last[i]) - uint64(first[i])
		if i < 8 && first[i] != last[i] {
			return math.MaxInt64
		}
	}
	return add(int64(n), 1)
}

func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
