package gateway

import (
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/datapath/ovs"
	"hairpin/pipeline"
	"hairpin/plan/node"
)

// Bridge plans the gateway bridge of the node, and the host behind it. The bridge connects the
// uplink (not in every mode), the host (LOCAL) and the gateway router (the patch port). Host and
// gateway router have the same addresses.
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
			neighborReplies(b, s)
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
		noTunnels(b, &e.Stacks[i], e.Stacks[i].MasqHost) // the host's masquerade address, too
	}
	rewrite(b)
	return datapath.State{Bridge: ovs.State{Flows: b.Flows}, Host: hostSide(&e), NFT: hostFilter(&e)}, nil
}

// hostEndpoint sends packets of the gateway router to an endpoint on this host to the host, and the
// replies back. The packets get OVN's masquerade address, so that the host sees a connection from
// outside and not one from itself.
func hostEndpoint(b *node.Bridge, s *node.Stack) {
	ip, own := node.Vocab(s.Family).IP, s.Address.Addr()
	// The primary address: the load balancer replaced it with the host's masquerade address
	// (docs/design/origins.md#masquerade-addresses).
	b.Classify(node.PrioService, flow.Match{InPort: b.OVN, Protocol: ip, Src: node.HostPrefix(own),
		Dst: node.HostPrefix(s.MasqHost)},
		flow.CT{Commit: true, Table: pipeline.GatewaySNAT, Zone: claims.ZoneHost,
			NAT: flow.NAT{Kind: flow.NATDst, Addr: own}})
	// Secondary addresses are not translated. In mode detached, throughHost handles them.
	for _, a := range s.Secondary {
		if !b.Env.Mode.Uplink {
			break
		}
		b.Classify(node.PrioService, flow.Match{InPort: b.OVN, Protocol: ip, Src: node.HostPrefix(own),
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
// Only frames with its own MAC may leave (docs/design/origins.md#pitfalls).
func fromOVN(b *node.Bridge, s *node.Stack) {
	m := flow.Match{InPort: b.OVN, EthSrc: b.MAC, Protocol: node.Vocab(s.Family).IP}
	track := flow.CT{Commit: true, Zone: claims.ZoneUplink, Mark: claims.CTMarkOVN}
	out := flow.Output{Port: b.Uplink}

	// Pod to a node's address, already SNATed to an egress IP: SNAT it to the node's address, as
	// for any other pod.
	marked, asNode := m, track
	marked.PktMark = claims.MarkNodeIP
	asNode.NAT = flow.NAT{Kind: flow.NATSrc, Addr: s.Address.Addr()}
	actions := []flow.Action{asNode, out}
	if b.Env.HasExternalClients() { // the source port may become one of a Service
		actions = []flow.Action{asNode, flow.CT{Commit: true, Zone: claims.ZoneServices, Mark: claims.CTMarkNode}, out}
	}
	b.Classify(node.PrioMarked, marked, actions...)
	// A pod with an egress address must not be seen with the node's address.
	if !b.Env.Mode.PodsByHost {
		b.Classify(node.PrioEgress, flow.Match{InPort: b.OVN, Protocol: m.Protocol, PktMark: claims.MarkEgress,
			Src: node.HostPrefix(s.Address.Addr())}, flow.Drop{})
	}
	// Pods' packets without SNAT must not leave. Those of foreign pods lack it while their egress
	// SNAT is not there yet (docs/design/origins.md#packets-before-snat-is-ready). Those of this
	// node's pods lack it only if conntrack calls the packet invalid. The original design lets them
	// pass at priority 109.
	for _, c := range s.Cluster {
		b.Classify(node.PrioPods, flow.Match{InPort: b.OVN, Protocol: m.Protocol, Src: c}, flow.Drop{})
	}
	b.Classify(node.PrioTrack, m, track, out)
}

// throughHost sends all other packets of the gateway router, such as to an endpoint on another
// host, to the host, which routes them. Their source is OVN's masquerade address, because the host
// drops received packets from its own addresses (martian source).
func throughHost(b *node.Bridge, s *node.Stack) {
	b.Classify(node.PrioTrack, flow.Match{InPort: b.OVN, Protocol: node.Vocab(s.Family).IP,
		Src: node.HostPrefix(s.Address.Addr())},
		flow.CT{Commit: true, Table: pipeline.GatewaySNAT, Zone: claims.ZoneHost})
}

// routeByHost sends to the host what the gateway router sends to the dummy next hop, such as
// packets to an endpoint on another network of the host. It is like throughHost, but other packets
// to the dummy next hop must not leave by the uplink. Without a default gateway, it drops packets
// with an egress address, because the host would send them to another network.
func routeByHost(b *node.Bridge, s *node.Stack) {
	m := flow.Match{InPort: b.OVN, EthDst: node.MasqMAC(), Protocol: node.Vocab(s.Family).IP}
	own, marked := m, m
	own.Src, marked.PktMark = node.HostPrefix(s.Address.Addr()), claims.MarkNodeIP
	for _, x := range []flow.Match{own, marked} {
		b.Classify(node.PrioByHost, x, flow.CT{Commit: true, Table: pipeline.GatewaySNAT, Zone: claims.ZoneHost})
	}
	b.Classify(node.PrioNoNextHop, m, flow.Drop{})
	// The host's own ICMP errors about such a packet (it is too long for a link, or may not pass)
	// have the node's address as source. The gateway router accepts nothing from its own address.
	b.Classify(node.PrioOwnError, flow.Match{InPort: flow.Local, Protocol: node.Vocab(s.Family).ICMP, Src: own.Src,
		Dst: node.HostPrefix(s.MasqRouter)}, flow.SetSrc{Addr: s.MasqHost},
		flow.CT{Table: pipeline.GatewayUnDNAT, Zone: claims.ZoneReturn, NAT: flow.NAT{Kind: flow.NATUndo}})
}

// fromHost sends the host's packets to the uplink and records the connections as the host's. The
// original design uses ct(commit,nat), although there is nothing to translate. With it, the
// userspace datapath of Open vSwitch 3.5.0 frees an entry of a new connection without removing it,
// and later ends with SIGSEGV.
func fromHost(b *node.Bridge, s *node.Stack) {
	b.Classify(node.PrioTrack, flow.Match{InPort: flow.Local, Protocol: node.Vocab(s.Family).IP},
		flow.CT{Commit: true, Zone: claims.ZoneUplink, Mark: claims.CTMarkHost}, flow.Output{Port: b.Uplink})
}

// fromUplink sends packets from the uplink to the owner of their connection. Packets with another
// destination MAC are left to the switch (docs/design/origins.md#pitfalls).
func fromUplink(b *node.Bridge, s *node.Stack) {
	ip := node.Vocab(s.Family).IP
	b.Classify(node.PrioFromUplink, flow.Match{InPort: b.Uplink, EthDst: b.MAC, Protocol: ip}, node.TrackFromUplink)
	for _, bit := range []flow.CTBits{flow.CTEst, flow.CTRel} { // rel: ICMP errors follow their connection
		state := flow.CTState{Set: bit | flow.CTTrk}
		b.Add(pipeline.GatewayUplinkConntrack, node.PrioKnown,
			flow.Match{Protocol: ip, CTState: state, CTMark: claims.CTMarkOVN}, flow.Output{Port: b.OVN})
		b.Add(pipeline.GatewayUplinkConntrack, node.PrioKnown,
			flow.Match{Protocol: ip, CTState: state, CTMark: claims.CTMarkHost}, flow.Output{Port: flow.Local})
	}
	// An invalid packet of OVN's connection goes to OVN, because the host would reset the
	// connection. On the userspace datapath, packets are invalid after a loss, or if a connection
	// reuses the ports of one whose end conntrack has not seen, for example because another node
	// had the egress address. The kernel's conntrack adapts, and stores no mark with invalid
	// packets.
	b.Add(pipeline.GatewayUplinkConntrack, node.PrioKnown,
		flow.Match{Protocol: ip, CTState: flow.CTState{Set: flow.CTInv | flow.CTTrk}, CTMark: claims.CTMarkOVN},
		flow.Output{Port: b.OVN})
	if b.Env.HasExternalClients() { // these packets go to claims.ServiceBridge first
		return
	}
	// New connections that are not to a NodePort belong to the host. They are committed here, in
	// their own direction, so that the host's reply finds them and commits nothing.
	b.Add(pipeline.GatewayUplinkConntrack, node.PrioNew,
		flow.Match{Protocol: ip, CTState: flow.CTState{Set: flow.CTNew | flow.CTTrk}},
		flow.CT{Commit: true, Zone: claims.ZoneUplink, Mark: claims.CTMarkHost}, flow.Output{Port: flow.Local})
}

// neighborReplies permits the gateway router's neighbor advertisements and ARP replies for the
// addresses of its port.
func neighborReplies(b *node.Bridge, s *node.Stack) {
	m := node.NeighborReply(s.Family)
	m.InPort, m.EthSrc = b.OVN, b.MAC
	b.Classify(node.PrioND, m, flow.Resubmit{Table: pipeline.GatewayNeighborReplies})
	b.Answer(node.HostPrefix(s.Address.Addr()))
	if local := node.Vocab(s.Family).LinkLocal; local.IsValid() {
		b.Answer(local)
	}
}

// layer2 handles all other packets: ARP, neighbor discovery, broadcast, multicast and other
// protocols. Host and gateway router share addresses, so both must receive packets to them.
func layer2(b *node.Bridge) {
	both := []flow.Action{flow.Output{Port: b.OVN}, flow.Output{Port: flow.Local}}
	if b.Env.Stack(cluster.IPv6) != nil { // ARP is not IP and needs no exception from the flows above
		for _, t := range []uint16{node.NeighborSolicitation, node.NeighborAdvertisement} {
			nd := flow.Match{Protocol: flow.ICMP6, ICMPType: t + 1} // 0: any
			fromHost, fromOVN, fromUplink := nd, nd, nd
			fromHost.InPort = flow.Local
			fromOVN.InPort, fromOVN.EthSrc = b.OVN, b.MAC
			fromUplink.InPort, fromUplink.EthDst = b.Uplink, b.MAC
			b.Classify(node.PrioND, fromHost, flow.Normal{})
			if t == node.NeighborSolicitation { // advertisements: see neighborReplies
				b.Classify(node.PrioND, fromOVN, flow.Normal{})
			}
			b.Classify(node.PrioND, fromUplink, both...)
		}
	}
	for _, f := range cluster.Families {
		if b.Env.Stack(f) == nil { // the gateway router has no address of this family
			b.Classify(node.PrioFromUplink, flow.Match{InPort: b.Uplink, EthDst: b.MAC, Protocol: node.Vocab(f).IP},
				flow.Output{Port: flow.Local})
		}
	}
	// Hairpin serves no tagged frames. They belong to the host's own VLANs.
	b.Classify(node.PrioVLAN, flow.Match{InPort: b.Uplink, EthDst: b.MAC, Tagged: true}, flow.Output{Port: flow.Local})
	b.Classify(node.PrioUnicast, flow.Match{InPort: b.Uplink, EthDst: b.MAC}, both...)
	b.Classify(node.PrioUnicast, flow.Match{InPort: b.OVN, EthSrc: b.MAC}, flow.Normal{})
	b.Classify(node.PrioForeign, flow.Match{InPort: b.OVN}, flow.Drop{})
	b.Classify(node.PrioRest, flow.Match{}, flow.Normal{})
	// From the uplink to the host's MAC, of an unknown connection: the host replies.
	b.Add(pipeline.GatewayUplinkConntrack, node.PrioRest, flow.Match{}, flow.Output{Port: flow.Local})
}

// rewrite adds the last tables of the path between host and gateway router, which share one MAC.
// The destination must be the receiver's MAC, and the source the next hop's: the gateway router
// rejects a packet by a reply to the source MAC, and its switch outputs no packet to its input
// port. The packet mark is cleared for the host, because OVN set it, and the host's own rules may
// use the same bits.
func rewrite(b *node.Bridge) {
	b.Add(pipeline.GatewayToRouter, node.PrioDefault, flow.Match{}, flow.SetEthSrc{MAC: node.MasqMAC()},
		flow.SetEthDst{MAC: b.MAC}, flow.Output{Port: b.OVN})
	b.Add(pipeline.GatewayToHost, node.PrioDefault, flow.Match{}, flow.MoveEthDstToSrc{}, flow.SetEthDst{MAC: b.MAC},
		flow.SetPktMark{}, flow.Output{Port: flow.Local})
}
