package service

import (
	"fmt"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/conn"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/datapath/redirect"
	"hairpin/plan/admission"
	"hairpin/plan/node"
)

// Plan plans the Frontends: which clients are served, on which address, by which endpoints. The
// node's engine writes the state for pods and external clients. The state for the host's own
// clients is the same with both engines.
func Plan(e node.Env, engine Engine) (datapath.State, []cluster.Problem) {
	b := planner{
		Env: &e, engine: engine, rows: nb.State{}, nft: node.NewElements(), conns: map[netip.AddrPort]conn.Targets{},
		redirected: map[redirect.Service]redirect.Way{},
	}
	for _, f := range e.Frontends {
		// Nodes without this family do not serve it.
		if s := e.Stack(f.Family); s != nil {
			b.frontend(s, f)
		}
	}
	s, problems := b.engine.State()
	own := datapath.State{
		NB: b.rows, Host: host.State{Routes: b.routes}, Conn: conn.State{UDP: b.conns},
		Redirect: redirect.State{Services: b.redirected},
	}
	if len(e.Frontends) > 0 {
		own.NFT = nft.State{nft.Inet: b.nft.Table}
	}
	return datapath.Union(s, own), append(b.problems, problems...)
}

// Engine writes the state of Frontends. Each has its own rows or flows, so that a changed endpoint
// does not affect others.
type Engine interface {
	// Frontend serves the cluster IP, and the proxy ports to which the host translates.
	Frontend(x *Front)
	// External serves addresses that external clients can use, too: NodePorts (wayNodePort) or
	// external addresses (WayExternal).
	External(x *Front, name string, vips []netip.AddrPort)
	// ClusterIP gives one cluster IP outside of service-cidrs what the ranges have.
	ClusterIP(s *node.Stack, to netip.Prefix, owner cluster.Owner)
	// State returns what the engine has written.
	State() (datapath.State, []cluster.Problem)
}

// planner plans the host's part of Services.
type planner struct {
	*node.Env
	engine   Engine
	rows     nb.State
	nft      node.Elements
	conns    map[netip.AddrPort]conn.Targets
	problems []cluster.Problem
	routes   map[host.RouteKey]host.Route // to cluster IPs outside of the ranges

	redirected map[redirect.Service]redirect.Way
}

func (b *planner) problem(f *admission.Frontend, field, format string, args ...any) {
	b.problems = append(b.problems, cluster.Problem{Owner: f.Owner, Field: field,
		Message: fmt.Sprintf(format, args...)})
}

// Front is a Frontend on this node.
type Front struct {
	*admission.Frontend
	chosen
	Stack                *node.Stack
	Internal             []netip.AddrPort // endpoints for clients in the cluster, by internalTrafficPolicy
	LocalHost, LocalPods []netip.AddrPort // of externalTrafficPolicy Local: the host's, and the node's other endpoints
}

func serve(e *node.Env, s *node.Stack, f *admission.Frontend) Front {
	c := choose(e, f.Frontend)
	x := Front{Frontend: f, chosen: c, Stack: s, Internal: c.Cluster}
	if f.InternalLocal {
		x.Internal = c.Local
	}
	if f.ExternalLocal {
		for _, a := range c.Local {
			if x.IsOwnHost(a.Addr()) {
				x.LocalHost = append(x.LocalHost, a)
			} else {
				x.LocalPods = append(x.LocalPods, a)
			}
		}
	}
	return x
}

func (b *planner) frontend(s *node.Stack, f *admission.Frontend) {
	if !b.outOfRange(s, f) {
		return
	}
	x := serve(b.Env, s, f)
	b.engine.Frontend(&x)
	served := b.Env.Engine.Rejects || len(x.Cluster) > 0
	addClusterIP(b.nft, &x, served)
	if f.NodePort != 0 && b.Config.Gateway.NodePort {
		b.external(&x, wayNodePort, nodePorts(b.Env, s, f))
		addNodePort(b.nft, &x)
	}
	if vips := f.External(); len(vips) > 0 {
		b.external(&x, WayExternal, vips)
		addExternals(b.nft, &x)
	}
	if !served {
		addRejected(b.nft, &x, ExternalAddresses(b.Env, s, f))
	}
	b.connections(&x)
}

// nodePorts returns the host's addresses at which a NodePort is served to pods.
func nodePorts(e *node.Env, s *node.Stack, f *admission.Frontend) []netip.AddrPort {
	var vips []netip.AddrPort
	for _, a := range e.NodePortAddresses(s) {
		if !slices.Contains(f.NoNodePort, a) {
			vips = append(vips, netip.AddrPortFrom(a, f.NodePort))
		}
	}
	return vips
}

// ExternalAddresses returns the addresses at which pods can use a Frontend, except its cluster IP.
func ExternalAddresses(e *node.Env, s *node.Stack, f *admission.Frontend) []netip.AddrPort {
	vips := f.External()
	if f.NodePort != 0 && e.Config.Gateway.NodePort {
		vips = append(vips, nodePorts(e, s, f)...)
	}
	return vips
}

// external serves addresses that external clients can use. The node of a pod serves the pod's
// connections to them, without the policy for external clients. An address with source ranges is
// the exception: the pod's host serves it, which checks the source. Clients come from the external
// network, through the host (see serviceMaps), or by eBPF programs.
func (b *planner) external(x *Front, name string, vips []netip.AddrPort) {
	for _, v := range vips {
		if Redirects(b.Env, x, name, v) && (b.Env.Engine.Rejects || len(x.Cluster) > 0) {
			tracked := name == WayExternal || b.Env.Engine.ServiceBridge
			b.redirected[redirect.Service{Addr: v, Protocol: x.Protocol}] = redirect.Way{Tracked: tracked,
				Owner: x.Owner}
		}
	}
	b.engine.External(x, name, vips)
}

// IsOwnHost reports whether an address is one of this node's host. The host itself translates
// connections of external clients to it. The host's replies would not pass a load balancer of OVN.
func (x *Front) IsOwnHost(a netip.Addr) bool {
	return a == x.Stack.Address.Addr() || slices.Contains(x.Stack.Secondary, a)
}

// Suffixes of load balancer names.
const (
	wayNodePort = ":nodeport"
	WayExternal = ":external"
	WayAll      = ":all" // for clients that come through the host
	WayOwn      = ":own" // for external clients that come through the host, under policy Local
)

// Match returns the match of packets to an address of a Frontend.
func Match(x *Front, m flow.Match, vip netip.AddrPort) flow.Match {
	m.Protocol, m.Dst, m.DstPort = node.Vocab(x.Family).L4[x.Protocol], node.HostPrefix(vip.Addr()), vip.Port()
	return m
}
