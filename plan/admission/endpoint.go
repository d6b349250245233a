package admission

import (
	"cmp"
	"net/netip"
	"slices"

	"hairpin/cluster"
)

// A Service may have an endpoint outside the pod ranges, such as a server or a host. In mode shared
// the gateway router translates again what the node's switch has translated to that address.
// Another Service that is served at that address and port would get these connections. So
// spec.externalIPs cannot have an endpoint of an older Service. Age decides because it is the only
// property here that cannot be chosen later. Load balancer addresses are exempt: the administrator
// assigns them, so no EndpointSlice takes them away.

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

// olderEndpoint returns the Service older than s whose endpoint s has in spec.externalIPs, or nil.
// Manifests without an age are equally old.
func (r *Registry) olderEndpoint(s *service, a netip.Addr, p cluster.Protocol, port uint16) *service {
	x := r.holders[endpointKey(a, p, port)].service
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
