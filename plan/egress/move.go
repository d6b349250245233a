package egress

import (
	"maps"
	"net/netip"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/delta"
	"hairpin/pipeline"
	"hairpin/plan/node"
)

// Priorities of addresses that move.
const (
	prioEarly    = 51  // in pipeline.GatewayClassifier: before what comes from the wire
	prioReturned = 52  // and before that, what the old node does not know either
	prioMoved    = 60  // in pipeline.GatewayUplinkConntrack: before new connections, and those to NodePorts
	prioBack     = 61  // and before them, what would go in circles
	prioSuppress = 102 // in pipeline.GatewayClassifier: before neighbour discovery
	prioOwn      = 115 // in pipeline.GatewayClassifier: before what OVN and the host send to the uplink
)

// movingAddress is an address that moves from or to the planned node, which translates to it though
// no pod is led here yet, or any more.
func movingAddress(e *node.Env, x *cluster.EgressIP, f cluster.Family) netip.Addr {
	for _, m := range x.Moving {
		if cluster.FamilyOf(m.Address) == f && (m.From == e.Node.Name || m.To == e.Node.Name) {
			return m.Address
		}
	}
	return netip.Addr{}
}

// WithMoves adds what a node does about addresses that move between two living nodes. Both
// translate. The new one alone answers for the address, so it hears the replies to connections that
// the old one has translated, and knows nothing of them: it sends them on to the old one. That one
// sends on what it does not know, too: where pods are led to the new node at once, because the old
// one seemed to be dead, neighbours have not heard of the new one yet. What comes back so ends.
func WithMoves(state datapath.State, s *cluster.Snapshot, name string) datapath.State {
	own := s.Node(name)
	if own == nil || state.NB == nil && state.Bridge.Flows.Len() == 0 { // it cannot be planned
		return state
	}
	var b *node.Bridge
	var h *hostMoves
	for _, e := range s.EgressIPs {
		for _, m := range e.Moving {
			if m.From != name && m.To != name {
				continue
			}
			peer := m.From
			if m.From == name {
				peer = m.To
			}
			here, ok := networkEndOf(own, &s.Config, e, m.Address)
			there, known := networkEnd{}, false
			if n := s.Node(peer); n != nil {
				there, known = networkEndOf(n, &s.Config, e, m.Address)
			}
			switch {
			case !ok || m.To == "":
			case here.link != nil:
				if h == nil {
					h = newHostMoves(state)
				}
				h.owner = e.Owner
				if m.From == name {
					h.suppressReplies(m.Address, here)
				}
				h.forwardUnknown(m.Address, here, there, known)
			default:
				if b == nil {
					b = node.NewBridge(&node.Env{Node: own}, claims.FeatureGateway)
				}
				b.Owner = e.Owner
				if m.From == name {
					suppressReplies(b, m.Address)
				}
				forwardUnknown(b, m.Address, there.mac, known)
				if m.To == name && m.Early && known {
					forwardAll(b, m.Address, there.mac)
				}
			}
		}
	}
	if b != nil {
		state.Bridge.Flows = delta.Delta[flow.ID,
			*flow.Flow]{Change: maps.Collect(b.Flows.All())}.ApplyToMap(state.Bridge.Flows)
	}
	if h != nil {
		state.NFT, state.Host.Addresses = h.tables, h.addresses
	}
	return state
}

// networkEnd is a node's end of the network that an egress address belongs to.
type networkEnd struct {
	link *cluster.HostLink // nil: the gateway bridge
	mac  cluster.MAC
	at   netip.Addr // the node's own address there
}

