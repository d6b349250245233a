package plan

import (
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/datapath/flow"
)

// Priorities in claims.TableClassify and claims.TableUplink for addresses with source ranges: clients outside of them.
const (
	prioBarred        = 108
	prioBarredTracked = 48
)

// frontend leads packets from the external network to an address of a Service to the gateway router, and records the connection
// as OVN's: so replies and ICMP errors need no flow of their own. Conntrack is asked before: a connection may be the host's,
// which led it to an endpoint of its own, or to a pod while it had one, under policy Local.
func (b *bridge) frontend(x *front, vip netip.AddrPort) {
	m := flow.Match{Protocol: words(x.Family).l4[x.Protocol], Dst: single(vip.Addr()), DstPort: vip.Port()}
	actions := []flow.Action{flow.CT{Commit: true, Zone: claims.ZoneUplink, Mark: claims.CTMarkOVN}, flow.Output{Port: b.ovn}}
	if !x.guards(vip.Addr()) {
		b.fromWireTo(x, m, prioNodePort, prioTracked, actions...)
		return
	}
	for _, r := range x.SourceRanges {
		from := m
		from.Src = r
		b.fromWireTo(x, from, prioNodePort, prioTracked, actions...)
	}
	b.fromWireTo(x, m, prioBarred, prioBarredTracked, flow.Drop{})
}

// answers leads what the gateway router answers from an external address to the uplink, where it was asked, as fromOVN does, and not to the
// host as NodePorts' answers from the same address.
func (b *bridge) answers(x *front, vip netip.AddrPort) {
	b.classify(prioAnswer, flow.Match{InPort: b.ovn, EthSrc: b.mac, Protocol: words(x.Family).l4[x.Protocol], Src: single(vip.Addr()), SrcPort: vip.Port()},
		flow.CT{Commit: true, Zone: claims.ZoneUplink, Mark: claims.CTMarkOVN}, flow.Output{Port: b.uplink})
}

// fromWireTo adds a flow for packets that come by conntrack. On the userspace datapath, packets that may go to an endpoint on
// this host have one at once as well: there are seven recirculations before them without conntrack, and eight are too many.
func (b *bridge) fromWireTo(x *front, m flow.Match, priority, tracked uint16, actions ...flow.Action) {
	b.add(claims.TableUplink, tracked, m, slices.Clone(actions)...)
	mine := func(a netip.AddrPort) bool { return x.isHost(a.Addr()) }
	if !b.env.Node.Gateway.Userspace || x.ExternalLocal || !slices.ContainsFunc(x.cluster, mine) {
		return
	}
	m.InPort, m.EthDst = b.uplink, b.mac
	b.classify(priority, m, actions...)
}
