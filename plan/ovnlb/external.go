package ovnlb

import (
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/datapath/flow"
	"hairpin/pipeline"
	"hairpin/plan/node"
	"hairpin/plan/service"
)

// addExternalAddress sends packets from the external network to an address of a Service to the
// gateway router. It records the connection as OVN's, so that replies and ICMP errors need no flow
// of their own. Conntrack is looked up before: a connection may be the host's. Under policy Local,
// the host may have translated it to an endpoint of its own, or to a pod while it had such an
// endpoint.
func addExternalAddress(b *node.Bridge, x *service.Front, vip netip.AddrPort) {
	m := service.Match(x, flow.Match{}, vip)
	actions := []flow.Action{flow.CT{Commit: true, Zone: claims.ZoneUplink, Mark: claims.CTMarkOVN},
		flow.Output{Port: b.OVN}}
	if !x.RestrictsSources(vip) {
		fromUplinkTo(b, x, m, node.PrioNodePort, node.PrioTracked, actions...)
		return
	}
	for _, r := range x.SourceRanges {
		from := m
		from.Src = r
		fromUplinkTo(b, x, from, node.PrioNodePort, node.PrioTracked, actions...)
	}
	fromUplinkTo(b, x, m, node.PrioSourceDenied, node.PrioSourceDeniedTracked, flow.Drop{})
}

// addReplies sends the gateway router's replies from an external address to the uplink, as fromOVN
// does. Replies of NodePorts from the same address go to the host instead.
func addReplies(b *node.Bridge, x *service.Front, vip netip.AddrPort) {
	b.Classify(node.PrioExternalReply, flow.Match{InPort: b.OVN, EthSrc: b.MAC,
		Protocol: node.Vocab(x.Family).L4[x.Protocol], Src: node.HostPrefix(vip.Addr()), SrcPort: vip.Port()},
		flow.CT{Commit: true, Zone: claims.ZoneUplink, Mark: claims.CTMarkOVN}, flow.Output{Port: b.Uplink})
}

// fromUplinkTo adds a flow for packets from the uplink after conntrack. On the userspace datapath,
// packets that may go to an endpoint on this host get a flow before conntrack as well. Without
// conntrack they have seven recirculations, and eight are too many. The arguments untracked and
// tracked are the priorities of the flow before and after conntrack.
func fromUplinkTo(b *node.Bridge, x *service.Front, m flow.Match, untracked, tracked uint16, actions ...flow.Action) {
	b.Add(pipeline.GatewayUplinkConntrack, tracked, m, slices.Clone(actions)...)
	mine := func(a netip.AddrPort) bool { return x.IsOwnHost(a.Addr()) }
	if !b.Env.Node.Gateway.Userspace || x.ExternalLocal || !slices.ContainsFunc(x.Cluster, mine) {
		return
	}
	m.InPort, m.EthDst = b.Uplink, b.MAC
	b.Classify(untracked, m, actions...)
}
