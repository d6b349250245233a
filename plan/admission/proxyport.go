package admission

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"hairpin/cluster"
	"hairpin/plan/stablehash"
)

// A Frontend with a policy Local and an external address has a port at the proxy addresses, its
// proxy port: the node port, or else an allocated port. A hash of its name gives the order in which
// it tries ports, and it gets the first free one. Of several without a port, the oldest is first.
// No name can take a port from another Service: a name that tries the same ports costs the younger
// Service some more tries. A node port outside the usual range takes its port; the former holder
// gets another one.
//
// A Frontend keeps its port while others are added and removed: otherwise the host's packets would
// reach another Service until Open vSwitch has the change. So a Planner remembers ports. The
// Planner of an agent that starts begins with those that the node has.

// PlaceholderPort is a port of the proxy addresses that no Service has.
const PlaceholderPort = 1

// Proxy ports are allocated from all ports except PlaceholderPort, the usual node ports, and a few
// at the end. Their count is a prime, so that a sequence with any step has all of them.
const (
	portCount     = 62761
	firstNodePort = 30000
	lastNodePort  = 32767
)

// maxPortsPerService limits the proxy ports of one family and protocol that a Service may have, so
// that it cannot take all.
const maxPortsPerService = 4000

// Ranks of bids for a proxy port: node ports have no choice, all others keep what they have.
const (
	rankNodePort uint8 = iota
	rankAllocated
)

// ProxyPorts are the proxy ports that Services have.
type ProxyPorts map[ServicePort]uint16

// ServicePort identifies a port of a Service, in one family.
type ServicePort struct {
	Owner    cluster.Owner
	Family   cluster.Family
	Protocol cluster.Protocol
	Port     uint16
}

// servicePortOf returns the ServicePort of a Frontend.
func servicePortOf(f *cluster.Frontend) ServicePort {
	return ServicePort{f.Owner, f.Family, f.Protocol, f.Port}
}

// NeedsProxyPort reports whether a Frontend needs a proxy port while it has no node port. The
// Frontend keeps it when it gets a node port.
func NeedsProxyPort(f *cluster.Frontend) bool {
	return (f.InternalLocal || f.ExternalLocal) && len(f.ExternalIPs)+len(f.LoadBalancerIPs) > 0
}

// portRange identifies the proxy ports of a family and protocol.
type portRange struct {
	family   cluster.Family
	protocol cluster.Protocol
}

// portPool allocates proxy ports.
type portPool struct {
	ports    ProxyPorts
	used     map[portRange]int                   // ports that some Service has
	ofOwner  map[cluster.Owner]map[portRange]int // ports of one Service
	waiting  map[request]bool                    // Frontends without a port
	requests []request                           // during an update
	freed    bool                                // during an update: some port has become free
}

func newPortPool() portPool {
	return portPool{
		ports: ProxyPorts{}, used: map[portRange]int{}, ofOwner: map[cluster.Owner]map[portRange]int{},
		waiting: map[request]bool{},
	}
}

// setPort records the allocated port of a Frontend, 0 for none.
func (p *portPool) setPort(f *cluster.Frontend, n uint16) {
	k, r := servicePortOf(f), portRange{f.Family, f.Protocol}
	had := p.ports[k]
	if had == n {
		return
	}
	counts := p.ofOwner[f.Owner]
	if counts == nil {
		counts = map[portRange]int{}
		p.ofOwner[f.Owner] = counts
	}
	if had != 0 {
		delete(p.ports, k)
		counts[r]--
		p.freed = true
	}
	if n != 0 {
		p.ports[k] = n
		counts[r]++
	} else if counts[r] == 0 {
		if delete(counts, r); len(counts) == 0 {
			delete(p.ofOwner, f.Owner)
		}
	}
}

// countUsed records that a proxy port got its first bid (by = 1) or lost its last one (by = -1).
func (p *portPool) countUsed(k key, by int) {
	if k.kind == keyProxyPort && isAllocatable(k.port) {
		p.used[portRange{k.family, k.protocol}] += by
		p.freed = p.freed || by < 0
	}
}

func isAllocatable(port uint16) bool {
	return port > PlaceholderPort && (port < firstNodePort || port > lastNodePort) &&
		int(port) <= PlaceholderPort+portCount+lastNodePort-firstNodePort+1
}

// whyExhausted returns why a Service gets no further port, or "" if it may get one.
func (p *portPool) whyExhausted(owner cluster.Owner, r portRange) string {
	switch {
	case p.ofOwner[owner][r] >= maxPortsPerService:
		return fmt.Sprintf("more than %d %s ports of the Service have a policy Local and no node port",
			maxPortsPerService, r.protocol)
	case p.used[r] >= portCount:
		return fmt.Sprintf("all %d %s ports of the proxy addresses are in use", portCount, r.protocol)
	}
	return ""
}

// request identifies a Frontend that needs a port. It may have been replaced meanwhile.
type request struct {
	service  *service
	family   cluster.Family
	protocol cluster.Protocol
	port     uint16
}

func requestOf(s *service, f *cluster.Frontend) request {
	return request{s, f.Family, f.Protocol, f.Port}
}

