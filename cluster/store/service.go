package store

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"hairpin/cluster"
	"hairpin/cluster/parse"
	"hairpin/cluster/trust"
)

// service is a Service that exists, or that a slice names.
type service struct {
	present  bool
	served   bool                // it has addresses to serve
	ports    []*cluster.Frontend // as parsed, except for Backends and Triggered
	problems []cluster.Problem
	refused  cluster.Problems // by the guard
	slices   []*slice         // by name
}

// set adds a slice, or replaces the one with its name.
func (v *service) set(x *slice) {
	i, found := v.find(x.Owner)
	if found {
		v.slices[i] = x
		return
	}
	v.slices = slices.Insert(v.slices, i, x)
}

func (v *service) drop(slice cluster.Owner) {
	if i, found := v.find(slice); found {
		v.slices = slices.Delete(v.slices, i, i+1)
	}
}

func (v *service) find(owner cluster.Owner) (int, bool) {
	return slices.BinarySearchFunc(v.slices, owner, func(x *slice, o cluster.Owner) int { return x.Owner.Compare(o) })
}

// frontends returns the ports with the slices' endpoints. It reuses a Frontend of old that is
// equal, so that a reader can detect changes by pointer. If the guard rejects nothing of a port,
// v.ports has the same Frontend as the result, which saves memory.
func (v *service) frontends(old []*cluster.Frontend, g *trust.Guard) []*cluster.Frontend {
	var out []*cluster.Frontend
	v.refused = cluster.Problems{}
	for _, x := range v.slices {
		x.applyGuard(g)
	}
	unrestricted := make([]bool, len(v.ports))
	for i, port := range v.ports {
		f := new(*port)
		f.Backends, f.Triggered = nil, time.Time{}
		out = append(out, g.Admit(f, &v.refused))
		unrestricted[i] = out[i] == f
	}
	v.setBackends(out)
	for i, f := range out {
		at, found := slices.BinarySearchFunc(old, f, (*cluster.Frontend).Compare)
		if found && equalFrontends(f, old[at]) {
			out[i] = old[at]
		}
		if unrestricted[i] {
			v.ports[i] = out[i]
		}
	}
	return out
}

// hasExternal reports whether the Service requests addresses besides its cluster IPs.
func (v *service) hasExternal() bool {
	return slices.ContainsFunc(v.ports,
		func(f *cluster.Frontend) bool { return len(f.ExternalIPs)+len(f.LoadBalancerIPs) > 0 })
}

// mayHaveReservedEndpoint reports whether a node range could reserve the address of one of its
// endpoints.
func (v *service) mayHaveReservedEndpoint(c *cluster.Config) bool {
	return slices.ContainsFunc(v.slices, func(x *slice) bool {
		return slices.ContainsFunc(x.Endpoints, func(b cluster.Backend) bool { return trust.MayBeReserved(b.Addr, c) })
	})
}

// hasEndpointIn reports whether one of its endpoints has one of the addresses.
func (v *service) hasEndpointIn(addresses map[netip.Addr]bool) bool {
	return len(addresses) > 0 && slices.ContainsFunc(v.slices, func(x *slice) bool {
		return slices.ContainsFunc(x.Endpoints, func(b cluster.Backend) bool { return addresses[b.Addr] })
	})
}

func equalFrontends(f, g *cluster.Frontend) bool {
	return f.Owner == g.Owner && f.UID == g.UID && f.Created.Equal(g.Created) && f.PortName == g.PortName &&
		f.Family == g.Family && f.Protocol == g.Protocol &&
		f.ClusterIP == g.ClusterIP && f.Port == g.Port && f.NodePort == g.NodePort && f.Affinity == g.Affinity &&
		f.ExternalLocal == g.ExternalLocal && f.InternalLocal == g.InternalLocal && f.Triggered.Equal(g.Triggered) &&
		f.Restricted == g.Restricted && f.HealthCheckNodePort == g.HealthCheckNodePort &&
		slices.Equal(f.SourceRanges, g.SourceRanges) &&
		slices.Equal(f.ExternalIPs, g.ExternalIPs) && slices.Equal(f.LoadBalancerIPs, g.LoadBalancerIPs) &&
		slices.EqualFunc(f.Backends, g.Backends, equalBackends)
}

func equalBackends(b, c cluster.Backend) bool {
	return b.Addr == c.Addr && b.Port == c.Port && b.Node == c.Node && b.Ready == c.Ready && b.Serving == c.Serving &&
		b.Terminating == c.Terminating && b.Zone == c.Zone && slices.Equal(b.ForZones, c.ForZones) &&
		slices.Equal(b.ForNodes, c.ForNodes)
}

// slice is an EndpointSlice with what the guard decides about its endpoints.
type slice struct {
	parse.Slice
	port     uint16            // of all Endpoints, if a Frontend shares the list; otherwise 0
	accepted []cluster.Backend // those of Endpoints that the guard accepts
	guard    int               // the number of that guard
	refused  []cluster.Problem // by the guard
}

// applyGuard drops the endpoints that the guard rejects, and reports the first: a slice has up to a
// thousand.
func (x *slice) applyGuard(g *trust.Guard) {
	if x.guard == g.Number {
		return
	}
	x.guard, x.refused = g.Number, nil
	rejected := func(b cluster.Backend) bool { return g.Endpoint(b.Addr) != "" }
	x.accepted = slices.DeleteFunc(slices.Clone(x.Endpoints), rejected)
	bad := len(x.Endpoints) - len(x.accepted)
	if bad == 0 {
		x.accepted = x.Endpoints
		return
	}
	i := slices.IndexFunc(x.Endpoints, rejected)
	message := g.Endpoint(x.Endpoints[i].Addr) + ": cannot be an endpoint"
	if bad > 1 {
		message = fmt.Sprintf("%s (and %d more endpoints like it)", message, bad-1)
	}
	x.refused = []cluster.Problem{{Owner: x.Owner, Field: "endpoints", Message: message}}
}
