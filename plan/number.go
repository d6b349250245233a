package plan

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/nft"
)

// A Frontend with a policy Local and an address from outside has a port at the proxy addresses: the NodePort, or without one
// a number. A hash of its name gives the order in which it tries all numbers, and it gets the first free one; of several that
// look for one, the oldest is first. Nothing that a tenant can choose takes a number away from another Service: a name that
// tries the same numbers costs the younger Service some more tries. A NodePort outside the usual range takes its number; the
// former holder gets another one.
//
// A Frontend keeps its number while others come and go: the host's packets would reach another Service before Open vSwitch
// has the change. So a Planner remembers numbers. The Planner of an agent that starts begins with those that the node has.

// The numbers are all ports but placeholderPort and those that usually are NodePorts, and a few at the end: their count is a prime, so
// that any step leads to all of them.
const (
	numbers       = 62761
	firstNodePort = 30000
	lastNodePort  = 32767
)

// maxNumbers is how many numbers of one family and protocol a Service may have, so that one Service cannot take all.
const maxNumbers = 4000

// Ranks of bids for a number: NodePorts cannot choose, all others keep what they have.
const (
	rankNodePort uint8 = iota
	rankHeld
)

// Numbers are what ports of Services have.
type Numbers map[servicePort]uint16

// servicePort is a port of a Service, in one family.
type servicePort struct {
	owner    cluster.Owner
	family   cluster.Family
	protocol cluster.Protocol
	port     uint16
}

func servicePortOf(f *cluster.Frontend) servicePort {
	return servicePort{f.Owner, f.Family, f.Protocol, f.Port}
}

// NumbersIn returns those that a node has: where its host leads clients of external addresses. A Service whose name is too long for nft's
// comments is not known by it.
func NumbersIn(tables nft.State, c *cluster.Config) Numbers {
	standIn := map[netip.Addr]bool{}
	for _, subnet := range c.Gateway.MasqueradeSubnets {
		for _, place := range []int{claims.MasqETPLocal, claims.MasqCluster} {
			if a, err := cluster.Nth(subnet, place); err == nil {
				standIn[a] = true
			}
		}
	}
	had := Numbers{}
	if tables[nft.Inet] == nil {
		return had
	}
	for _, of := range servicesOf {
		for _, m := range []*nft.Map{of.externals, of.ownIPs, of.spreadIPs, of.stickyIPs} {
			there := tables[nft.Inet].Maps[m.Name]
			if there == nil {
				continue
			}
			for e, to := range there.Elements.All() {
				if standIn[to.Addr.Addr()] && to.Owner != (cluster.Owner{}) {
					had[servicePort{to.Owner, cluster.FamilyOf(e.Addr), e.Protocol, e.Port}] = to.Addr.Port()
				}
			}
		}
	}
	return had
}

// numberRange is what numbers are counted by: each family and protocol has all of them.
type numberRange struct {
	family   cluster.Family
	protocol cluster.Protocol
}

// numberPool allocates numbers.
type numberPool struct {
	Numbers
	used     map[numberRange]int                   // numbers that some Service or NodePort has
	ofOwner  map[cluster.Owner]map[numberRange]int // numbers of one Service
	waiting  map[request]bool                      // Frontends without a number
	requests []request                             // during an update
	freed    bool                                  // during an update: some number is free again
}

func newNumberPool() numberPool {
	return numberPool{Numbers: Numbers{}, used: map[numberRange]int{}, ofOwner: map[cluster.Owner]map[numberRange]int{}, waiting: map[request]bool{}}
}

// hold notes the number of a Frontend, 0 for none.
func (p *numberPool) hold(f *cluster.Frontend, n uint16) {
	k, r := servicePortOf(f), numberRange{f.Family, f.Protocol}
	had := p.Numbers[k]
	if had == n {
		return
	}
	of := p.ofOwner[f.Owner]
	if of == nil {
		of = map[numberRange]int{}
		p.ofOwner[f.Owner] = of
	}
	if had != 0 {
		delete(p.Numbers, k)
		of[r]--
		p.freed = true
	}
	if n != 0 {
		p.Numbers[k] = n
		of[r]++
	} else if of[r] == 0 {
		if delete(of, r); len(of) == 0 {
			delete(p.ofOwner, f.Owner)
		}
	}
}

// count notes that a port at the proxy addresses is used, or not any more.
func (p *numberPool) count(k claim, by int) {
	if k.kind == claimStandIn && isNumber(k.port) {
		p.used[numberRange{k.family, k.protocol}] += by
		p.freed = p.freed || by < 0
	}
}

// isNumber reports whether a port is one of the numbers.
func isNumber(port uint16) bool {
	return port > placeholderPort && (port < firstNodePort || port > lastNodePort) &&
		int(port) <= placeholderPort+numbers+lastNodePort-firstNodePort+1
}

// exhausted reports why a Service gets no further number; empty if it may.
func (p *numberPool) exhausted(owner cluster.Owner, r numberRange) string {
	switch {
	case p.ofOwner[owner][r] >= maxNumbers:
		return fmt.Sprintf("more than %d %s ports of the Service have a policy Local and no node port", maxNumbers, r.protocol)
	case p.used[r] >= numbers:
		return fmt.Sprintf("all %d %s ports of the proxy addresses are in use", numbers, r.protocol)
	}
	return ""
}

// request is a Frontend that needs a number: a port of a Service.
type request struct {
	by       *claimant
	family   cluster.Family
	protocol cluster.Protocol
	port     uint16
}

