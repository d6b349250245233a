package gateway

import (
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/pipeline"
	"hairpin/plan/node"
)

// Bridge is the node's gateway bridge, and the host behind it. The uplink, the host (LOCAL) and the
// gateway router (the patch port) meet on the bridge; host and gateway router have the same
// addresses. Not every mode has the uplink there.
func Bridge(e node.Env) (datapath.State, []cluster.Problem) {
	b := node.NewBridge(&e, claims.FeatureGateway)
	for i := range e.Stacks {
		s := &e.Stacks[i]
		hostEndpoint(b, s)
		if e.Mode.Uplink {
			fromOVN(b, s)
			if e.RoutesByHost(s) {
				routeByHost(b, s)
			}
			fromHost(b, s)
			fromUplink(b, s)
		} else {
			throughHost(b, s)
		}
	}
	if e.Mode.Uplink {
		layer2(b)
		tunnels(b)
	} else {
		b.Classify(node.PrioRest, flow.Match{}, flow.Drop{})
	}
	for i := range e.Stacks {
		noTunnels(b, &e.Stacks[i], e.Stacks[i].MasqHost) // the host's, too
	}
	rewrite(b)
	return datapath.State{Bridge: flow.State{Flows: b.Flows}, Host: hostSide(&e), NFT: hostFilter(&e)}, nil
}

// hostEndpoint leads what the gateway router sends to an endpoint on this very host to the host,
// from OVN's masquerade address, so that the host sees a connection from outside and not one from
// itself; and the replies back.
func hostEndpoint(b *node.Bridge, s *node.Stack) {
	ip, own := node.Vocab(s.Family).IP, s.Address.Addr()
	// The primary address: the load balancer wrote the host's masquerade address instead
	// (docs/design/origins.md#masquerade-addresses).
	b.Classify(node.PrioService, flow.Match{InPort: b.Ovn, Protocol: ip, Src: node.HostPrefix(own),
		Dst: node.HostPrefix(s.MasqHost)},
		flow.CT{Commit: true, Table: pipeline.GatewaySNAT, Zone: claims.ZoneHost,
			NAT: flow.NAT{Kind: flow.NATDst, Addr: own}})
	// Secondary addresses stay themselves. Detached, they are like any other beyond the host.
	for _, a := range s.Secondary {
		if !b.Env.Mode.Uplink {
			break
		}
		b.Classify(node.PrioService, flow.Match{InPort: b.Ovn, Protocol: ip, Src: node.HostPrefix(own),
			Dst: node.HostPrefix(a)},
			flow.CT{Commit: true, Table: pipeline.GatewaySNAT, Zone: claims.ZoneHost})
	}
	b.Add(pipeline.GatewaySNAT, node.PrioDefault, flow.Match{Protocol: ip},
		flow.CT{Commit: true, Table: pipeline.GatewayToHost, Zone: claims.ZoneReturn,
			NAT: flow.NAT{Kind: flow.NATSrc, Addr: s.MasqRouter}})
	b.Classify(node.PrioService, flow.Match{InPort: flow.Local, Protocol: ip, Dst: node.HostPrefix(s.MasqRouter)},
		flow.CT{Table: pipeline.GatewayUnDNAT, Zone: claims.ZoneReturn, NAT: flow.NAT{Kind: flow.NATUndo}})
	// Without commit: these are replies only (docs/design/origins.md#pitfalls).
	b.Add(pipeline.GatewayUnDNAT, node.PrioDefault, flow.Match{Protocol: ip},
		flow.CT{Table: pipeline.GatewayToRouter, Zone: claims.ZoneHost, NAT: flow.NAT{Kind: flow.NATUndo}})
}

// fromOVN sends the gateway router's packets to the uplink and records the connections as OVN's.
// Only its own MAC may leave (docs/design/origins.md#pitfalls).
func fromOVN(b *node.Bridge, s *node.Stack) {
	m := flow.Match{InPort: b.Ovn, EthSrc: b.Mac, Protocol: node.Vocab(s.Family).IP}
	track := flow.CT{Commit: true, Zone: claims.ZoneUplink, Mark: claims.CTMarkOVN}
	out := flow.Output{Port: b.Uplink}

	// Pod to a node's address, SNATed to an egress IP on the way: give it the node's address like
	// any other pod.
	marked, asNode := m, track
	marked.PktMark = claims.MarkNodeIP
	asNode.NAT = flow.NAT{Kind: flow.NATSrc, Addr: s.Address.Addr()}
	as := []flow.Action{asNode, out}
	if b.Env.HasExternalClients() { // the source port may become one of a Service
		as = []flow.Action{asNode, flow.CT{Commit: true, Zone: claims.ZoneServices, Mark: claims.CTMarkNode}, out}
	}
	b.Classify(node.PrioMarked, marked, as...)
	// Pods that were not SNATed must not be seen outside: others', because their egress SNAT is not
	// there yet (docs/design/origins.md#packets-before-snat-is-ready), and this node's, because
	// only a packet that conntrack calls invalid leaves the gateway router so. The document lets
	// those pass at priority 109.
	for _, c := range s.Cluster {
		b.Classify(node.PrioPods, flow.Match{InPort: b.Ovn, Protocol: m.Protocol, Src: c}, flow.Drop{})
	}
	b.Classify(node.PrioTrack, m, track, out)
}

