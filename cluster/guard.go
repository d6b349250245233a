package cluster

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"
)

// guard knows what belongs to the cluster and to its nodes. Whoever may create Services can name any address in them, as
// external address and as endpoint: here is what they cannot have.
type guard struct {
	config *Config
	ranges []guarded
	places map[netip.Addr]string // addresses of the cluster's own in the ranges of pods, and what they are
	hosts  map[netip.Addr]string // addresses of nodes, and whose
	api    map[netip.AddrPort]bool
	egress map[netip.Addr]*EgressIP // the oldest that has it
}

// guarded is a range of which no machine outside has an address.
type guarded struct {
	prefix   netip.Prefix
	what     string
	endpoint bool // pods are in it
}

// kubernetesService is the API server's Service.
var kubernetesService = Owner{Kind: "Service", Namespace: "default", Name: "kubernetes"}

func newGuard(c *Config, nodes []*Node, v *Vetted, egressIPs []*EgressIP) *guard {
	g := &guard{config: c, places: map[netip.Addr]string{}, hosts: v.Hosts, api: map[netip.AddrPort]bool{}, egress: map[netip.Addr]*EgressIP{}}
	for _, s := range c.ClusterSubnets {
		g.ranges = append(g.ranges, guarded{s.CIDR, "the range of pods", true})
	}
	for _, list := range []struct {
		of   []netip.Prefix
		what string
	}{
		{c.ServiceCIDRs, "the range of cluster IPs"}, {c.JoinSubnets, "the join subnet"}, {c.TransitSubnets, "the transit subnet"},
		{c.Gateway.MasqueradeSubnets, "the masquerade subnet"},
	} {
		for _, p := range list.of {
			g.ranges = append(g.ranges, guarded{p, list.what, false})
		}
	}
	if !ModeNamed(c.Gateway.Mode).Uplink {
		for _, a := range c.Gateway.Advertise {
			g.ranges = append(g.ranges, guarded{netip.PrefixFrom(a, a.BitLen()), "the gateway bridges' own address", false})
		}
	}
	for _, n := range nodes {
		for _, p := range n.PodCIDRs {
			router := p.Addr().Next()
			g.places[router], g.places[router.Next()] = "the cluster router's", "ovn-k8s-mp0's"
		}
	}
	for _, a := range c.APIServers {
		g.api[a] = true
	}
	for _, e := range egressIPs {
		for _, a := range e.Addresses {
			if g.egress[a] == nil || e.Older(g.egress[a]) < 0 {
				g.egress[a] = e
			}
		}
	}
	return g
}

// keepAPI keeps for the API server where its Service says that it is.
func (g *guard) keepAPI(list []*Frontend) {
	for _, f := range list {
		for _, b := range f.Backends {
			g.api[netip.AddrPortFrom(b.Addr, b.Port)] = true
		}
	}
}

// sameEndpoints and sameOuter tell whether two guards refuse the same endpoints, and the same external addresses.
func (g *guard) sameEndpoints(h *guard) bool {
	return g != nil && slices.Equal(g.ranges, h.ranges) && maps.Equal(g.places, h.places)
}

func (g *guard) sameOuter(h *guard) bool {
	return g.sameEndpoints(h) && maps.Equal(g.hosts, h.hosts) && maps.Equal(g.api, h.api) && reflect.DeepEqual(g.config, h.config) &&
		maps.EqualFunc(g.egress, h.egress, func(e, f *EgressIP) bool { return e.Owner == f.Owner && e.Created.Equal(f.Created) })
}

// endpoint says why nothing can listen at an address; empty when something may.
func (g *guard) endpoint(a netip.Addr) string {
	for _, r := range g.ranges {
		if !r.endpoint && r.prefix.Contains(a) {
			return fmt.Sprintf("%s is in %s (%s)", a, r.what, r.prefix)
		}
	}
	if what := g.places[a]; what != "" {
		return fmt.Sprintf("%s is %s", a, what)
	}
	return ""
}

// outer says why a Service must not be served at an address that is none of its cluster IPs; empty when it may.
func (g *guard) outer(a netip.Addr, port uint16, limit *Limit, option string, created time.Time) string {
	for _, r := range g.ranges {
		if r.prefix.Contains(a) {
			return fmt.Sprintf("%s is in %s (%s)", a, r.what, r.prefix)
		}
	}
	n, isNode := g.hosts[a]
	e := g.egress[a]
	switch {
	case g.api[netip.AddrPortFrom(a, port)]:
		return fmt.Sprintf("%s is where the API server is", netip.AddrPortFrom(a, port))
	case isNode && g.config.ReservedNodePorts.Has(port):
		return fmt.Sprintf("%s is an address of node %s, where port %d is kept for the node ([default] reserved-node-ports)", a, n, port)
	case !limit.Allows(a):
		return fmt.Sprintf("%s is not within [default] %s", a, option)
	case e != nil && !e.Created.After(created):
		return fmt.Sprintf("%s is an address of %s, which is older", a, e.Owner)
	}
	return ""
}

// admit takes from a Frontend the addresses that it must not have. A Frontend that may have all stays itself.
func (g *guard) admit(f *Frontend) (*Frontend, []Problem) {
	var problems []Problem
	keep := func(list []netip.Addr, field string, limit *Limit, option string) []netip.Addr {
		var good []netip.Addr
		for _, a := range list {
			if why := g.outer(a, f.Port, limit, option, f.Created); why != "" {
				problems = append(problems, Problem{f.Owner, field, why + ": not served there"})
			} else {
				good = append(good, a)
			}
		}
		return good
	}
	nodePort := f.NodePort
	if nodePort != 0 && g.config.ReservedNodePorts.Has(nodePort) {
		problems = append(problems, Problem{f.Owner, "spec.ports", fmt.Sprintf("node port %d is kept for the node ([default] reserved-node-ports): served without it", nodePort)})
		nodePort = 0
	}
	external := keep(f.ExternalIPs, "spec.externalIPs", &g.config.ExternalIPs, "external-ip-ranges")
	balancer := keep(f.LoadBalancerIPs, "status.loadBalancer.ingress", &g.config.LoadBalancerIPs, "load-balancer-ranges")
	if len(problems) == 0 {
		return f, nil
	}
	with := *f
	with.NodePort, with.ExternalIPs, with.LoadBalancerIPs = nodePort, external, balancer
	return &with, problems
}

// pass leaves out the endpoints that the guard refuses, and tells of the first: a slice has up to a thousand.
func (x *slice) pass(g *guard) {
	if x.guard == g {
		return
	}
	x.guard, x.refused = g, nil
	x.endpoints = slices.DeleteFunc(slices.Clone(x.named), func(b Backend) bool { return g.endpoint(b.Addr) != "" })
	bad := len(x.named) - len(x.endpoints)
	if bad == 0 {
		x.endpoints = x.named
		return
	}
	i := slices.IndexFunc(x.named, func(b Backend) bool { return g.endpoint(b.Addr) != "" })
	message := g.endpoint(x.named[i].Addr) + ": it is no endpoint"
	if bad > 1 {
		message = fmt.Sprintf("%s (and %d more endpoints like it)", message, bad-1)
	}
	x.refused = []Problem{{x.owner, "endpoints", message}}
}
