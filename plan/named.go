package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"hairpin/cluster"
)

// An endpoint outside the ranges of pods, a server's or a host's, is where others may send by its address as well. In mode shared the
// gateway router translates what the node's switch has translated to it, so a Service that is served at that address and port
// would get what was meant for the first one. What an older Service names is therefore no younger one's to have in
// spec.externalIPs. The age decides, because it is the only thing here that cannot be chosen later. A load balancer's address is
// the administrator's to give: nobody loses one to what somebody writes into an EndpointSlice.

// named returns what a Frontend has as endpoints outside the ranges of pods.
func (r *registry) named(f *cluster.Frontend) []claim {
	var list []claim
	for i := range f.Backends {
		b := &f.Backends[i]
		if !within(r.pods, b.Addr) {
			list = append(list, claim{kind: claimEndpoint, addr: b.Addr, protocol: f.Protocol, port: b.Port})
		}
	}
	return list
}

// namer returns the older Service that has as an endpoint what another has in spec.externalIPs, or nil. Manifests without age are
// all as old.
func (r *registry) namer(c *claimant, a netip.Addr, p cluster.Protocol, port uint16) *claimant {
	x := r.first[claim{kind: claimEndpoint, addr: a, protocol: p, port: port}].by
	if x == nil || x == c || slices.ContainsFunc(c.given, func(f *cluster.Frontend) bool {
		return f.Protocol == p && f.Port == port && slices.Contains(f.LoadBalancerIPs, a)
	}) {
		return nil
	}
	f, g := x.given[0], c.given[0]
	if cmp.Or(f.Created.Compare(g.Created), cmp.Compare(f.UID, g.UID)) >= 0 {
		return nil
	}
	return x
}