func requestOf(c *claimant, f *cluster.Frontend) request {
	return request{c, f.Family, f.Protocol, f.Port}
}

// compare orders requests by age.
func (q request) compare(x request) int {
	return cmp.Or(q.by.given[0].CompareAge(x.by.given[0]), cmp.Compare(q.family, x.family), cmp.Compare(q.protocol, x.protocol),
		cmp.Compare(q.port, x.port))
}

// frontend returns the Frontend of a request as it is now, or nil when it needs no number any more. Of two with one name, the
// second is not served. The names are those of the Service that an earlier one has.
func (r *registry) frontend(q request, names marks) *cluster.Frontend {
	key := func(f *cluster.Frontend, q request) int {
		return cmp.Or(cmp.Compare(f.Family, q.family), cmp.Compare(f.Protocol, q.protocol), cmp.Compare(f.Port, q.port))
	}
	i, _ := slices.BinarySearchFunc(q.by.given, q, key)
	for ; i < len(q.by.given) && key(q.by.given[i], q) == 0; i++ {
		f := q.by.given[i]
		if wantsNumber(f) && !names.has(i) && r.first[claim{kind: claimClusterIP, addr: f.ClusterIP}].by == q.by {
			return f
		}
	}
	return nil
}

// wantsNumber reports whether a Frontend needs a number when it has no NodePort. It keeps it when it has one.
func wantsNumber(f *cluster.Frontend) bool {
	return (f.InternalLocal || f.ExternalLocal) && len(f.ExternalIPs)+len(f.LoadBalancerIPs) > 0
}

func proxyPortOf(f *cluster.Frontend, port uint16) claim {
	return claim{kind: claimStandIn, family: f.Family, protocol: f.Protocol, port: port}
}

// numbered returns the number that a Frontend tries after i others.
func numbered(f *cluster.Frontend, i int) uint16 { return numbersOf(f).at(i) }

// numberOrder is the order in which a Frontend tries the numbers.
type numberOrder struct{ start, step uint64 }

func numbersOf(f *cluster.Frontend) numberOrder {
	h := fnv.New64a()
	_, _ = h.Write([]byte(f.Key())) // never fails
	start := mix(h.Sum64())
	return numberOrder{start % numbers, 1 + mix(start)%(numbers-1)}
}

func (o numberOrder) at(i int) uint16 {
	n := placeholderPort + 1 + (o.start+uint64(i)*o.step)%numbers
	if n >= firstNodePort {
		n += lastNodePort - firstNodePort + 1
	}
	return uint16(n)
}

// allocate gives numbers to those that need one, the oldest first. All that have one keep it before others choose.
func (r *registry) allocate() {
	if r.freed && len(r.waiting) > 0 {
		r.requests = append(r.requests, slices.Collect(maps.Keys(r.waiting))...)
	}
	names := map[*claimant]marks{}
	for len(r.requests) > 0 {
		list := slices.DeleteFunc(r.requests, func(q request) bool { return len(q.by.given) == 0 })
		r.requests = nil
		slices.SortFunc(list, request.compare)
		looking := list[:0]
		for _, q := range slices.Compact(list) {
			if _, known := names[q.by]; !known {
				names[q.by] = repeats(q.by.given, wordOf)
			}
			delete(r.waiting, q)
			f := r.frontend(q, names[q.by])
			if f == nil {
				continue
			}
			r.dirty[q.by] = true
			if !r.holds(q, f) {
				looking = append(looking, q)
			}
		}
		for _, q := range looking {
			r.find(q, r.frontend(q, names[q.by]))
		}
	}
	r.requests, r.freed = nil, false
}

// holds reports whether a Frontend keeps the number that it had.
func (r *registry) holds(q request, f *cluster.Frontend) bool {
	n := r.Numbers[servicePortOf(f)]
	if n == 0 {
		return false
	}
	k, x := proxyPortOf(f, n), claimed{q.by, rankHeld, q.port}
	if r.add(k, x); r.first[k] == x {
		return true
	}
	r.drop(k, x)
	r.hold(f, 0)
	return false
}

// find gives a Frontend the first free number in its order.
func (r *registry) find(q request, f *cluster.Frontend) {
	if r.exhausted(f.Owner, numberRange{f.Family, f.Protocol}) != "" {
		r.waiting[q] = true
		return
	}
	order := numbersOf(f)
	for i := range numbers {
		k := proxyPortOf(f, order.at(i))
		if _, taken := r.first[k]; !taken {
			r.add(k, claimed{q.by, rankHeld, q.port})
			r.hold(f, k.port)
			return
		}
	}
}

// requeue makes a Frontend look for a number again that lost its own to a NodePort or to an older one.
func (r *registry) requeue(k claim, x claimed) {
	if k.kind == claimStandIn && x.rank != rankNodePort {
		r.requests = append(r.requests, request{x.by, k.family, k.protocol, x.port})
	}
}

// forget lets go of the numbers of Frontends that want none any more.
func (r *registry) forget(list []*cluster.Frontend, wanted func(*cluster.Frontend) bool) {
	for _, f := range list {
		if wantsNumber(f) && !wanted(f) {
			r.hold(f, 0)
		}
	}
}

// number returns the number that a Frontend has, or 0.
func (r *registry) number(c *claimant, f *cluster.Frontend) uint16 {
	n := r.Numbers[servicePortOf(f)]
	if n == 0 || r.first[proxyPortOf(f, n)] != (claimed{c, rankHeld, f.Port}) {
		return 0
	}
	return n
}
