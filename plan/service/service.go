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
		redirected: map[redirect.Service]redirect.Path{},
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
	// External serves addresses that external clients can use, too: NodePorts (NodePort) or
	// external addresses (External).
	External(x *Front, variant Variant, vips []netip.AddrPort)
	// ClusterIP gives one cluster IP outside of service-cidrs what the ranges have.
	ClusterIP(s *node.Stack, to netip.Prefix, owner cluster.Owner)
	// State returns what the engine has written.
	State() (datapath.State, []cluster.Problem)
}

// Variant is the kind of addresses at which a Frontend is served. It ends the names of OVN's load
// balancers for them.
type Variant string

const (
	NodePort  Variant = ":nodeport"
	External  Variant = ":external"
	AllByHost Variant = ":all" // all endpoints, for clients that come through the host
	OwnByHost Variant = ":own" // the node's own, for external clients that come through the host, under policy Local
)

// planner plans the host's part of Services.
type planner struct {
	*node.Env
	engine   Engine
	rows     nb.State
	nft      node.Elements
	conns    map[netip.AddrPort]conn.Targets
	problems []cluster.Problem
	routes   map[host.RouteKey]host.Route // to cluster IPs outside of the ranges

	redirected map[redirect.Service]redirect.Path
}

func (b *planner) problem(f *admission.Frontend, field, format string, args ...any) {
	b.problems = append(b.problems, cluster.Problem{Owner: f.Owner, Field: field,
		Message: fmt.Sprintf(format, args...)})
}

// Front is a Frontend on this node, with the endpoints that get new connections.
type Front struct {
	*admission.Frontend
	Stack                *node.Stack
	Cluster, Local       []netip.AddrPort // of the whole cluster, and of the node itself: see choose
	Internal             []netip.AddrPort // endpoints for clients in the cluster, by internalTrafficPolicy
	LocalHost, LocalPods []netip.AddrPort // of externalTrafficPolicy Local: the host's, and the node's other endpoints
}

func newFront(e *node.Env, s *node.Stack, f *admission.Frontend) Front {
	x := Front{Frontend: f, Stack: s}
	x.Cluster, x.Local = chooseEndpoints(e, f.Frontend)
	if x.Internal = x.Cluster; f.InternalLocal {
		x.Internal = x.Local
	}
	if f.ExternalLocal {
		for _, a := range x.Local {
			if x.IsOwnHost(a.Addr()) {
				x.LocalHost = append(x.LocalHost, a)
			} else {
				x.LocalPods = append(x.LocalPods, a)
			}
		}
	}
	return x
}

// frontend plans one Frontend.
func (b *planner) frontend(s *node.Stack, f *admission.Frontend) {
	if !b.admitClusterIP(s, f) {
		return
	}
	x := newFront(b.Env, s, f)
	b.engine.Frontend(&x)
	addClusterIP(b.nft, &x, x.served(b.Env))
	if f.NodePort != 0 && b.Config.Gateway.NodePort {
		b.external(&x, NodePort, nodePorts(b.Env, s, f))
		addNodePort(b.nft, &x)
	}
	if vips := f.External(); len(vips) > 0 {
		b.external(&x, External, vips)
		addExternals(b.nft, &x)
	}
	if !x.served(b.Env) {
		addRejected(b.nft, &x, ExternalAddresses(b.Env, s, f))
	}
	b.connections(&x)
}

// served reports whether the engine gets connections to a Frontend. Otherwise the host rejects
// them.
func (x *Front) served(e *node.Env) bool { return e.Engine.Rejects || len(x.Cluster) > 0 }

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
func (b *planner) external(x *Front, variant Variant, vips []netip.AddrPort) {
	for _, v := range vips {
		if Redirects(b.Env, x, variant, v) && x.served(b.Env) {
			tracked := variant == External || b.Env.Engine.ServiceBridge
			b.redirected[redirect.Service{Addr: v, Protocol: x.Protocol}] = redirect.Path{Tracked: tracked,
				Owner: x.Owner}
		}
	}
	b.engine.External(x, variant, vips)
}

// IsOwnHost reports whether an address is one of this node's host. The host itself translates
// connections of external clients to it. The host's replies would not pass a load balancer of OVN.
func (x *Front) IsOwnHost(a netip.Addr) bool {
	return a == x.Stack.Address.Addr() || slices.Contains(x.Stack.Secondary, a)
}

// Match returns the match of packets to an address of a Frontend.
func Match(x *Front, m flow.Match, vip netip.AddrPort) flow.Match {
	m.Protocol, m.Dst, m.DstPort = node.Vocab(x.Family).L4[x.Protocol], node.HostPrefix(vip.Addr()), vip.Port()
	return m
}
