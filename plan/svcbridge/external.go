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

// toServices leads packets from the external network to an address of a Service to
// claims.ServiceBridge.
func toServices(b *node.Bridge, x *service.Front, vip netip.AddrPort) {
	nodePort(b, x, vip)
	m, to := service.Match(x, flow.Match{}, vip), []flow.Action{flow.Output{Port: claims.ServicesPatch}}
	if x.Protocol != cluster.TCP && podsBehind(x) { // TCP knows from the pod how long a packet may be
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
// pods' MTU that of the path: a client that is another node's host keeps what it learns for all
// that it sends to this node.
func podsBehind(x *service.Front) bool {
	to := x.Cluster
	if x.ExternalLocal {
		to = x.LocalPods
	}
	return slices.ContainsFunc(to, func(a netip.AddrPort) bool {
		return slices.ContainsFunc(x.Stack.Cluster, func(r netip.Prefix) bool { return r.Contains(a.Addr()) })
	})
}

// ethernetHeader is the length of what comes before a packet in its frame.
const ethernetHeader = 14

// externalToServices looks at what comes from the external network for Services first, but at
// fragments, which may lack the port, after conntrack has put them together. What the bridge's own
// zone does not know may belong to a connection to a Service that is gone, or be an ICMP error
// about one. What is nobody's is the host's. Answers go where claims.ServiceBridge says.
func externalToServices(b *node.Bridge, s *node.Stack) {
	ip := node.Vocab(s.Family).IP
	out := flow.Output{Port: claims.ServicesPatch}
	b.Classify(node.PrioFromUplink+1, flow.Match{InPort: b.Uplink, EthDst: b.Mac, Protocol: ip, Fragment: "no"},
		flow.Resubmit{Table: pipeline.GatewayServices})
	host := []flow.Action{flow.CT{Commit: true, Zone: claims.ZoneUplink, Mark: claims.CTMarkHost}, flow.SetPktMark{},
		flow.Output{Port: flow.Local}}
	// What is too long for pods the host forwards: it fragments it, or reports the pods' MTU to the
	// client.
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
