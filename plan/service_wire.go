package plan

import (
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/datapath/flow"
)

// Priorities in claims.TableClassify and claims.TableWire for addresses with ranges of sources: who is not within one.
const (
	prioBarred          = 108
	prioBarredFragments = 48
)

// frontend leads what comes from the wire to an address of a Service to the gateway router, and remembers the connection
// as OVN's: so replies and ICMP errors need no flow of their own. There is no lookup before: a packet for an endpoint on
// this host has seven recirculations before it, and the userspace datapath allows eight.
//
// When all that policy Local allows is one endpoint on this host, the host gets the packet at once, and sees the client's
// address. The connection is the host's then, and the way back, in fromHost, translates.
func (b *bridge) frontend(x *front, vip netip.AddrPort) {
	m := flow.Match{Protocol: words(x.Family).l4[x.Protocol], Dst: single(vip.Addr()), DstPort: vip.Port()}
	actions := []flow.Action{flow.CT{Commit: true, Zone: claims.ZoneWire, Mark: claims.CTMarkOVN}, flow.Output{Port: b.ovn}}
	if end := x.onHost(); end.IsValid() {
		actions = []flow.Action{
			flow.CT{Commit: true, Zone: claims.ZoneWire, Mark: claims.CTMarkHost,
				NAT: flow.NAT{Kind: flow.NATDst, Addr: end.Addr(), PortMin: end.Port(), PortMax: end.Port()}},
			flow.Output{Port: flow.Local},
		}
	}
	if !x.guards(vip.Addr()) {
		b.fromWireTo(m, prioNodePort, prioFragments, actions...)
		return
	}
	for _, r := range x.SourceRanges {
		from := m
		from.Src = r
		b.fromWireTo(from, prioNodePort, prioFragments, actions...)
	}
	b.fromWireTo(m, prioBarred, prioBarredFragments, flow.Drop{})
}

// fromWireTo adds a flow for packets, and one for their fragments, which have no ports: they come by conntrack, reassembled.
func (b *bridge) fromWireTo(m flow.Match, priority, fragments uint16, actions ...flow.Action) {
	b.add(claims.TableWire, fragments, m, slices.Clone(actions)...)
	m.InPort, m.EthDst = b.uplink, b.mac
	b.classify(priority, m, actions...)
}
