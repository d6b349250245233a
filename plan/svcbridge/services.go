package svcbridge

import (
	"fmt"
	"net/netip"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/pipeline"
	"hairpin/plan/node"
	"hairpin/plan/service"
)

// Pods plans the ports of a node's pods on claims.ServiceBridge, in place of ports of OVN.
func Pods(e node.Env) (datapath.State, []cluster.Problem) {
	if !e.Engine.ServiceBridge || len(e.Pods) == 0 {
		return datapath.State{}, nil
	}
	w := newServiceBridge(&e)
	for _, p := range e.Pods {
		w.pod(p)
	}
	return datapath.State{Bridge: w.State}, nil
}

// Engine writes Frontends as flows and groups of claims.ServiceBridge.
type Engine struct {
	*serviceBridge
	gateway *node.Bridge
}

// NewEngine returns an Engine that has written nothing yet.
func NewEngine(e *node.Env) *Engine {
	return &Engine{newServiceBridge(e), node.NewBridge(e, claims.FeatureServices)}
}

func (w *Engine) State() (datapath.State, []cluster.Problem) {
	w.Flows.Insert(w.gateway.Flows.All())
	return datapath.State{Bridge: w.serviceBridge.State}, w.problems
}

// prioClusterIP is the priority of a cluster IP outside of the ranges, in tables where an external
// IP has prioVIP.
const prioClusterIP = prioVIP + 1

func (w *Engine) ClusterIP(s *node.Stack, to netip.Prefix, owner cluster.Owner) {
	w.owner = owner
	w.trackVIPs(prioClusterIP, to)
	w.add(pipeline.SvcClassifier, prioClusterIP,
		flow.Match{InPort: claims.ServiceHost, Protocol: node.Vocab(s.Family).IP, Dst: to},
		track(claims.ZoneServices, pipeline.SvcServiceConntrack))
}

// External sends packets of external clients to claims.ServiceBridge. It does not where the host is
// an endpoint under policy Local: then the host translates new connections.
func (w *Engine) External(x *service.Front, variant service.Variant, vips []netip.AddrPort) {
	if w.Mode.ClientsByHost || len(x.LocalHost) > 0 || len(x.Cluster) == 0 {
		return
	}
	w.gateway.Owner = x.Owner
	for _, v := range vips {
		if variant == service.External || v.Addr() == x.Stack.Address.Addr() {
			addExternalAddress(w.gateway, x, v)
		}
	}
}

// Priorities in pipeline.SvcServiceLB.
const (
	prioServed        = 200
	prioSourceDenied  = 205 // a load balancer's address, from all sources
	prioSourceAllowed = 210 // the same, from permitted sources
	prioKeepSource    = 20  // added to these: external clients under policy Local
)

// Frontend serves pods, the host and external clients. Pods and the host use all endpoints at
// external addresses: the policy for external clients does not apply to them. The host rejects
// connections to a Service without any endpoint: of cluster IPs by its own rules, of other
// addresses by the packet mark.
func (w *Engine) Frontend(x *service.Front) {
	w.owner = x.Owner
	internal := toAllEndpoints
	if x.InternalLocal {
		internal = toInternal
	}
	w.addVIP(x, prioServed, flow.Match{}, netip.AddrPortFrom(x.ClusterIP, x.Port), internal)
	external := service.ExternalAddresses(w.Env, x.Stack, x.Frontend)
	for _, v := range external {
		w.addExternal(x, v)
	}
	if x.NodePort == 0 && len(external) == 0 || len(x.Cluster) == 0 {
		return
	}
	// The host translates to these, for itself and for clients that come through it.
	port := x.ProxyPort()
	if x.UsesProxyPort() {
		w.addVIP(x, prioServed, flow.Match{}, netip.AddrPortFrom(x.Stack.MasqAll, port), toAllEndpoints)
	}
	if x.ExternalLocal && (len(x.LocalHost) == 0 || len(x.LocalPods) > 0) {
		w.addVIP(x, prioServed, flow.Match{}, netip.AddrPortFrom(x.Stack.MasqLocal, port), toOwnPods)
	}
}

// addExternal serves an external address; for a load balancer's, maybe only some source ranges.
func (w *serviceBridge) addExternal(x *service.Front, vip netip.AddrPort) {
	serve := func(priority uint16, from netip.Prefix) {
		w.addVIP(x, priority, flow.Match{Src: from}, vip, toAllEndpoints)
		if x.ExternalLocal && w.HasExternalPatch() && len(x.Cluster) > 0 {
			w.addVIP(x, priority+prioKeepSource, flow.Match{Src: from, InPort: claims.ExternalPatch}, vip, toOwnPods)
		}
	}
	if !x.RestrictsSources(vip) {
		serve(prioServed, netip.Prefix{})
		return
	}
	for _, r := range x.SourceRanges {
		serve(prioSourceAllowed, r)
	}
	w.addService(x, prioSourceDenied, flow.Match{}, vip, flow.Drop{})
}

// addVIP adds the flow for new connections to an address. Without an endpoint of the variant, but
// with others, it drops packets, so that the client tries elsewhere. Without any endpoint, the host
// rejects.
func (w *serviceBridge) addVIP(x *service.Front, priority uint16, m flow.Match, vip netip.AddrPort, variant uint8) {
	to := map[uint8][]netip.AddrPort{toAllEndpoints: x.Cluster, toInternal: x.Internal, toOwnPods: x.LocalPods}[variant]
	switch {
	case len(to) > 0:
		w.addService(x, priority, m, vip, toGroup(x, w.group(x, variant, to))...)
	case len(x.Cluster) > 0:
		w.addService(x, priority, m, vip, flow.Drop{})
	case vip.Addr() != x.ClusterIP:
		w.addService(x, priority, m, vip, flow.SetPktMark{Mark: claims.MarkRejected},
			flow.Resubmit{Table: pipeline.SvcL2Forwarding})
	}
}

// addService adds the actions for new connections to an address. Only UDP has fragments: TCP and
// SCTP send packets that fit.
func (w *serviceBridge) addService(x *service.Front, priority uint16, m flow.Match, vip netip.AddrPort,
	actions ...flow.Action) {
	m = service.Match(x, m, vip)
	w.add(pipeline.SvcServiceLB, priority, m, actions...)
	if x.Protocol == cluster.UDP && w.Node.Gateway.Userspace {
		w.add(pipeline.SvcServiceLB, priority, node.Fragments(node.Vocab(x.Family), m), actions...)
	}
}

func (w *serviceBridge) problem(x *service.Front, format string, args ...any) {
	w.problems = append(w.problems, cluster.Problem{Owner: x.Owner, Message: fmt.Sprintf(format, args...)})
}
