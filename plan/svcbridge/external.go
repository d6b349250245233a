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

// replies handles packets of the reply direction before Services are looked up, so that a Service
// at the client's address does not get them. A client's address may itself be a Service's, such as
// a load balancer, or another user may have listed it in spec.externalIPs. In the reply direction,
// packets from the host or external clients reply to no pod and are dropped.
func (w *serviceBridge) replies(v node.Vocabulary) {
	toClient := func(state flow.CTState) {
		m := flow.Match{Protocol: v.IP, CTMark: claims.CTMarkOutside, CTState: state}
		w.add(pipeline.SvcServiceConntrack, prioExternalConn+1, m, flow.SetEthDstByCT{},
			flow.Resubmit{Table: pipeline.SvcExternalReply})
	}
	// Not by +snat alone: where two connections would have the same addresses and ports, the kernel
	// also translates the source port of the one that begins later.
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
// ZoneServices has the recorded MAC of each connection. A packet that does not come from a next hop
// commits the second zone with that MAC.
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

	keep := m // policy Local: there is no second zone
	keep.CTMark = claims.CTMarkOutside
	record := flow.CT{Commit: true, Zone: claims.ZoneServices, Mark: claims.CTMarkOutside, EthSrc: true}
	w.add(pipeline.SvcSNAT, prioExternalConn, keep, toL3...)
	for _, mac := range w.nextHopMACs(s) {
		keep.EthSrc = mac
		w.add(pipeline.SvcSNAT, prioExternalConn+1, keep, append([]flow.Action{record}, toL3...)...)
	}
	keep.EthSrc, keep.CTState = cluster.MAC{}, related.CTState
	w.add(pipeline.SvcSNAT, prioExternalConn+2, keep, toL3...)

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
