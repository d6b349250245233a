package egress

import (
	"maps"
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/datapath/ovs"
	"hairpin/pipeline"
	"hairpin/plan/node"
)

// Priorities of flows for addresses that move, and the flows that they precede.
const (
	prioEarly    = 51 // in pipeline.GatewayClassifier: those of packets from the uplink
	prioReturned = 52 // prioEarly, for packets that the old node does not know either
	// in pipeline.GatewayUplinkConntrack: those of new connections, also to NodePorts; in
	// pipeline.GatewayServiceConntrack: those of packets to the host
	prioMoved    = 60
	prioLoop     = 61  // prioMoved, for packets that would loop
	prioOwn      = 115 // in pipeline.GatewayClassifier: those of packets of OVN and the host to the uplink
	prioPeer     = 106 // in pipeline.SvcClassifier: the flow that replaces the source MAC
	prioSvcMoved = 144 // in pipeline.SvcServiceConntrack: those that drop invalid packets
	prioSvcLoop  = 145 // prioSvcMoved, for packets that would loop
)

// movingAddress returns an address that moves from or to the planned node. The node translates to
// it, although no pods are routed here yet, or any more.
func movingAddress(e *node.Env, x *cluster.EgressIP, f cluster.Family) netip.Addr {
	for _, m := range x.Moving {
		if !x.OnlyAnnounced() && cluster.FamilyOf(m.Address) == f && (m.From == e.Node.Name || m.To == e.Node.Name) {
			return m.Address
		}
	}
	return netip.Addr{}
}

// Moves plans for which addresses the gateway router answers, and what a node does about addresses
// that move between two living nodes. Both translate. Only the new one answers for the address, so
// it receives replies to connections of the old one, and forwards these. The old one also forwards
// packets that it does not know: if pods are routed to the new node at once, because the old one
// seemed dead, neighbors may not know the new one yet. Packets that come back are dropped.
//
// All nodes serve load balancer addresses at all times, so new connections need no other node.
// Later packets of TCP connections that a node does not know are forwarded, between all nodes that
// had the address lately.
type Moves struct {
	egressIPs []*cluster.EgressIP // at the last update
	nodes     []*cluster.Node     // at the last update
	state     datapath.State
}

// NewMoves returns Moves without any address.
func NewMoves() *Moves { return &Moves{} }

// Update plans all moves again if an EgressIP or a node changed: they are few, and seldom.
func (g *Moves) Update(s *cluster.Snapshot, env *node.Env, _ node.Changes, again bool) (gone, come datapath.State) {
	if !again && cluster.SameList(g.egressIPs, s.EgressIPs) && cluster.SameList(g.nodes, s.Nodes) {
		return gone, come
	}
	gone = g.state
	g.egressIPs, g.nodes, g.state = s.EgressIPs, s.Nodes, planMoves(env, s.EgressIPs)
	return gone, g.state
}

func planMoves(e *node.Env, all []*cluster.EgressIP) datapath.State {
	b, h := node.NewBridge(e, claims.FeatureGateway), hostMoves{}
	for _, x := range all {
		b.Owner, h.owner = x.Owner, x.Owner
		answer(b, x)
		if x.OnlyAnnounced() {
			for _, a := range x.Assigned {
				planAnnounced(b, &h, x, a.Address)
			}
			continue
		}
		for _, m := range x.Moving {
			if m.To == "" || m.From != e.Node.Name && m.To != e.Node.Name {
				continue
			}
			own, ok := networkEndOf(e.Node, e.Config, x, m.Address)
			if !ok {
				continue
			}
			peerName := m.From
			if m.From == e.Node.Name {
				peerName = m.To
			}
			peer := endsOf(e, x, m.Address, peerName)
			if own.link != nil {
				h.forwardUnknown(m.Address, own, peer, false)
				continue
			}
			forwardUnknown(b, m.Address, peer)
			if len(peer) > 0 && x.Service != nil && e.HasExternalClients() {
				forwardLater(b, m.Address, peer)
			}
			if m.To == e.Node.Name && m.Early && len(peer) > 0 {
				forwardAll(b, m.Address, peer[0].mac)
			}
		}
	}
	return datapath.State{Bridge: ovs.State{Flows: b.Flows}, NFT: h.tables}
}