// throughHost leads everything else that the gateway router sends, such as to an endpoint on
// another host, through the host, which routes it: from OVN's masquerade address, because the host
// drops what comes in from its own (martian source).
func throughHost(b *node.Bridge, s *node.Stack) {
	b.Classify(node.PrioTrack, flow.Match{InPort: b.Ovn, Protocol: node.Vocab(s.Family).IP,
		Src: node.HostPrefix(s.Address.Addr())},
		flow.CT{Commit: true, Table: pipeline.GatewaySNAT, Zone: claims.ZoneHost})
}

// routeByHost leads what the gateway router sends to the dummy next hop by the host: such as to an
// endpoint on another network of the host's. It is as in throughHost, with an uplink that must not
// get the rest: where there is no default gateway, what has an egress address has no way, because
// the host would send it by another network.
func routeByHost(b *node.Bridge, s *node.Stack) {
	m := flow.Match{InPort: b.Ovn, EthDst: node.MasqMAC(), Protocol: node.Vocab(s.Family).IP}
	own, marked := m, m
	own.Src, marked.PktMark = node.HostPrefix(s.Address.Addr()), claims.MarkNodeIP
	for _, x := range []flow.Match{own, marked} {
		b.Classify(node.PrioByHost, x, flow.CT{Commit: true, Table: pipeline.GatewaySNAT, Zone: claims.ZoneHost})
	}
	b.Classify(node.PrioNoWay, m, flow.Drop{})
	// What the host itself says of such a packet, that it is too long for a link or may not pass,
	// has the node's address, and the gateway router takes nothing from its own.
	b.Classify(node.PrioOwnError, flow.Match{InPort: flow.Local, Protocol: node.Vocab(s.Family).ICMP, Src: own.Src,
		Dst: node.HostPrefix(s.MasqRouter)}, flow.SetSrc{Addr: s.MasqHost},
		flow.CT{Table: pipeline.GatewayUnDNAT, Zone: claims.ZoneReturn, NAT: flow.NAT{Kind: flow.NATUndo}})
}

// fromHost sends the host's packets to the uplink and records the connections as the host's. The
// documents let conntrack translate as well, ct(commit,nat), and there is nothing to translate: of
// a new connection the userspace datapath of Open vSwitch 3.5.0 would then keep an entry that it
// never removes, but frees, and end sooner or later with SIGSEGV.
func fromHost(b *node.Bridge, s *node.Stack) {
	b.Classify(node.PrioTrack, flow.Match{InPort: flow.Local, Protocol: node.Vocab(s.Family).IP},
		flow.CT{Commit: true, Zone: claims.ZoneUplink, Mark: claims.CTMarkHost}, flow.Output{Port: b.Uplink})
}

