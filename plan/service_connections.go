package plan

import (
	"net/netip"

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

// nodeConnections returns replies to connections of the node itself to the gateway bridge. The host
// and the pods, which leave with the node's address, may use a source port that is also a NodePort
// or a Service port at that address. The gateway bridge cannot know: it sends every packet to such a
// port here. Only the first packet of a Service connection takes the additional conntrack pass.
func (w *switchboard) nodeConnections(s *Stack) {
	if !w.Mode.Uplink || w.Mode.ClientsByHost {
		return
	}
	ip := words(s.Family).ip
	for _, a := range append([]netip.Addr{s.Address.Addr()}, s.Others...) {
		m := tracked(ip, flow.CTNew, flow.CTRel|flow.CTDnat)
		m.InPort, m.Dst = claims.WirePatch, single(a)
		w.add(claims.TableToVIP, prioFrom, m, flow.CT{Zone: claims.ZoneUplink, Table: claims.TableNodeReply})
	}
	w.add(claims.TableNodeReply, prioTo, tracked(ip, flow.CTEst|flow.CTRpl, 0), flow.InPort{})
	w.add(claims.TableNodeReply, prioOthers, flow.Match{Protocol: ip}, flow.Resubmit{Table: claims.TableServices})
}
