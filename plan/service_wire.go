package plan

import (
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
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
	m := match(x, flow.Match{}, vip)
	actions := []flow.Action{flow.CT{Commit: true, Zone: claims.ZoneUplink, Mark: claims.CTMarkOVN}, flow.Output{Port: b.ovn}}
	if !x.guards(vip) {
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

// toServices leads packets from the external network to an address of a Service to claims.ServiceBridge.
func (b *bridge) toServices(x *front, vip netip.AddrPort) {
	b.nodePort(x, vip)
	m, to := match(x, flow.Match{}, vip), []flow.Action{flow.Output{Port: claims.ServicesPatch}}
	if x.Protocol != cluster.TCP && x.podsBehind() { // TCP knows from the pod how long a packet may be
		to = []flow.Action{flow.MarkLonger{Length: uint16(b.env.Config.MTU + ethernetHeader)}, flow.Resubmit{Table: claims.TableLong}}
	}
	if !x.guards(vip) {
		b.add(claims.TableWire, prioNodePort, m, to...)
		return
	}
	for _, r := range x.SourceRanges {
		from := m
		from.Src = r
		b.add(claims.TableWire, prioNodePort, from, to...)
	}
	b.add(claims.TableWire, prioBarred, m, flow.Drop{})
}

// podsBehind reports whether pods are among the endpoints of external clients. Only then is the pods' MTU that of the
// path: a client that is another node's host keeps what it learns for all that it sends to this node.
func (x *front) podsBehind() bool {
	to := x.cluster
	if x.ExternalLocal {
		to = x.ownPods
	}
	return slices.ContainsFunc(to, func(a netip.AddrPort) bool {
		return slices.ContainsFunc(x.stack.Cluster, func(r netip.Prefix) bool { return r.Contains(a.Addr()) })
	})
}

// ethernetHeader is the length of what comes before a packet in its frame.
const ethernetHeader = 14

// wireToServices looks at what comes from the external network for Services first, but at fragments, which may lack the port, after conntrack has
// put them together. What the bridge's own zone does not know may belong to a connection to a Service that is gone, or be an ICMP error about one. What
// is nobody's is the host's. Answers go where claims.ServiceBridge says.
func (b *bridge) wireToServices(s *Stack) {
	ip := words(s.Family).ip
	out := flow.Output{Port: claims.ServicesPatch}
	b.classify(prioFromWire+1, flow.Match{InPort: b.uplink, EthDst: b.mac, Protocol: ip, Fragment: "no"}, flow.Resubmit{Table: claims.TableWire})
	host := []flow.Action{flow.CT{Commit: true, Zone: claims.ZoneUplink, Mark: claims.CTMarkHost}, flow.SetPktMark{}, flow.Output{Port: flow.Local}}
	// What is too long for pods the host forwards: it fragments it, or reports the pods' MTU to the client.
	b.add(claims.TableLong, prioKnown, flow.Match{Protocol: ip, PktMark: 1}, host...)
	b.add(claims.TableLong, prioRest, flow.Match{}, out)
	b.add(claims.TableWire, prioRest, flow.Match{Protocol: ip}, trackFromWire)
	b.add(claims.TableUplink, prioNew, flow.Match{Protocol: ip, CTState: flow.CTState{Set: flow.CTTrk}}, flow.Resubmit{Table: claims.TableWire})
	b.add(claims.TableWire, prioNew, flow.Match{Protocol: ip, CTState: flow.CTState{Set: flow.CTTrk}}, flow.CT{Zone: claims.ZoneServices, Table: claims.TableAsked})
	for _, bit := range []flow.CTBits{flow.CTEst, flow.CTRel} {
		b.add(claims.TableAsked, prioKnown, flow.Match{Protocol: ip, CTState: flow.CTState{Set: bit | flow.CTTrk}}, out)
	}
	b.add(claims.TableAsked, prioRest, flow.Match{Protocol: ip}, host...)
	b.classify(prioTrack, flow.Match{InPort: claims.ServicesPatch, Protocol: ip}, flow.Output{Port: b.uplink})
	b.nodePorts(s)
	// Replies to the node's own connections come back with the bridge's MAC as their destination.
	returned := flow.Match{InPort: claims.ServicesPatch, Protocol: ip}
	b.add(claims.TableUplink, prioTracked, returned, flow.Drop{})
	returned.EthDst = b.mac
	b.classify(prioTrack+1, returned, trackFromWire)
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
