package explain

import (
	"fmt"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/walk/packet"
)

// service explains why the Service has no endpoint for the packet.
func (r *reasoner) service() (Why, bool) {
	f, c := r.f, r.t.Verdict.Cause
	if f == nil || c != packet.ByRule && c != packet.NoEndpoint || r.translated() {
		return Why{}, false
	}
	service := object(f.Owner)
	if src := r.t.Sent.Src; r.restricted() && !contains(f.SourceRanges, src) {
		return Why{ReasonSourceRanges, fmt.Sprintf("source %s is not in loadBalancerSourceRanges of %s: %s", src,
			service,
			listed(f.SourceRanges, cluster.FamilyOf(src))), f.Owner}, true
	}
	all := usable(f.Backends)
	if len(all) == 0 {
		return Why{ReasonNoEndpoint, r.noEndpoint(), f.Owner}, true
	}
	field, local := r.trafficPolicy()
	if !local || r.node == nil || slices.ContainsFunc(all, r.node.HasEndpoint) {
		return Why{}, false
	}
	var nodes []string
	for _, b := range all {
		if n := endpointNode(r.s, b); !slices.Contains(nodes, n) {
			nodes = append(nodes, n)
		}
	}
	slices.Sort(nodes)
	own := "has no endpoint"
	if slices.ContainsFunc(f.Backends, func(b cluster.Backend) bool { return r.node.HasEndpoint(&b) }) {
		own = "has no ready endpoint"
	}
	where := "the endpoint is on "
	if len(all) > 1 {
		where = fmt.Sprintf("the %d endpoints are on ", len(all))
	}
	return Why{ReasonNoLocalEndpoint, fmt.Sprintf("%s of %s is Local and %s %s; %s%s", field, service, r.node.Name, own,
		where, enumerate(nodes)), f.Owner}, true
}

// translated reports whether the packet already has an endpoint as its destination.
func (r *reasoner) translated() bool {
	return netip.AddrPortFrom(r.now.Dst, r.now.DstPort) != netip.AddrPortFrom(r.t.Sent.Dst, r.t.Sent.DstPort) &&
		slices.ContainsFunc(r.f.Backends, func(b cluster.Backend) bool {
			return b.Addr == r.now.Dst && b.Port == r.now.DstPort
		})
}

// restricted reports whether loadBalancerSourceRanges apply to the packet's destination.
func (r *reasoner) restricted() bool {
	to := r.t.Sent.Dst
	return r.f.Restricted && r.t.Sent.DstPort == r.f.Port && slices.Contains(r.f.LoadBalancerIPs, to) &&
		!slices.Contains(r.f.ExternalIPs, to)
}

// trafficPolicy returns the field of the traffic policy that applies to the packet's destination,
// and whether it is Local.
func (r *reasoner) trafficPolicy() (field string, local bool) {
	if r.t.Sent.Dst == r.f.ClusterIP {
		return "internalTrafficPolicy", r.f.InternalLocal
	}
	return "externalTrafficPolicy", r.f.ExternalLocal
}

// noEndpoint describes a Frontend without an endpoint that is ready.
func (r *reasoner) noEndpoint() string {
	f := r.f
	text := object(f.Owner) + " has no ready endpoint"
	if len(f.Backends) > 0 {
		var states []string
		for i := range f.Backends {
			b := &f.Backends[i]
			name := holder(r.s, b.Addr)
			if name == "" {
				name = b.Addr.String()
			}
			states = append(states, name+" is "+state(*b))
		}
		return text + ": " + enumerate(states)
	}
	for _, x := range r.s.Frontends {
		if x.Owner == f.Owner && x.Family != f.Family && x.Port == f.Port && x.Protocol == f.Protocol &&
			len(usable(x.Backends)) > 0 {
			return fmt.Sprintf("%s of %s; it has endpoints of %s", text, f.Family, x.Family)
		}
	}
	return object(f.Owner) + " has no endpoint"
}

// usable returns the endpoints that get connections: those that are ready, else those that still
// serve while they terminate.
func usable(all []cluster.Backend) (list []*cluster.Backend) {
	for _, fits := range []func(b *cluster.Backend) bool{
		func(b *cluster.Backend) bool { return b.Ready },
		func(b *cluster.Backend) bool { return b.Serving && b.Terminating },
	} {
		for i := range all {
			if fits(&all[i]) {
				list = append(list, &all[i])
			}
		}
		if len(list) > 0 {
			break
		}
	}
	return list
}

func endpointNode(s *cluster.Snapshot, b *cluster.Backend) string {
	if b.Node != "" {
		return b.Node
	}
	return nodeOf(s, b.Addr)
}

// port explains an address of a Service without the port.
func (r *reasoner) port() (Why, bool) {
	to := r.t.Sent.Dst
	if r.f != nil || r.t.Verdict.Cause == packet.Unclaimed {
		return Why{}, false
	}
	var has []*cluster.Frontend
	for _, f := range r.s.Frontends {
		if f.ClusterIP == to || slices.Contains(f.LoadBalancerIPs, to) || slices.Contains(f.ExternalIPs, to) {
			has = append(has, f)
		}
	}
	if len(has) == 0 {
		return Why{}, false
	}
	return Why{ReasonNoPort, fmt.Sprintf("%s has no port %d/%s; it has %s", object(has[0].Owner), r.t.Sent.DstPort,
		r.t.Sent.Protocol, portsOf(has)), has[0].Owner}, true
}