// networkEndOf finds it. It is false where the node has no such network, or one without Ethernet.
func networkEndOf(n *cluster.Node, config *cluster.Config, e *cluster.EgressIP, a netip.Addr) (networkEnd, bool) {
	if e.ByTable() { // it comes and goes by whatever links the table has
		return networkEnd{}, false
	}
	x, _ := e.NetworkFor(n, n.Networks(config), a)
	end, list := networkEnd{link: x.Link}, []netip.Prefix(nil)
	switch {
	case x.Primary:
		end.mac, list = n.Gateway.MAC, n.Gateway.Addresses
	case x.Link != nil:
		end.mac, list = x.Link.MAC, x.Link.Addresses
	}
	for _, p := range list {
		if p.Masked() == x.Prefix {
			end.at = p.Addr()
		}
	}
	return end, end.at.IsValid() && end.mac != cluster.MAC{} && (!x.Primary || n.Gateway.Uplink != "")
}

// CanShare reports whether an address can be with two nodes for a time, while it moves: both are on
// its network.
func CanShare(s *cluster.Snapshot, e *cluster.EgressIP, from, to string, a netip.Addr) bool {
	for _, name := range []string{from, to} {
		n := s.Node(name)
		if n == nil {
			return false
		}
		if _, ok := networkEndOf(n, &s.Config, e, a); !ok {
			return false
		}
	}
	return true
}

// suppressReplies keeps the gateway router from answering for an address.
func suppressReplies(b *node.Bridge, a netip.Addr) {
	m := flow.Match{InPort: b.Ovn, Protocol: flow.ARP, Src: node.HostPrefix(a)}
	if a.Is6() {
		m = flow.Match{InPort: b.Ovn, Protocol: flow.ICMP6, ICMPType: node.NeighborAdvertisement + 1,
			Src: node.HostPrefix(a)}
	}
	b.Classify(prioSuppress, m, flow.Drop{})
}

// unknownTo matches packets to an address, of connections that this node does not know.
func unknownTo(a netip.Addr) []flow.Match {
	var list []flow.Match
	// the answer to a connection's first packet, alone, is invalid
	for _, bit := range []flow.CTBits{flow.CTNew, flow.CTInv} {
		list = append(list, flow.Match{Protocol: node.Vocab(cluster.FamilyOf(a)).IP, Dst: node.HostPrefix(a),
			CTState: flow.CTState{Set: bit | flow.CTTrk}})
	}
	return list
}

// forwardUnknown sends packets of connections that this node does not know to the other node,
// unless that sent them here. What that one does not know either would go to and fro by the gateway
// router and the host as well, which route it: the address is neither's.
func forwardUnknown(b *node.Bridge, a netip.Addr, to cluster.MAC, known bool) {
	for _, m := range unknownTo(a) {
		if !known {
			b.Add(pipeline.GatewayUplinkConntrack, prioMoved, m, flow.Drop{})
			continue
		}
		b.Add(pipeline.GatewayUplinkConntrack, prioMoved, m, flow.SetEthSrc{MAC: b.Mac}, flow.SetEthDst{MAC: to},
			flow.InPort{})
		m.EthSrc = to
		b.Add(pipeline.GatewayUplinkConntrack, prioBack, m, flow.Drop{})
	}
	for _, port := range []string{b.Ovn, flow.Local} {
		b.Classify(prioOwn, flow.Match{InPort: port, Protocol: node.Vocab(cluster.FamilyOf(a)).IP,
			Dst: node.HostPrefix(a)}, flow.Drop{})
	}
}

// forwardAll sends everything on to the other node, but for what that sent. Conntrack may know a
// connection with the same ports from when the address was here before, and OVN, which would get
// its packets, need not have its flows yet.
func forwardAll(b *node.Bridge, a netip.Addr, to cluster.MAC) {
	m := flow.Match{InPort: b.Uplink, EthDst: b.Mac, Protocol: node.Vocab(cluster.FamilyOf(a)).IP,
		Dst: node.HostPrefix(a)}
	b.Classify(prioEarly, m, flow.SetEthSrc{MAC: b.Mac}, flow.SetEthDst{MAC: to}, flow.InPort{})
	m.EthSrc = to
	b.Classify(prioReturned, m, node.TrackFromUplink)
}