// compare orders requests by age.
func (q request) compare(x request) int {
	return cmp.Or(q.service.frontends[0].CompareAge(x.service.frontends[0]), cmp.Compare(q.family, x.family),
		cmp.Compare(q.protocol, x.protocol), cmp.Compare(q.port, x.port))
}

// requestedFrontend returns the Frontend of a request as it is now, or nil when it needs no port
// any more. A Service may list a port twice; names marks its Frontends that have the name of an
// earlier one, and are not served.
func (r *Registry) requestedFrontend(q request, names marks) *cluster.Frontend {
	compare := func(f *cluster.Frontend, q request) int {
		return cmp.Or(cmp.Compare(f.Family, q.family), cmp.Compare(f.Protocol, q.protocol), cmp.Compare(f.Port, q.port))
	}
	i, _ := slices.BinarySearchFunc(q.service.frontends, q, compare)
	for ; i < len(q.service.frontends) && compare(q.service.frontends[i], q) == 0; i++ {
		f := q.service.frontends[i]
		if NeedsProxyPort(f) && !names.at(i) && r.holders[clusterIPKey(f.ClusterIP)].service == q.service {
			return f
		}
	}
	return nil
}

// sequence is the order in which a Frontend tries ports.
type sequence struct{ start, step uint64 }

func sequenceOf(f *cluster.Frontend) sequence {
	start := stablehash.Mix(stablehash.String(f.Key()))
	return sequence{start % portCount, 1 + stablehash.Mix(start)%(portCount-1)}
}

// at returns the port that a Frontend tries after i others.
func (s sequence) at(i int) uint16 {
	n := PlaceholderPort + 1 + (s.start+uint64(i)*s.step)%portCount
	if n >= firstNodePort {
		n += lastNodePort - firstNodePort + 1
	}
	return uint16(n)
}

// allocatePorts allocates ports to the Frontends that need one, the oldest first. First, those that
// have one keep it. A younger Service that loses its port to them requests another one, so this is
// repeated until there are no requests.
func (r *Registry) allocatePorts() {
	if r.freed && len(r.waiting) > 0 {
		r.requests = append(r.requests, slices.Collect(maps.Keys(r.waiting))...)
	}
	names := map[*service]marks{}
	for len(r.requests) > 0 {
		list := slices.DeleteFunc(r.requests, func(q request) bool { return len(q.service.frontends) == 0 })
		r.requests = nil
		slices.SortFunc(list, request.compare)
		portless := list[:0]
		for _, q := range slices.Compact(list) {
			if _, known := names[q.service]; !known {
				names[q.service] = markRepeated(q.service.frontends, nameOf)
			}
			delete(r.waiting, q)
			f := r.requestedFrontend(q, names[q.service])
			if f == nil {
				continue
			}
			r.dirty[q.service] = true
			if !r.keepPort(q, f) {
				portless = append(portless, q)
			}
		}
		for _, q := range portless {
			r.allocatePort(q, r.requestedFrontend(q, names[q.service]))
		}
	}
	r.requests, r.freed = nil, false
}

// keepPort reports whether a Frontend keeps the port that it had.
func (r *Registry) keepPort(q request, f *cluster.Frontend) bool {
	n := r.ports[servicePortOf(f)]
	if n == 0 {
		return false
	}
	k, b := proxyPortKey(f, n), bid{q.service, rankAllocated, q.port}
	if r.placeBid(k, b); r.holders[k] == b {
		return true
	}
	r.withdrawBid(k, b)
	r.setPort(f, 0)
	return false
}

// allocatePort gives a Frontend the first free port of its sequence.
func (r *Registry) allocatePort(q request, f *cluster.Frontend) {
	if r.whyExhausted(f.Owner, portRange{f.Family, f.Protocol}) != "" {
		r.waiting[q] = true
		return
	}
	order := sequenceOf(f)
	for i := range portCount {
		k := proxyPortKey(f, order.at(i))
		if _, taken := r.holders[k]; !taken {
			r.placeBid(k, bid{q.service, rankAllocated, q.port})
			r.setPort(f, k.port)
			return
		}
	}
}

// reallocate requests another port for a Frontend that lost its own to a node port or to an older
// Service.
func (r *Registry) reallocate(k key, b bid) {
	if k.kind == keyProxyPort && b.rank != rankNodePort {
		r.requests = append(r.requests, request{b.service, k.family, k.protocol, b.port})
	}
}

// releasePorts releases the ports of Frontends that are no longer wanted.
func (r *Registry) releasePorts(list []*cluster.Frontend, wanted func(*cluster.Frontend) bool) {
	for _, f := range list {
		if NeedsProxyPort(f) && !wanted(f) {
			r.setPort(f, 0)
		}
	}
}

// allocatedPort returns the port that was allocated to a Frontend, or 0.
func (r *Registry) allocatedPort(s *service, f *cluster.Frontend) uint16 {
	n := r.ports[servicePortOf(f)]
	if n == 0 || r.holders[proxyPortKey(f, n)] != (bid{s, rankAllocated, f.Port}) {
		return 0
	}
	return n
}
