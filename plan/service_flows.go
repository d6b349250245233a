package plan

import (
	"fmt"
	"net/netip"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/plan/admission"
)

// switchboardPods are a node's pods on claims.ServiceBridge, in place of ports of OVN.
func switchboardPods(e Env) (datapath.State, []cluster.Problem) {
	if !e.Node.Gateway.OpenFlow || len(e.Pods) == 0 {
		return datapath.State{}, nil
	}
	w := newSwitchboard(&e)
	for _, p := range e.Pods {
		w.pod(p)
	}
	return datapath.State{Bridge: w.State}, nil
}

// serviceFlows is the engine that makes flows and groups of claims.ServiceBridge of Frontends.
type serviceFlows struct {
	*switchboard
	wire *bridge
}

func newServiceFlows(e *Env) *serviceFlows {
	return &serviceFlows{newSwitchboard(e), newBridge(e, claims.FeatureServices)}
}

func (w *serviceFlows) state() (datapath.State, []cluster.Problem) {
	w.Flows.Insert(w.wire.flows.All())
	return datapath.State{Bridge: w.State}, w.problems
}

func (w *serviceFlows) rejects() bool { return false }

// prioClusterIP is the priority of a cluster IP outside of the ranges, in tables where an external IP has prioVIP.
const prioClusterIP = prioVIP + 1

func (w *serviceFlows) clusterIP(s *Stack, to netip.Prefix, owner cluster.Owner) {
	w.owner = owner
	w.toVIPs(prioClusterIP, to)
	w.add(claims.TableArrives, prioClusterIP,
		flow.Match{InPort: claims.ServiceHost, Protocol: words(s.Family).ip, Dst: to}, track(claims.ZoneServices, claims.TableToVIP))
}

// outside leads external clients to claims.ServiceBridge, but where the host is an endpoint under policy Local: new clients are the host's then.
func (w *serviceFlows) outside(x *front, name string, vips []netip.AddrPort) {
	if w.Mode.ClientsByHost || len(x.ownHost) > 0 || len(x.cluster) == 0 {
		return
	}
	w.wire.owner = x.Owner
	for _, v := range vips {
		if name == wayExternal || v.Addr() == x.stack.Address.Addr() {
			w.wire.toServices(x, v)
		}
	}
}

// Priorities in TableServices.
const (
	prioServed  = 200
	prioGuarded = 205 // a load balancer's address, for all
	prioRange   = 210 // the same, for those who may
	prioKeeps   = 20  // more than these: clients outside, under policy Local
)

// frontend serves pods, the host and clients outside. Pods and the host find all endpoints at addresses from outside: the policy for clients
// outside does not count. What has no endpoint at all is the host's to refuse, as what has no Service: of a cluster IP by itself, of other
// addresses by the mark.
func (w *switchboard) frontend(x *front) {
	w.owner = x.Owner
	internal := toAllEndpoints
	if x.InternalLocal {
		internal = toInternal
	}
	w.lead(x, prioServed, flow.Match{}, netip.AddrPortFrom(x.ClusterIP, x.Port), internal)
	outer := w.outer(x.stack, x.Frontend)
	for _, v := range outer {
		w.external(x, v)
	}
	if x.NodePort == 0 && len(outer) == 0 || len(x.cluster) == 0 {
		return
	}
	// What the host leads to, for itself and for clients that come by it.
	port := admission.ProxyPort(x.Frontend)
	if x.standsIn() {
		w.lead(x, prioServed, flow.Match{}, netip.AddrPortFrom(x.stack.MasqAll, port), toAllEndpoints)
	}
	if x.ExternalLocal && (len(x.ownHost) == 0 || len(x.ownPods) > 0) {
		w.lead(x, prioServed, flow.Match{}, netip.AddrPortFrom(x.stack.MasqLocal, port), toOwnPods)
	}
}

// external serves an address from outside, of a load balancer's perhaps only to those who may.
func (w *switchboard) external(x *front, vip netip.AddrPort) {
	serve := func(priority uint16, from netip.Prefix) {
		w.lead(x, priority, flow.Match{Src: from}, vip, toAllEndpoints)
		if x.ExternalLocal && w.wired() && len(x.cluster) > 0 {
			w.lead(x, priority+prioKeeps, flow.Match{Src: from, InPort: claims.WirePatch}, vip, toOwnPods)
		}
	}
	if !x.guards(vip) {
		serve(prioServed, netip.Prefix{})
		return
	}
	for _, r := range x.SourceRanges {
		serve(prioRange, r)
	}
	w.serve(x, prioGuarded, flow.Match{}, vip, flow.Drop{})
}

// match is what goes to an address of a Frontend.
func match(x *front, m flow.Match, vip netip.AddrPort) flow.Match {
	m.Protocol, m.Dst, m.DstPort = words(x.Family).l4[x.Protocol], single(vip.Addr()), vip.Port()
	return m
}

// lead adds a flow for an address: what happens to new connections. With no endpoint of a kind, but others, packets are dropped, so that the
// client tries elsewhere; with none anywhere the host refuses.
func (w *switchboard) lead(x *front, priority uint16, m flow.Match, vip netip.AddrPort, way uint8) {
	to := map[uint8][]netip.AddrPort{toAllEndpoints: x.cluster, toInternal: x.internal, toOwnPods: x.ownPods}[way]
	switch {
	case len(to) > 0:
		w.serve(x, priority, m, vip, toGroup(x, w.group(x, way, to))...)
	case len(x.cluster) > 0:
		w.serve(x, priority, m, vip, flow.Drop{})
	case vip.Addr() != x.ClusterIP:
		w.serve(x, priority, m, vip, flow.SetPktMark{Mark: claims.MarkRefused}, flow.Resubmit{Table: claims.TableDeliver})
	}
}

// serve says what happens to new connections to an address. Open vSwitch lets no flow see the port of a fragment (ovs-fields(7), nw_frag). The
// kernel's conntrack puts fragments together; that of the userspace datapath does not, but knows where all of them go. Only UDP has fragments:
// TCP and SCTP send what fits.
func (w *switchboard) serve(x *front, priority uint16, m flow.Match, vip netip.AddrPort, actions ...flow.Action) {
	m = match(x, m, vip)
	w.add(claims.TableServices, priority, m, actions...)
	if x.Protocol == cluster.UDP && w.Node.Gateway.Userspace {
		m.Protocol, m.DstPort, m.Fragment, m.CTState = words(x.Family).ip, 0, "yes", flow.CTState{Set: flow.CTNew | flow.CTTrk}
		m.CTProtocol, m.CTDstPort = uint8(x.Protocol), vip.Port()
		w.add(claims.TableServices, priority, m, actions...)
	}
}

func (w *switchboard) problem(x *front, format string, args ...any) {
	w.problems = append(w.problems, cluster.Problem{Owner: x.Owner, Message: fmt.Sprintf(format, args...)})
}