// planAnnounced plans what the node does about connections to a load balancer address that moves:
// it forwards packets of those that it does not know to all other nodes that may know them, one
// copy to each.
func planAnnounced(b *node.Bridge, h *hostMoves, x *cluster.EgressIP, a netip.Addr) {
	e, early := b.Env, ""
	lost := map[string]bool{} // by the name of each node of the moves: whether it seems dead
	for _, m := range x.Moving {
		if m.Address == a {
			lost[m.From], lost[m.To] = m.Lost, false
			if m.Early {
				early = m.To
			}
		}
	}
	if _, involved := lost[e.Node.Name]; !involved {
		return
	}
	delete(lost, e.Node.Name)
	var peers []networkEnd
	for _, name := range slices.Sorted(maps.Keys(lost)) {
		for _, p := range endsOf(e, x, a, name) {
			p.lost, p.early = lost[name], name == early
			peers = append(peers, p)
		}
	}
	own, ok := networkEndOf(e.Node, e.Config, x, a)
	switch {
	case !ok || !slices.ContainsFunc(peers, func(p networkEnd) bool { return !p.lost }): // as without a move
	case own.link != nil:
		h.forwardUnknown(a, own, peers, true)
	default:
		forwardLater(b, a, peers)
	}
}

// answer lets the gateway router answer for the addresses that the planned node carries.
func answer(b *node.Bridge, x *cluster.EgressIP) {
	for _, a := range x.Assigned {
		if !x.CarriedBy(b.Env.Node.Name, a.Address) || b.Env.Node.HasAddress(a.Address) {
			continue
		}
		if _, primary := egressLink(b.Env, x, a.Address); primary {
			b.Answer(node.HostPrefix(a.Address))
		}
	}
}

// movesAway reports whether an address moves to another node, which answers for it.
func movesAway(e *node.Env, x *cluster.EgressIP, a netip.Addr) bool {
	_, ok := networkEndOf(e.Node, e.Config, x, a)
	return ok && slices.ContainsFunc(x.Moving, func(m cluster.Move) bool {
		return m.Address == a && m.From == e.Node.Name && m.To != ""
	})
}

// networkEnd is a node's end of the network that an egress address belongs to.
type networkEnd struct {
	link *cluster.HostLink // nil: the gateway bridge
	mac  cluster.MAC
	at   netip.Addr // the node's own address there
	lost bool       // the node seems dead
	// early: the node may not know yet that packets of unknown connections are forwarded to it
	early bool
}

// mayForwardTo reports whether packets may be forwarded to the node.
func (n networkEnd) mayForwardTo() bool { return !n.lost && !n.early }

// endsOf returns another node's end of the network of an egress address, as a list, which is empty
// if it has none.
func endsOf(e *node.Env, x *cluster.EgressIP, a netip.Addr, name string) []networkEnd {
	if n := cluster.NodeNamed(e.Nodes, name); n != nil {
		if end, ok := networkEndOf(n, e.Config, x, a); ok {
			return []networkEnd{end}
		}
	}
	return nil
}

// networkEndOf returns a node's end of the network of an egress address, or false if the node has
// no such network, or one without Ethernet.
func networkEndOf(n *cluster.Node, config *cluster.Config, x *cluster.EgressIP, a netip.Addr) (networkEnd, bool) {
	if x.ByTable() { // the address may use any link
		return networkEnd{}, false
	}
	network, _ := x.NetworkFor(n, n.Networks(config), a)
	end, list := networkEnd{link: network.Link}, []netip.Prefix(nil)
	switch {
	case network.Primary:
		end.mac, list = n.Gateway.MAC, n.Gateway.Addresses
	case network.Link != nil:
		end.mac, list = network.Link.MAC, network.Link.Addresses
	}
	for _, p := range list {
		if p.Masked() == network.Prefix {
			end.at = p.Addr()
		}
	}
	return end, end.at.IsValid() && end.mac != cluster.MAC{} && (!network.Primary || n.Gateway.Uplink != "")
}

// CanShare reports whether two nodes can have an address at the same time, while it moves: both
// must be on its network.
func CanShare(s *cluster.Snapshot, x *cluster.EgressIP, from, to string, a netip.Addr) bool {
	for _, name := range []string{from, to} {
		n := s.Node(name)
		if n == nil {
			return false
		}
		if _, ok := networkEndOf(n, &s.Config, x, a); !ok {
			return false
		}
	}
	return true
}

// unknownTo matches packets to an address that belong to no connection known to this node.
func unknownTo(a netip.Addr) []flow.Match {
	var list []flow.Match
	// a reply whose request conntrack has not seen is invalid
	for _, bit := range []flow.CTBits{flow.CTNew, flow.CTInv} {
		list = append(list, flow.Match{Protocol: node.Vocab(cluster.FamilyOf(a)).IP, Dst: node.HostPrefix(a),
			CTState: flow.CTState{Set: bit | flow.CTTrk}})
	}
	return list
}

