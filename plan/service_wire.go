package plan

import (
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/datapath/flow"
)

// Priorities in claims.TableClassify and claims.TableWire for addresses with ranges of sources: who is not within one.
const (
	prioBarred        = 108
	prioBarredTracked = 48
)

// frontend leads what comes from the wire to an address of a Service to the gateway router, and remembers the connection
// as OVN's: so replies and ICMP errors need no flow of their own. Under policy Cluster there is no lookup before: a packet
// for an endpoint on this host has seven recirculations before it, and the userspace datapath allows eight. Under policy
// Local there is one: connections may be the host's, which it led to an endpoint of its own, or to a pod while it had one.
func (b *bridge) frontend(x *front, vip netip.AddrPort) {
	m := flow.Match{Protocol: words(x.Family).l4[x.Protocol], Dst: single(vip.Addr()), DstPort: vip.Port()}
	actions := []flow.Action{flow.CT{Commit: true, Zone: claims.ZoneWire, Mark: claims.CTMarkOVN}, flow.Output{Port: b.ovn}}
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

// fromWireTo adds a flow for packets, and one for those that come by conntrack: fragments too, which have no ports before
// they are reassembled.
func (b *bridge) fromWireTo(x *front, m flow.Match, priority, tracked uint16, actions ...flow.Action) {
	b.add(claims.TableWire, tracked, m, slices.Clone(actions)...)
	if x.ExternalLocal {
		return
	}
	m.InPort, m.EthDst = b.uplink, b.mac
	b.classify(priority, m, actions...)
}
