package plan

import (
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/datapath/flow"
)

// replies handles packets of the reply direction before Services are looked up, so that a Service
// at the client's address does not take them. The client may have a Service address itself, such as
// a load balancer, or another user may have listed the client's address in spec.externalIPs.
// Packets that the host or external clients send in the reply direction reply to no pod and are
// dropped.
func (w *switchboard) replies(v vocabulary) {
	// The userspace datapath sets no direction bit with +inv, but translates the packet: match +snat.
	external := flow.Match{Protocol: v.ip, CTMark: claims.CTMarkOutside, CTState: flow.CTState{Set: flow.CTTrk | flow.CTSnat}}
	w.add(claims.TableToVIP, prioOutside+1, external, flow.SetEthDstByCT{}, flow.Resubmit{Table: claims.TableOutside})
	reply := tracked(v.ip, flow.CTRpl, flow.CTRel)
	w.add(claims.TableToVIP, prioSelf, reply, flow.Resubmit{Table: claims.TableServed})
	for _, port := range w.outside() {
		reply.InPort = port
		w.add(claims.TableToVIP, prioOutside, reply, flow.Drop{})
	}
}

// nodeConnections returns replies to connections of the node itself to the gateway bridge, which
// sends here what has a Service port at the node's address as its destination.
func (w *switchboard) nodeConnections(s *Stack) {
	if w.hasExternalClients() {
		m := flow.Match{InPort: claims.WirePatch, Protocol: words(s.Family).ip, CTMark: claims.CTMarkNode}
		m.CTState.Set = flow.CTTrk | flow.CTRpl
		w.add(claims.TableToVIP, prioOutside+1, m, flow.InPort{})
	}
}

// hasExternalClients reports whether the gateway bridge sends external clients' packets from its uplink
// to claims.ServiceBridge.
func (e *Env) hasExternalClients() bool {
	return e.Node.Gateway.OpenFlow && e.Mode.Uplink && !e.Mode.ClientsByHost
}

// nodePort notes connections that the host and the pods, which leave with the node's address, begin
// from a port of a Service at that address: in ZoneServices, where the reply is looked up first. The
// zone of the gateway bridge alone would cost each packet of external clients a lookup more, for which
// the userspace datapath has no recirculation left.
func (b *bridge) nodePort(x *front, at netip.AddrPort) {
	if at.Addr() == x.stack.Address.Addr() || slices.Contains(x.stack.Others, at.Addr()) {
		from := flow.Match{Protocol: words(x.Family).l4[x.Protocol], Src: single(at.Addr()), SrcPort: at.Port()}
		b.classify(prioTrack+2, from, flow.Resubmit{Table: claims.TableNodePort})
	}
}

// nodePorts does so for whoever sends from such a port. What claims.ServiceBridge sends are replies of
// the Service. A reply of the host's own, such as to a packet that was too long for pods, is noted
// nowhere: an external client began that connection.
func (b *bridge) nodePorts(s *Stack) {
	ip := words(s.Family).ip
	b.add(claims.TableNodePort, prioKnown, flow.Match{InPort: claims.ServicesPatch, Protocol: ip}, flow.Output{Port: b.uplink})
	for _, m := range []flow.Match{{InPort: flow.Local, Protocol: ip}, {InPort: b.ovn, EthSrc: b.mac, Protocol: ip}} {
		owner := uint32(claims.CTMarkHost)
		if m.InPort == b.ovn {
			owner = claims.CTMarkOVN
		}
		commit, out := flow.CT{Commit: true, Zone: claims.ZoneUplink, Mark: owner}, flow.Output{Port: b.uplink}
		b.add(claims.TableNodePort, prioKnown, m, flow.CT{Zone: claims.ZoneUplink, Table: claims.TableNodeConn})
		b.add(claims.TableNodeConn, prioNew, m, commit, flow.CT{Commit: true, Zone: claims.ZoneServices, Mark: claims.CTMarkNode}, out)
		m.CTState.Set = flow.CTTrk | flow.CTRpl
		b.add(claims.TableNodeConn, prioKnown, m, commit, out)
	}
	for _, table := range []uint8{claims.TableNodePort, claims.TableNodeConn} { // nobody else has the node's address
		b.add(table, prioRest, flow.Match{}, flow.Drop{})
	}
}
