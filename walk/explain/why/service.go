package why

import (
	"fmt"
	"slices"

	"hairpin/cluster"
	"hairpin/walk/explain/names"
	"hairpin/walk/packet"
)

// service explains why the Service has no endpoint for the packet.
func (r *reasoner) service() Why {
	f, c := r.Service, r.Trace.Verdict.Cause
	if f == nil || c != packet.ByRule && c != packet.NoEndpoint || r.translated() {
		return Why{}
	}
	service := names.Object(f.Owner)
	if src := r.Trace.Sent.Src; r.restricted() && !contains(f.SourceRanges, src) {
		return because(ReasonSourceRanges, f.Owner, "source %s is not in loadBalancerSourceRanges of %s: %s", src,
			service, listed(f.SourceRanges, cluster.FamilyOf(src)))
	}
	all := usable(f.Backends)
	if len(all) == 0 {
		return because(ReasonNoEndpoint, f.Owner, "%s", r.noEndpoint())
	}
	field, local := r.trafficPolicy()
	if !local || r.node == nil || slices.ContainsFunc(all, r.node.HasEndpoint) {
		return Why{}
	}
	var nodes []string
	for _, b := range all {
		if n := names.EndpointNode(r.Cluster, b); !slices.Contains(nodes, n) {
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
	return because(ReasonNoLocalEndpoint, f.Owner, "%s of %s is Local and %s %s; %s%s", field, service, r.node.Name,
		own, where, names.List(nodes))
}

// translated reports whether the packet already has an endpoint as its destination.
func (r *reasoner) translated() bool {
	return r.now.Destination() != r.Trace.Sent.Destination() &&
		slices.ContainsFunc(r.Service.Backends, func(b cluster.Backend) bool {
			return b.Addr == r.now.Dst && b.Port == r.now.DstPort
		})
}

// restricted reports whether loadBalancerSourceRanges apply to the packet's destination.
func (r *reasoner) restricted() bool {
	f, to, port := r.Service, r.Trace.Sent.Dst, r.Trace.Sent.DstPort
	return f.Restricted && port == f.Port && slices.Contains(f.LoadBalancerIPs, to) &&
		!slices.Contains(f.ExternalIPs, to)
}

// trafficPolicy returns the field of the traffic policy that applies to the packet's destination,
// and whether it is Local.
func (r *reasoner) trafficPolicy() (field string, local bool) {
	if r.Trace.Sent.Dst == r.Service.ClusterIP {
		return "internalTrafficPolicy", r.Service.InternalLocal
	}
	return "externalTrafficPolicy", r.Service.ExternalLocal
}

// noEndpoint describes a Frontend without an endpoint that is ready.
func (r *reasoner) noEndpoint() string {
	f := r.Service
	text := names.Object(f.Owner) + " has no ready endpoint"
	if len(f.Backends) > 0 {
		var states []string
		for i := range f.Backends {
			b := &f.Backends[i]
			name, _ := names.Holder(r.Cluster, b.Addr)
			if name == "" {
				name = b.Addr.String()
			}
			states = append(states, name+" is "+names.EndpointState(b))
		}
		return text + ": " + names.List(states)
	}
	for _, x := range r.Cluster.Frontends {
		if x.Owner == f.Owner && x.Family != f.Family && x.Port == f.Port && x.Protocol == f.Protocol &&
			len(usable(x.Backends)) > 0 {
			return fmt.Sprintf("%s of %s; it has endpoints of %s", text, f.Family, x.Family)
		}
	}
	return names.Object(f.Owner) + " has no endpoint"
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

// port explains an address of a Service without the port.
func (r *reasoner) port() Why {
	to := r.Trace.Sent.Dst
	if r.Service != nil || r.Trace.Verdict.Cause == packet.Unclaimed {
		return Why{}
	}
	var has []*cluster.Frontend
	for _, f := range r.Cluster.Frontends {
		if f.ClusterIP == to || slices.Contains(f.LoadBalancerIPs, to) || slices.Contains(f.ExternalIPs, to) {
			has = append(has, f)
		}
	}
	if len(has) == 0 {
		return Why{}
	}
	return because(ReasonNoPort, has[0].Owner, "%s has no port %d/%s; it has %s", names.Object(has[0].Owner),
		r.Trace.Sent.DstPort, r.Trace.Sent.Protocol, names.Ports(has))
}