// fromUplink gives packets from the uplink to the owner of their connection. What has another
// destination MAC is left to the switch (docs/design/origins.md#pitfalls).
func fromUplink(b *node.Bridge, s *node.Stack) {
	ip := node.Vocab(s.Family).IP
	b.Classify(node.PrioFromUplink, flow.Match{InPort: b.Uplink, EthDst: b.Mac, Protocol: ip}, node.TrackFromUplink)
	for _, bit := range []flow.CTBits{flow.CTEst, flow.CTRel} { // rel: ICMP errors follow their connection
		state := flow.CTState{Set: bit | flow.CTTrk}
		b.Add(pipeline.GatewayUplinkConntrack, node.PrioKnown,
			flow.Match{Protocol: ip, CTState: state, CTMark: claims.CTMarkOVN}, flow.Output{Port: b.Ovn})
		b.Add(pipeline.GatewayUplinkConntrack, node.PrioKnown,
			flow.Match{Protocol: ip, CTState: state, CTMark: claims.CTMarkHost}, flow.Output{Port: flow.Local})
	}
	// What conntrack calls invalid of a connection of OVN's is OVN's all the same, not the host's,
	// which would end it. It is so on the userspace datapath: after a loss, and where a connection
	// ended unseen and another one has its ports, as when an egress address was elsewhere
	// meanwhile. The kernel's learns, and remembers no mark with what it calls invalid.
	b.Add(pipeline.GatewayUplinkConntrack, node.PrioKnown,
		flow.Match{Protocol: ip, CTState: flow.CTState{Set: flow.CTInv | flow.CTTrk}, CTMark: claims.CTMarkOVN},
		flow.Output{Port: b.Ovn})
	if b.Env.HasExternalClients() { // claims.ServiceBridge is asked first
		return
	}
	// New connections that are not to a NodePort are the host's. Committed here, in their own
	// direction: the host's reply finds them and commits nothing.
	b.Add(pipeline.GatewayUplinkConntrack, node.PrioNew,
		flow.Match{Protocol: ip, CTState: flow.CTState{Set: flow.CTNew | flow.CTTrk}},
		flow.CT{Commit: true, Zone: claims.ZoneUplink, Mark: claims.CTMarkHost}, flow.Output{Port: flow.Local})
}

// layer2 is what remains: ARP, neighbour discovery, broadcast, multicast and other protocols. Host
// and gateway router share addresses, so both must hear what is sent to them.
func layer2(b *node.Bridge) {
	both := []flow.Action{flow.Output{Port: b.Ovn}, flow.Output{Port: flow.Local}}
	if b.Env.Stack(cluster.IPv6) != nil { // ARP is not IP and needs no exception from the flows above
		for _, t := range []uint16{node.NeighborSolicitation, node.NeighborAdvertisement} {
			nd := flow.Match{Protocol: flow.ICMP6, ICMPType: t + 1}
			fromHost, fromOVN, fromWire := nd, nd, nd
			fromHost.InPort = flow.Local
			fromOVN.InPort, fromOVN.EthSrc = b.Ovn, b.Mac
			fromWire.InPort, fromWire.EthDst = b.Uplink, b.Mac
			b.Classify(node.PrioND, fromHost, flow.Normal{})
			b.Classify(node.PrioND, fromOVN, flow.Normal{})
			b.Classify(node.PrioND, fromWire, both...)
		}
	}
	for _, f := range []cluster.Family{cluster.IPv4, cluster.IPv6} {
		if b.Env.Stack(f) == nil { // the host's alone: the gateway router has no address of this family
			b.Classify(node.PrioFromUplink, flow.Match{InPort: b.Uplink, EthDst: b.Mac, Protocol: node.Vocab(f).IP},
				flow.Output{Port: flow.Local})
		}
	}
	// Nothing that is served here has a VLAN tag. What the host has VLANs for is its own.
	b.Classify(node.PrioVLAN, flow.Match{InPort: b.Uplink, EthDst: b.Mac, Tagged: true}, flow.Output{Port: flow.Local})
	b.Classify(node.PrioUnicast, flow.Match{InPort: b.Uplink, EthDst: b.Mac}, both...)
	b.Classify(node.PrioUnicast, flow.Match{InPort: b.Ovn, EthSrc: b.Mac}, flow.Normal{})
	b.Classify(node.PrioForeign, flow.Match{InPort: b.Ovn}, flow.Drop{})
	b.Classify(node.PrioRest, flow.Match{}, flow.Normal{})
	// From the uplink to the host's MAC, of an unknown connection: the host answers.
	b.Add(pipeline.GatewayUplinkConntrack, node.PrioRest, flow.Match{}, flow.Output{Port: flow.Local})
}

// rewrite are the last tables of the way between host and gateway router, which share one MAC. Each
// must see its own as destination and the next hop's as source: the gateway router refuses packets
// by sending them back where they came from, and its switch sends nothing to a port that it came
// from. Packet marks are OVN's: the host's own rules may read them otherwise.
func rewrite(b *node.Bridge) {
	b.Add(pipeline.GatewayToRouter, node.PrioDefault, flow.Match{}, flow.SetEthSrc{MAC: node.MasqMAC()},
		flow.SetEthDst{MAC: b.Mac}, flow.Output{Port: b.Ovn})
	b.Add(pipeline.GatewayToHost, node.PrioDefault, flow.Match{}, flow.MoveEthDstToSrc{}, flow.SetEthDst{MAC: b.Mac},
		flow.SetPktMark{}, flow.Output{Port: flow.Local})
}
