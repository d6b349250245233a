package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/conn"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/datapath/redirect"
)

// services plans the Frontends: who is served where, and by which endpoints. The node's engine writes that down for pods and external clients;
// what the host needs for its own clients is the same with both.
func services(e Env, engine engine) (datapath.State, []cluster.Problem) {
	b := balancer{
		Env: &e, engine: engine, rows: nb.State{}, nft: newElements(), conns: map[netip.AddrPort]conn.Targets{},
		redirected: map[redirect.Service]redirect.Way{},
	}
	for _, f := range e.Frontends {
		// A family that the node does not have reaches no Service here.
		if s := e.stack(f.Family); s != nil {
			b.frontend(s, f)
		}
	}
	s, problems := b.engine.state()
	own := datapath.State{
		NB: b.rows, Host: host.State{Routes: b.routes}, Conn: conn.State{UDP: b.conns},
		Redirect: redirect.State{Services: b.redirected},
	}
	if len(e.Frontends) > 0 {
		own.NFT = nft.State{nft.Inet: b.nft.Table}
	}
	return datapath.Union(s, own), append(b.problems, problems...)
}

// engine writes the ways to Frontends, one row or some flows for each, so that a changed endpoint costs nothing for the others.
type engine interface {
	// frontend serves the cluster IP, and what the host leads its own clients to.
	frontend(x *front)
	// outside serves addresses that external clients use, too: node ports (wayNodePort) or external addresses (wayExternal).
	outside(x *front, name string, vips []netip.AddrPort)
	// clusterIP gives one cluster IP outside of service-cidrs what the ranges have.
	clusterIP(s *Stack, to netip.Prefix, owner cluster.Owner)
	// rejects reports whether it rejects connections to a Service without endpoints. If not, the host does.
	rejects() bool
	// state is what was written.
	state() (datapath.State, []cluster.Problem)
}

// balancer plans what Services need.
type balancer struct {
	*Env
	engine   engine
	rows     nb.State
	nft      elements
	conns    map[netip.AddrPort]conn.Targets
	problems []cluster.Problem
	routes   map[host.RouteKey]host.Route // of cluster IPs outside of the ranges

	redirected map[redirect.Service]redirect.Way
}

func (b *balancer) problem(f *cluster.Frontend, field, format string, args ...any) {
	b.problems = append(b.problems, cluster.Problem{Owner: f.Owner, Field: field, Message: fmt.Sprintf(format, args...)})
}

// front is a Frontend on this node.
type front struct {
	*cluster.Frontend
	chosen
	stack              *Stack
	internal, external []netip.AddrPort // endpoints by policy: within the cluster, and for clients outside
	ownHost, ownPods   []netip.AddrPort // endpoints of externalTrafficPolicy Local: the host's, and the node's others
}

func (e *Env) front(s *Stack, f *cluster.Frontend) front {
	c := choose(e, f)
	x := front{Frontend: f, chosen: c, stack: s, internal: c.cluster, external: c.cluster}
	if f.InternalLocal {
		x.internal = c.local
	}
	if f.ExternalLocal {
		x.external = c.local
		for _, a := range c.local {
			if x.isHost(a.Addr()) {
				x.ownHost = append(x.ownHost, a)
			} else {
				x.ownPods = append(x.ownPods, a)
			}
		}
	}
	return x
}

func (b *balancer) frontend(s *Stack, f *cluster.Frontend) {
	if !b.outOfRange(s, f) {
		return
	}
	x := b.front(s, f)
	b.engine.frontend(&x)
	served := b.engine.rejects() || len(x.cluster) > 0
	b.nft.clusterIP(&x, served)
	if f.NodePort != 0 && b.Config.Gateway.NodePort {
		b.outside(&x, wayNodePort, b.nodePorts(s, f))
		b.nft.nodePort(&x)
	}
	if vips := f.External(); len(vips) > 0 {
		b.outside(&x, wayExternal, vips)
		b.nft.externals(&x)
	}
	if !served {
		b.nft.refused(&x, b.outer(s, f))
	}
	b.connections(&x)
}

// nodePorts are the addresses of the host on which pods find a NodePort.
func (e *Env) nodePorts(s *Stack, f *cluster.Frontend) []netip.AddrPort {
	var vips []netip.AddrPort
	for _, a := range e.nodePortAddresses(s) {
		if !slices.Contains(f.NoNodePort, a) {
			vips = append(vips, netip.AddrPortFrom(a, f.NodePort))
		}
	}
	return vips
}

// outer are the addresses on which pods find a Frontend, but its cluster IP.
func (e *Env) outer(s *Stack, f *cluster.Frontend) []netip.AddrPort {
	vips := f.External()
	if f.NodePort != 0 && e.Config.Gateway.NodePort {
		vips = append(vips, e.nodePorts(s, f)...)
	}
	return vips
}

// outside serves addresses that external clients use. A pod finds them where it is, and the policy for external clients does not count
// there; what is not for everybody it finds on its host, which looks at the source. Clients come from the external network, or by the
// host, see serviceMaps, or by eBPF programs.
func (b *balancer) outside(x *front, name string, vips []netip.AddrPort) {
	for _, v := range vips {
		if b.redirects(x, name, v) && (b.engine.rejects() || len(x.cluster) > 0) {
			tracked := name == wayExternal || b.Node.Gateway.OpenFlow
			b.redirected[redirect.Service{Addr: v, Protocol: x.Protocol}] = redirect.Way{Tracked: tracked, Owner: x.Owner}
		}
	}
	b.engine.outside(x, name, vips)
}

// isHost reports whether an address is one of this node's host. Clients outside are led to it by the host itself: from a load
// balancer of OVN's, the host would answer past that.
func (x *front) isHost(a netip.Addr) bool {
	return a == x.stack.Address.Addr() || slices.Contains(x.stack.Others, a)
}

// Names of ways.
const (
	wayNodePort = ":nodeport"
	wayExternal = ":external"
	wayAll      = ":all" // for clients by the host
	wayOwn      = ":own" // for clients outside by the host, under policy Local
)
