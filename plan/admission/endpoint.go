package admission

import (
	"cmp"
	"net/netip"
	"slices"

	"hairpin/cluster"
)

// Other Services may send to an endpoint outside the pod ranges, a server's or a host's, by its
// address as well. In mode shared the gateway router translates what the node's switch has
// translated to it, so a Service that is served at that address and port would get the other
// Service's connections. So a Service cannot have in spec.externalIPs what is an endpoint of an
// older one. The age decides because it is the only property here that cannot be chosen later. A
// load balancer's address is the administrator's to give: no EndpointSlice takes it away.

// endpointKeys returns a Frontend's endpoints outside the pod ranges.
func (r *Registry) endpointKeys(f *cluster.Frontend) []key {
	var list []key
	for i := range f.Backends {
		b := &f.Backends[i]
		if !slices.ContainsFunc(r.facts.PodRanges, func(p netip.Prefix) bool { return p.Contains(b.Addr) }) {
			list = append(list, endpointKey(b.Addr, f.Protocol, b.Port))
		}
	}
	return list
}

// olderEndpoint returns the Service older than s that has as an endpoint what s has in
// spec.externalIPs, or nil. Manifests without an age are all as old.
func (r *Registry) olderEndpoint(s *service, a netip.Addr, p cluster.Protocol, port uint16) *service {
	x := r.holders[endpointKey(a, p, port)].by
	if x == nil || x == s || slices.ContainsFunc(s.frontends, func(f *cluster.Frontend) bool {
		return f.Protocol == p && f.Port == port && slices.Contains(f.LoadBalancerIPs, a)
	}) {
		return nil
	}
	f, g := x.frontends[0], s.frontends[0]
	if cmp.Or(f.Created.Compare(g.Created), cmp.Compare(f.UID, g.UID)) >= 0 {
		return nil
	}
	return x
}
