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

// toServices sends packets from the external network to an address of a Service to
// claims.ServiceBridge.
func toServices(b *node.Bridge, x *service.Front, vip netip.AddrPort) {
	nodePort(b, x, vip)
	m, to := service.Match(x, flow.Match{}, vip), []flow.Action{flow.Output{Port: claims.ServicesPatch}}
	if x.Protocol != cluster.TCP && podsBehind(x) { // TCP learns the packet size from the pod
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
	b.Add(pipeline.GatewayServices, node.PrioBarred, m, flow.Drop{})
}

// podsBehind reports whether pods are among the endpoints of external clients. Only then is the
// pods' MTU that of the path: a client that is another node's host uses the MTU that it learns for
// all its packets to this node.
func podsBehind(x *service.Front) bool {
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
	b.Classify(node.PrioFromUplink+1, flow.Match{InPort: b.Uplink, EthDst: b.Mac, Protocol: ip, Fragment: "no"},
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
	nodePorts(b, s)
	// Replies to the node's own connections come back with the bridge's MAC as their destination.
	returned := flow.Match{InPort: claims.ServicesPatch, Protocol: ip}
	b.Add(pipeline.GatewayUplinkConntrack, node.PrioTracked, returned, flow.Drop{})
	returned.EthDst = b.Mac
	b.Classify(node.PrioTrack+1, returned, node.TrackFromUplink)
}
