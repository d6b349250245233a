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
	p := hostPlanner{
		Env: &e, engine: engine, rows: nb.State{}, nft: node.NewElements(), conns: map[netip.AddrPort]conn.Targets{},
		redirected: map[redirect.Service]redirect.Path{},
	}
	for _, f := range e.Frontends {
		// Nodes without this family do not serve it.
		if s := e.Stack(f.Family); s != nil {
			p.frontend(s, f)
		}
	}
	s, problems := p.engine.State()
	own := datapath.State{
		NB: p.rows, Host: host.State{Routes: p.routes}, Conn: conn.State{UDP: p.conns},
		Redirect: redirect.State{Services: p.redirected},
	}
	if len(e.Frontends) > 0 {
		own.NFT = nft.State{nft.Inet: p.nft.Table}
	}
	return datapath.Union(s, own), append(p.problems, problems...)
}

// Engine writes the state of Frontends for pods and external clients, as node.Engine describes.
// Each Frontend has its own rows or flows, so that a changed endpoint does not affect others.
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

// Variant is a kind of addresses at which a Frontend is served. With engine ovn, each kind has its
// own load balancers, and this suffix in their names.
type Variant string

const (
	NodePort  Variant = ":nodeport"
	External  Variant = ":external"
	AllByHost Variant = ":all" // all endpoints, for clients that come through the host
	OwnByHost Variant = ":own" // the node's own, for external clients that come through the host, under policy Local
)

// hostPlanner plans the host's part of Services.
type hostPlanner struct {
	*node.Env
	engine   Engine
	rows     nb.State
	nft      node.Elements
	conns    map[netip.AddrPort]conn.Targets
	problems []cluster.Problem
	routes   map[host.RouteKey]host.Route // to cluster IPs outside of the ranges

	redirected map[redirect.Service]redirect.Path
}

func (p *hostPlanner) problem(f *admission.Frontend, field, format string, args ...any) {
	p.problems = append(p.problems, cluster.Problem{Owner: f.Owner, Field: field,
		Message: fmt.Sprintf(format, args...)})
}

// Front is a Frontend on this node, with the endpoints that get new connections.
type Front struct {
	*admission.Frontend
	Stack                *node.Stack
	Cluster, Local       []netip.AddrPort // of the whole cluster, and of the node itself: see chooseEndpoints
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
func (p *hostPlanner) frontend(s *node.Stack, f *admission.Frontend) {
	if !p.clusterIP(s, f) {
		return
	}
	x := newFront(p.Env, s, f)
	p.engine.Frontend(&x)
	addClusterIP(p.nft, &x, x.served(p.Env))
	if f.NodePort != 0 && p.Config.Gateway.NodePort {
		p.external(&x, NodePort, nodePorts(p.Env, s, f))
		addNodePort(p.nft, &x)
	}
	if vips := f.External(); len(vips) > 0 {
		p.external(&x, External, vips)
		addExternals(p.nft, &x)
	}
	if !x.served(p.Env) {
		addRejected(p.nft, &x, ExternalAddresses(p.Env, s, f))
	}
	p.connections(&x)
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

// external serves addresses that external clients can use. These clients come from the external
// network, through the host (see serviceMaps), or by eBPF programs.
//
// The node of a pod serves the pod's connections to them, without the policy for external clients.
// An address with source ranges is the exception: the pod's host serves it, which checks the
// source.
func (p *hostPlanner) external(x *Front, variant Variant, vips []netip.AddrPort) {
	for _, v := range vips {
		if Redirects(p.Env, x, variant, v) && x.served(p.Env) {
			// With engine ovn, the bridge recognizes replies of a NodePort by their source.
			tracked := variant == External || p.Engine.ServiceBridge
			p.redirected[redirect.Service{Addr: v, Protocol: x.Protocol}] = redirect.Path{Tracked: tracked,
				Owner: x.Owner}
		}
	}
	p.engine.External(x, variant, vips)
}

// IsOwnHost reports whether an address is one of this node's host. The host itself translates
// external clients' connections to such an endpoint: its replies would not pass a load balancer of
// OVN.
func (x *Front) IsOwnHost(a netip.Addr) bool {
	return a == x.Stack.Address.Addr() || slices.Contains(x.Stack.Secondary, a)
}

// Match returns the match of packets to an address of a Frontend.
func Match(x *Front, m flow.Match, vip netip.AddrPort) flow.Match {
	m.Protocol, m.Dst, m.DstPort = node.Vocab(x.Family).L4[x.Protocol], node.HostPrefix(vip.Addr()), vip.Port()
	return m
}
