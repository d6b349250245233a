package svcbridge

import (
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/pipeline"
	"hairpin/plan/node"
)

// serveExternal serves the host and external clients. For pods, their source is the gateway
// router's address on the join switch, to which other nodes have a route. Under policy Local it is
// their own address. Packets to an endpoint that is no pod go to the host, with a source that is
// not the host's. Replies go to the request's source MAC, so that no neighbor must be resolved.
func (w *serviceBridge) serveExternal(s *node.Stack) {
	v := node.Vocab(s.Family)
	replies := track(claims.ZonePinned, pipeline.SvcUnSNAT)
	w.add(pipeline.SvcFromPod, prioSelf, flow.Match{Protocol: v.IP, Dst: node.HostPrefix(s.Join.Addr())}, replies)
	w.add(pipeline.SvcClassifier, prioSelf,
		flow.Match{InPort: claims.ServicePatch, Protocol: v.IP, Dst: node.HostPrefix(s.Join.Addr())}, replies)
	w.add(pipeline.SvcClassifier, prioSelf,
		flow.Match{InPort: claims.ServiceHost, Protocol: v.IP, Dst: node.HostPrefix(s.MasqOVN)}, replies)
	w.add(pipeline.SvcUnSNAT, prioExternalConn, flow.Match{Protocol: v.IP, CTMark: claims.CTMarkOutside},
		flow.SetEthDstByCT{}, track(claims.ZoneServices, pipeline.SvcExternalReply))
	w.add(pipeline.SvcExternalConntrack, prioExternalConn, flow.Match{Protocol: v.IP, CTMark: claims.CTMarkOutside},
		flow.SetEthDstByCT{}, flow.Resubmit{Table: pipeline.SvcExternalReply})
	w.replies(v)
	w.nodeReplies(s)

	toService := track(claims.ZoneServices, pipeline.SvcServiceConntrack)
	toL3 := []flow.Action{flow.SetEthSrc{MAC: node.MasqMAC()},
		flow.SetEthDst{MAC: cluster.MACFor(w.Stacks[0].Router.Addr())}, flow.Resubmit{Table: pipeline.SvcL3Forwarding}}
	w.hostClients(s, toService, toL3)
	if w.HasExternalPatch() {
		w.externalSources(s, toService)
		w.externalClients(s, toL3)
	}
	if s.Family == cluster.IPv4 { // over IPv6, OVN sends no errors beyond its own networks
		// The kernel datapath executes the actions of an error that this node's OVN sends one by
		// one, and loses the result of conntrack between them. So the next node reports that the
		// TTL has expired.
		for _, port := range w.externalPorts() {
			w.add(pipeline.SvcL3Forwarding, prioNoService, flow.Match{InPort: port, Protocol: v.IP, TTL: 1},
				flow.SetTTL{TTL: 2}, flow.Resubmit{Table: pipeline.SvcL2Forwarding})
		}
	}
}

// hostClients forwards packets of the host to Services, and those to pods that the host forwards
// (see node.ChainForwarded).
func (w *serviceBridge) hostClients(s *node.Stack, toService flow.Action, toL3 []flow.Action) {
	m := flow.Match{InPort: claims.ServiceHost, Protocol: node.Vocab(s.Family).IP}
	for _, to := range append(slices.Clone(s.Services), node.HostPrefix(s.MasqAll), node.HostPrefix(s.MasqLocal)) {
		services := m
		services.Dst = to
		w.add(pipeline.SvcClassifier, prioTo, services, toService)
	}
	known := m
	known.CTMark = claims.CTMarkOutside
	w.add(pipeline.SvcSNAT, prioExternalConn, known, toL3...)
	for _, r := range s.Cluster {
		pods := m
		pods.Dst = r
		w.add(pipeline.SvcClassifier, prioTo, pods, toService)
		w.add(pipeline.SvcServiceLB, prioNoService+1, pods, flow.Resubmit{Table: pipeline.SvcEgressClassifier})
		w.add(pipeline.SvcSNAT, prioTo, pods, append([]flow.Action{commitSNAT(s.Join.Addr(), true)}, toL3...)...)
	}
	w.add(pipeline.SvcSNAT, prioExternal, m,
		append([]flow.Action{commitSNAT(s.MasqOVN, true)}, w.toHost(flow.InPort{})...)...)
}