// forwardUnknown forwards packets of connections that this node does not know to the other node, if
// that has an end of the network, and drops them if that node sent them. It also drops packets to
// the address from the gateway router and the host: neither has the address, so they would route to
// the uplink what they get for it.
func forwardUnknown(b *node.Bridge, a netip.Addr, peer []networkEnd) {
	for _, m := range unknownTo(a) {
		if len(peer) == 0 {
			b.Add(pipeline.GatewayUplinkConntrack, prioMoved, m, flow.Drop{})
			continue
		}
		to := peer[0].mac
		b.Add(pipeline.GatewayUplinkConntrack, prioMoved, m, flow.SetEthSrc{MAC: b.MAC}, flow.SetEthDst{MAC: to},
			flow.InPort{})
		m.EthSrc = to
		b.Add(pipeline.GatewayUplinkConntrack, prioLoop, m, flow.Drop{})
	}
	for _, port := range []string{b.OVN, flow.Local} {
		b.Classify(prioOwn, flow.Match{InPort: port, Protocol: node.Vocab(cluster.FamilyOf(a)).IP,
			Dst: node.HostPrefix(a)}, flow.Drop{})
	}
}

// forwardAll forwards all packets to the other node, except those that it sent, also those of
// connections that this node knows. Conntrack may know a connection with the same ports from an
// earlier stay of the address, and OVN, which would get its packets, may not have its flows yet.
func forwardAll(b *node.Bridge, a netip.Addr, to cluster.MAC) {
	m := flow.Match{InPort: b.Uplink, EthDst: b.MAC, Protocol: node.Vocab(cluster.FamilyOf(a)).IP,
		Dst: node.HostPrefix(a)}
	b.Classify(prioEarly, m, flow.SetEthSrc{MAC: b.MAC}, flow.SetEthDst{MAC: to}, flow.InPort{})
	m.EthSrc = to
	b.Classify(prioReturned, m, node.TrackFromUplink)
}

// forwardLater forwards later packets of TCP connections to Services at an address to the other
// nodes if this node does not track them, unless one of them sent them. The other nodes check the
// Service's source ranges.
func forwardLater(b *node.Bridge, a netip.Addr, peers []networkEnd) {
	forwards := []flow.Action{flow.SetEthSrc{MAC: b.MAC}}
	for _, p := range peers {
		if p.mayForwardTo() {
			forwards = append(forwards, flow.SetEthDst{MAC: p.mac}, flow.InPort{})
		}
	}
	if len(forwards) == 1 {
		forwards = []flow.Action{flow.Drop{}}
	}
	later := flow.Match{Protocol: node.Vocab(cluster.FamilyOf(a)).L4[cluster.TCP], TCPFlags: flow.NoSYN,
		Dst: node.HostPrefix(a)}
	forward := func(bridge string, table uint8, prioForward, prioDrop uint16, m flow.Match, clearBits flow.CTBits) {
		for _, bit := range []flow.CTBits{flow.CTNew, flow.CTInv} {
			m.CTState = flow.CTState{Set: bit | flow.CTTrk, Clear: clearBits}
			b.AddTo(bridge, table, prioForward, m, forwards...)
			fromPeer := m
			for _, p := range peers {
				fromPeer.EthSrc = p.mac
				b.AddTo(bridge, table, prioDrop, fromPeer, flow.Drop{})
			}
		}
	}
	if !b.Env.HasExternalClients() {
		forward("", pipeline.GatewayUplinkConntrack, prioMoved, prioLoop, later, 0)
		return
	}
	// Packets that would go to the host, for an endpoint there.
	forward("", pipeline.GatewayServiceConntrack, prioMoved, prioLoop, later, 0)
	later.InPort = claims.ExternalPatch
	// The userspace datapath calls packets of known connections invalid, too. They have the bits of
	// their translation.
	forward(claims.ServiceBridge, pipeline.SvcServiceConntrack, prioSvcMoved, prioSvcLoop, later,
		flow.CTDnat|flow.CTSnat)
	// The source MAC must stay: the other nodes have recorded the MAC to which they reply.
	for _, p := range peers {
		later.EthSrc, later.EthDst = p.mac, b.MAC
		b.AddTo(claims.ServiceBridge, pipeline.SvcClassifier, prioPeer, later, flow.CT{Zone: claims.ZoneServices,
			Table: pipeline.SvcServiceConntrack, NAT: flow.NAT{Kind: flow.NATUndo}})
	}
}
