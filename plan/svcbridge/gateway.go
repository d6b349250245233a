package svcbridge

import (
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/pipeline"
	"hairpin/plan/node"
	"hairpin/plan/service"
)

// addExternalAddress sends packets from the external network to an address of a Service to
// claims.ServiceBridge.
func addExternalAddress(b *node.Bridge, x *service.Front, vip netip.AddrPort) {
	recordNodeConnections(b, x, vip)
	m, to := service.Match(x, flow.Match{}, vip), []flow.Action{flow.Output{Port: claims.ServicesPatch}}
	if x.Protocol != cluster.TCP && hasPodEndpoints(x) { // TCP learns the packet size from the pod
		to = []flow.Action{flow.MarkLonger{Length: uint16(b.Env.Config.MTU + ethernetHeader)},
			flow.Resubmit{Table: pipeline.GatewayServiceMTU}}
	}
	if !x.RestrictsSources(vip) {
		b.Add(pipeline.GatewayServices, node.PrioNodePort, m, to...)
		return
	}
	for _, r := range x.SourceRanges {
		from := m
		from.Src = r
		b.Add(pipeline.GatewayServices, node.PrioNodePort, from, to...)
	}
	b.Add(pipeline.GatewayServices, node.PrioSourceDenied, m, flow.Drop{})
}

// hasPodEndpoints reports whether pods are among the endpoints of external clients. Only then does
// the pods' MTU limit the path. It must not be reported otherwise: a client that is another node's
// host uses the MTU that it learns for all its packets to this node.
func hasPodEndpoints(x *service.Front) bool {
	to := x.Cluster
	if x.ExternalLocal {
		to = x.LocalPods
	}
	return slices.ContainsFunc(to, func(a netip.AddrPort) bool {
		return slices.ContainsFunc(x.Stack.Cluster, func(r netip.Prefix) bool { return r.Contains(a.Addr()) })
	})
}

// ethernetHeader is the length of a frame's Ethernet header.
const ethernetHeader = 14

// externalToServices looks up packets from the external network in the flows of Services first.
// Fragments may lack the port, so they are looked up after conntrack has reassembled them. A packet
// that the bridge's own zone does not know may belong to a connection of a deleted Service, or be
// an ICMP error about one. All other packets go to the host. Replies go where claims.ServiceBridge
// sends them.
func externalToServices(b *node.Bridge, s *node.Stack) {
	ip := node.Vocab(s.Family).IP
	out := flow.Output{Port: claims.ServicesPatch}
	b.Classify(node.PrioFromUplink+1, flow.Match{InPort: b.Uplink, EthDst: b.MAC, Protocol: ip, Fragment: "no"},
		flow.Resubmit{Table: pipeline.GatewayServices})
	host := []flow.Action{flow.CT{Commit: true, Zone: claims.ZoneUplink, Mark: claims.CTMarkHost}, flow.SetPktMark{},
		flow.Output{Port: flow.Local}}
	// The host forwards packets that are too long for pods: it fragments them, or reports the pods'
	// MTU to the client.
	b.Add(pipeline.GatewayServiceMTU, node.PrioKnown, flow.Match{Protocol: ip, PktMark: 1}, host...)
	b.Add(pipeline.GatewayServiceMTU, node.PrioRest, flow.Match{}, out)
	b.Add(pipeline.GatewayServices, node.PrioRest, flow.Match{Protocol: ip}, node.TrackFromUplink)
	b.Add(pipeline.GatewayUplinkConntrack, node.PrioNew,
		flow.Match{Protocol: ip, CTState: flow.CTState{Set: flow.CTTrk}},
		flow.Resubmit{Table: pipeline.GatewayServices})
	b.Add(pipeline.GatewayServices, node.PrioNew, flow.Match{Protocol: ip, CTState: flow.CTState{Set: flow.CTTrk}},
		flow.CT{Zone: claims.ZoneServices, Table: pipeline.GatewayServiceConntrack})
	for _, bit := range []flow.CTBits{flow.CTEst, flow.CTRel} {
		b.Add(pipeline.GatewayServiceConntrack, node.PrioKnown,
			flow.Match{Protocol: ip, CTState: flow.CTState{Set: bit | flow.CTTrk}}, out)
	}
	b.Add(pipeline.GatewayServiceConntrack, node.PrioRest, flow.Match{Protocol: ip}, host...)
	b.Classify(node.PrioTrack, flow.Match{InPort: claims.ServicesPatch, Protocol: ip}, flow.Output{Port: b.Uplink})
	nodeConnectionTables(b, s)
	// Replies to the node's own connections come back with the bridge's MAC as their destination.
	returned := flow.Match{InPort: claims.ServicesPatch, Protocol: ip}
	b.Add(pipeline.GatewayUplinkConntrack, node.PrioTracked, returned, flow.Drop{})
	returned.EthDst = b.MAC
	b.Classify(node.PrioTrack+1, returned, node.TrackFromUplink)
}

// recordNodeConnections records connections that the host, or pods that leave with the node's
// address, begin from a port of a Service at that address. It uses ZoneServices, where the reply is
// looked up first. With the zone of the gateway bridge alone, each packet of external clients would
// need one more lookup and recirculation, more than the userspace datapath permits.
func recordNodeConnections(b *node.Bridge, x *service.Front, at netip.AddrPort) {
	if at.Addr() == x.Stack.Address.Addr() || slices.Contains(x.Stack.Secondary, at.Addr()) {
		from := flow.Match{Protocol: node.Vocab(x.Family).L4[x.Protocol], Src: node.HostPrefix(at.Addr()),
			SrcPort: at.Port()}
		b.Classify(node.PrioTrack+2, from, flow.Resubmit{Table: pipeline.GatewayNodePortSource})
	}
}

// nodeConnectionTables adds the flows that record the connections of recordNodeConnections. Packets
// from claims.ServiceBridge are replies of the Service. A reply of the host itself, such as to a
// packet too long for pods, is not recorded: an external client began that connection.
func nodeConnectionTables(b *node.Bridge, s *node.Stack) {
	ip := node.Vocab(s.Family).IP
	b.Add(pipeline.GatewayNodePortSource, node.PrioKnown, flow.Match{InPort: claims.ServicesPatch, Protocol: ip},
		flow.Output{Port: b.Uplink})
	for _, m := range []flow.Match{{InPort: flow.Local, Protocol: ip}, {InPort: b.OVN, EthSrc: b.MAC, Protocol: ip}} {
		mark := uint32(claims.CTMarkHost)
		if m.InPort == b.OVN {
			mark = claims.CTMarkOVN
		}
		commit, out := flow.CT{Commit: true, Zone: claims.ZoneUplink, Mark: mark}, flow.Output{Port: b.Uplink}
		b.Add(pipeline.GatewayNodePortSource, node.PrioKnown, m,
			flow.CT{Zone: claims.ZoneUplink, Table: pipeline.GatewayNodeConntrack})
		b.Add(pipeline.GatewayNodeConntrack, node.PrioNew, m, commit,
			flow.CT{Commit: true, Zone: claims.ZoneServices, Mark: claims.CTMarkNode}, out)
		m.CTState.Set = flow.CTTrk | flow.CTRpl
		b.Add(pipeline.GatewayNodeConntrack, node.PrioKnown, m, commit, out)
	}
	// No other port may send from the node's address.
	for _, table := range []uint8{pipeline.GatewayNodePortSource, pipeline.GatewayNodeConntrack} {
		b.Add(table, node.PrioRest, flow.Match{}, flow.Drop{})
	}
}