// replies handles packets of the reply direction before Services are looked up, so that a Service
// at the client's address does not get them. A client's address may itself be a Service's, such as
// a load balancer, or another user may have listed it in spec.externalIPs. Replies to pods arrive
// from OVN, so packets from the host or external clients in the reply direction are dropped.
func (w *serviceBridge) replies(v node.Vocabulary) {
	toClient := func(state flow.CTState) {
		m := flow.Match{Protocol: v.IP, CTMark: claims.CTMarkOutside, CTState: state}
		w.add(pipeline.SvcServiceConntrack, prioExternalConn+1, m, flow.SetEthDstByCT{},
			flow.Resubmit{Table: pipeline.SvcExternalReply})
	}
	// +snat alone would also match requests: where two connections would have the same addresses
	// and ports, the kernel translates the source port of the one that begins later.
	toClient(flow.CTState{Set: flow.CTTrk | flow.CTRpl})
	// The userspace datapath sets no direction bit with +inv, but translates the packet.
	toClient(flow.CTState{Set: flow.CTTrk | flow.CTInv | flow.CTSnat, Clear: flow.CTDnat})
	reply := tracked(v.IP, flow.CTRpl, flow.CTRel)
	w.add(pipeline.SvcServiceConntrack, prioSelf, reply, flow.Resubmit{Table: pipeline.SvcEgressClassifier})
	for _, port := range w.externalPorts() {
		reply.InPort = port
		w.add(pipeline.SvcServiceConntrack, prioExternalConn, reply, flow.Drop{})
	}
}

// nodeReplies sends replies to the node's own connections back to the gateway bridge, which sent
// them here because their destination is a Service port at the node's address.
func (w *serviceBridge) nodeReplies(s *node.Stack) {
	if w.HasExternalClients() {
		m := flow.Match{InPort: claims.ExternalPatch, Protocol: node.Vocab(s.Family).IP, CTMark: claims.CTMarkNode}
		m.CTState.Set = flow.CTTrk // also what conntrack calls invalid: the gateway bridge decides
		w.add(pipeline.SvcServiceConntrack, prioExternalConn+3, m, flow.InPort{})
	}
}

// commitSNAT commits a connection in the zone that gives it a source to which its replies come
// back. ethSrc records the packet's source MAC, to which the replies go.
func commitSNAT(a netip.Addr, ethSrc bool) flow.CT {
	return flow.CT{Commit: true, Zone: claims.ZonePinned, Mark: claims.CTMarkOutside, EthSrc: ethSrc,
		NAT: flow.NAT{Kind: flow.NATSrc, Addr: a}}
}

// externalSources admits packets of external clients by their source. The source MAC that these
// flows leave in the packet is the one to which replies go.
//
//   - Packets from addresses that no external client can have are dropped.
//   - A client on a network of the node keeps its own MAC.
//   - Any other client is behind a router: the host's next hop that sent the packet, or, when
//     another machine sent it, the host's default gateway. The host itself would reply there. If
//     the host has a default gateway that does not answer, the host could not reply either, and the
//     packet is dropped.
func (w *serviceBridge) externalSources(s *node.Stack, serve flow.Action) {
	// The gateway bridge floods frames for other machines to this port as well: the node must not
	// serve them.
	m := flow.Match{InPort: claims.ExternalPatch, EthDst: w.Node.Gateway.MAC, Protocol: node.Vocab(s.Family).IP}
	for _, r := range w.externalMartians(s) {
		from := m
		from.Src = r
		w.add(pipeline.SvcClassifier, prioGuard, from, flow.Drop{})
	}
	if !w.Mode.Uplink || w.Mode.ClientsByHost || !s.RoutersKnown || len(s.NextHops) == 0 {
		w.add(pipeline.SvcClassifier, prioTo, m, serve)
		return
	}
	for _, r := range s.OnLink {
		from := m
		from.Src = r
		w.add(pipeline.SvcClassifier, prioVIP, from, serve)
	}
	for _, mac := range w.nextHopMACs(s) {
		from := m
		from.EthSrc = mac
		w.add(pipeline.SvcClassifier, prioVIP, from, serve)
	}
	if len(s.Routers) == 0 {
		w.add(pipeline.SvcClassifier, prioTo, m, flow.Drop{})
		return
	}
	w.add(pipeline.SvcClassifier, prioTo, m, flow.SetEthSrc{MAC: s.Routers[0]}, serve)
}

// nextHopMACs returns the source MACs from which a change of the client's MAC is accepted: those of
// the host's next hops, and that of packets from the eBPF programs: the host routes their replies.
func (w *serviceBridge) nextHopMACs(s *node.Stack) []cluster.MAC {
	list := slices.Clone(s.Routers)
	if len(w.Redirect) > 0 {
		mac, _ := cluster.ParseMAC(claims.RedirectMAC) // it is valid
		list = append(list, mac)
	}
	return list
}

