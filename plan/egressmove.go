package plan

import (
	"maps"
	"net/netip"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
)

// Priorities of addresses that move.
const (
	prioMoved = 60  // in claims.TableWire: before new connections, and those to NodePorts
	prioBack  = 61  // and before them, what would go in circles
	prioMute  = 102 // in claims.TableClassify: before neighbour discovery
)

// inHand is an address that moves from or to the planned node, which translates to it though no pod is led here yet, or
// any more.
func (e *Env) inHand(x *cluster.EgressIP, f cluster.Family) netip.Addr {
	for _, m := range x.Moving {
		if cluster.FamilyOf(m.Address) == f && (m.From == e.Node.Name || m.To == e.Node.Name) {
			return m.Address
		}
	}
	return netip.Addr{}
}

// WithMoves adds what a node's bridge does about addresses that move between two living nodes. Both translate. The new one
// alone answers for the address, so it hears the replies to connections that the old one has translated, and knows
// nothing of them: it sends them on to the old one, which sends nothing back.
func WithMoves(state datapath.State, s *cluster.Snapshot, node string) datapath.State {
	own := s.Node(node)
	var b *bridge
	for _, e := range s.EgressIPs {
		for _, m := range e.Moving {
			if m.From != node && m.To != node || own == nil || !OnBridge(own, m.Address) {
				continue
			}
			if b == nil {
				b = newBridge(&Env{Node: own}, claims.FeatureGateway)
				b.flows = maps.Clone(state.Bridge.Flows)
			}
			b.owner = e.Owner
			if m.From == node {
				b.mute(m.Address)
			} else if from := s.Node(m.From); from != nil {
				b.sendOn(m.Address, from.Gateway.MAC)
			}
		}
	}
	if b != nil {
		state.Bridge.Flows = b.flows
	}
	return state
}

// OnBridge tells whether an address belongs to the network of a node's gateway bridge.
func OnBridge(n *cluster.Node, a netip.Addr) bool {
	for _, p := range n.Gateway.Addresses {
		if p.Contains(a) && n.Gateway.Uplink != "" {
			return true
		}
	}
	return false
}

// mute keeps the gateway router from answering for an address. What nobody knows any more ends here: the host would send it
// to the new node, which would send it back.
func (b *bridge) mute(a netip.Addr) {
	m := flow.Match{InPort: b.ovn, Protocol: flow.ARP, Src: single(a)}
	if a.Is6() {
		m = flow.Match{InPort: b.ovn, Protocol: flow.ICMP6, ICMPType: neighborAdvertisement + 1, Src: single(a)}
	}
	b.classify(prioMute, m, flow.Drop{})
	for _, m := range unknownTo(a) {
		b.add(claims.TableWire, prioMoved, m, flow.Drop{})
	}
}

// unknownTo matches packets to an address, of connections that this node does not know.
func unknownTo(a netip.Addr) []flow.Match {
	var list []flow.Match
	for _, bit := range []flow.CTBits{flow.CTNew, flow.CTInv} { // the answer to a connection's first packet, alone, is invalid
		list = append(list, flow.Match{Protocol: words(cluster.FamilyOf(a)).ip, Dst: single(a), CTState: flow.CTState{Set: bit | flow.CTTrk}})
	}
	return list
}

// sendOn sends packets of connections that this node does not know to another node, unless that sent them here: for a
// moment, two nodes may differ in which is the new one.
func (b *bridge) sendOn(a netip.Addr, to cluster.MAC) {
	for _, m := range unknownTo(a) {
		b.add(claims.TableWire, prioMoved, m, flow.SetEthSrc{MAC: b.mac}, flow.SetEthDst{MAC: to}, flow.Back{})
		m.EthSrc = to
		b.add(claims.TableWire, prioBack, m, flow.Drop{})
	}
}