// externalMartians returns sources that no packet from the external network can have: those of
// pods, Services and routers of the cluster, of the node itself, and invalid ones.
func (w *serviceBridge) externalMartians(s *node.Stack) []netip.Prefix {
	v := node.Vocab(s.Family)
	list := slices.Concat(s.Cluster, s.Services)
	list = append(list, s.Join.Masked(), s.Transit.Masked(), s.Masquerade, v.Loopback, v.Multicast,
		node.HostPrefix(s.Address.Addr()))
	if s.Family == cluster.IPv4 {
		list = append(list, netip.PrefixFrom(netip.IPv4Unspecified(), 8), node.HostPrefix(broadcast()))
	} else {
		list = append(list, node.HostPrefix(netip.IPv6Unspecified()))
	}
	for _, a := range s.Secondary {
		list = append(list, node.HostPrefix(a))
	}
	return list
}

// externalClients forwards packets of external clients to Services, and records the MAC to which
// replies go. The MAC is recorded when the connection is new. Later packets change it only if they
// come from a next hop of the host: another router may have taken over. Packets that conntrack
// calls invalid or related, such as ICMP errors, never change it.
//
// ZoneServices keeps the recorded MAC of a connection. Each later packet commits ZonePinned again:
// with its own MAC if it comes from a next hop, or else with the recorded one.
func (w *serviceBridge) externalClients(s *node.Stack, toL3 []flow.Action) {
	v := node.Vocab(s.Family)
	m := flow.Match{InPort: claims.ExternalPatch, Protocol: v.IP}
	invalid, related := m, m
	invalid.CTState.Set, related.CTState.Set = flow.CTTrk|flow.CTInv, flow.CTTrk|flow.CTRel
	w.add(pipeline.SvcServiceConntrack, prioExternalConn+2, invalid, flow.Drop{})
	// A client that has lost a connection may begin one from the same port. The endpoint's reply to
	// such a SYN makes the client end the old connection (RFC 9293, 3.5.2).
	invalid.Protocol, invalid.TCPFlags = v.L4[cluster.TCP], flow.SYN
	invalid.CTState.Set |= flow.CTDnat
	w.add(pipeline.SvcServiceConntrack, prioExternalConn+3, invalid, flow.Resubmit{Table: pipeline.SvcEgressClassifier})

	// Under policy Local, connections keep their source: ZonePinned does not have them.
	m.CTMark, related.CTMark = claims.CTMarkOutside, claims.CTMarkOutside
	w.add(pipeline.SvcSNAT, prioExternalConn, m, toL3...)
	w.add(pipeline.SvcSNAT, prioExternalConn+2, related, toL3...)
	record := flow.CT{Commit: true, Zone: claims.ZoneServices, Mark: claims.CTMarkOutside, EthSrc: true}
	for _, mac := range w.nextHopMACs(s) {
		m.EthSrc = mac
		w.add(pipeline.SvcSNAT, prioExternalConn+1, m, append([]flow.Action{record}, toL3...)...)
	}

	toHost := w.toHost(flow.Output{Port: claims.ServiceHost})
	for _, r := range s.Cluster {
		w.recordMAC(s, r, prioTo, s.Join.Addr(), toL3)
	}
	w.recordMAC(s, netip.Prefix{}, prioExternal, s.MasqOVN, toHost)
}

// recordMAC adds the flows for endpoints in a range. Their connections have a second source.
func (w *serviceBridge) recordMAC(s *node.Stack, to netip.Prefix, priority uint16, source netip.Addr,
	next []flow.Action) {
	m := flow.Match{InPort: claims.ExternalPatch, Protocol: node.Vocab(s.Family).IP, Dst: to}
	add := func(priority uint16, m flow.Match, actions ...flow.Action) {
		w.add(pipeline.SvcSNAT, priority, m, append(actions, next...)...)
	}
	record := flow.CT{Commit: true, Zone: claims.ZoneServices, Mark: claims.CTMarkClientMAC, EthSrc: true}
	add(priority, m, record, commitSNAT(source, true))
	recorded := m
	recorded.CTMark = claims.CTMarkClientMAC
	add(priority+1, recorded, flow.SetEthDstByCT{}, flow.MoveEthDstToSrc{}, commitSNAT(source, true))
	for _, mac := range w.nextHopMACs(s) {
		changed := recorded
		changed.EthSrc = mac
		add(priority+2, changed, commitSNAT(source, true))
	}
	related := m
	related.CTState.Set = flow.CTTrk | flow.CTRel
	add(priority+3, related, commitSNAT(source, false))
}
