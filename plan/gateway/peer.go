package gateway

import (
	"net/netip"
	"slices"
	"strconv"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/datapath/nb"
	"hairpin/pipeline"
	"hairpin/plan/node"
)

// OVN knows nothing of other nodes, as it would compute all anew for one that joins or leaves
// (docs/operations/sizing.md). Beyond one port of its transit switch is claims.TunnelBridge, where
// flows say what OVN's own tunnels carry: a zone whose OVN knows its peers sees no difference.

// Priorities of flows of claims.TunnelBridge.
const (
	prioToNode = 110 // by the MAC of its router: what a policy sends to a node, whatever its address is
	prioToPeer = 100 // by address
	prioTooBig = 90
)

// transit joins the node's zone to those of the other nodes. Every zone has the same switch, with
// the same tunnel keys: the node's number is the key of its port.
func transit(z *node.Zone, to *datapath.State) {
	name := z.Node.Name
	z.Rows.Add(&nb.Switch{Name: claims.TransitSwitch, Owner: z.Owner, OtherConfig: map[string]string{
		"interconn-ts":      claims.TransitSwitch,
		"requested-tnl-key": strconv.Itoa(claims.TransitTunnelKey),
	}})
	z.Link(nb.RouterPort{
		Name: node.RouterToTransit(name), Router: claims.ClusterRouter,
		Networks: z.Addresses(func(s *node.Stack) netip.Prefix { return s.Transit }),
	}, claims.TransitSwitch, node.TransitToRouter(name),
		map[string]string{"requested-tnl-key": strconv.Itoa(z.Node.ID)})
	for i := range z.Stacks {
		hop := node.TransitAddress(&z.Stacks[i], node.AnyNode)
		for _, r := range remoteRanges(&z.Stacks[i]) {
			z.Rows.Add(&nb.Route{Router: claims.ClusterRouter, Prefix: r, NextHop: hop, Owner: z.Owner})
		}
	}

	tunnelBridge(&z.Env, &to.Bridge)
}

// bySource returns the sources of routes by source: the cluster's ranges. A range longer than
// spreadBits is widened to that length, because the join range is split into parts of the length of
// these routes. No packet has a source in what is added: pods send from addresses of their own
// only, and packets of other senders are for pods or gateway routers, to which longer routes lead.
func bySource(s *node.Stack) (list []netip.Prefix) {
	for _, c := range s.Cluster {
		c = netip.PrefixFrom(c.Addr(), min(c.Bits(), s.SpreadBits())).Masked()
		if !slices.Contains(list, c) {
			list = append(list, c)
		}
	}
	return list
}

// remoteRanges are the ranges where other nodes have pods and gateway routers, in parts so small
// that routes to them come before those by source (zone.clusterRouter), and before the join switch
// itself.
func remoteRanges(s *node.Stack) (list []netip.Prefix) {
	bits := s.SpreadBits()
	for _, c := range s.Cluster {
		list = append(list, halved(c, bits)...)
	}
	return append(list, halved(s.Reached(), max(bits, s.Join.Bits()+1))...)
}

// halved are the parts of a range that have so many bits.
func halved(p netip.Prefix, bits int) []netip.Prefix {
	if p.Bits() >= bits {
		return []netip.Prefix{p}
	}
	half := p.Addr().AsSlice()
	half[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	upper, _ := netip.AddrFromSlice(half) // it has the length of an address
	return slices.Concat(halved(netip.PrefixFrom(p.Addr(), p.Bits()+1), bits),
		halved(netip.PrefixFrom(upper, p.Bits()+1), bits))
}

// peer is another node, seen from the planned one.
type peer struct {
	node          *cluster.Node
	transit, join []netip.Prefix // one per Stack
}

// checkPeer checks another node and gives its addresses. A node that is not ready to be reached is
// left out; the others are not affected.
func checkPeer(c *node.Checker, e *node.Env, n *cluster.Node) (peer, bool) {
	p := peer{node: n}
	c.Known(n)
	if len(c.Problems) > 0 || e.Rejects(n) {
		return p, false
	}
	for i := range e.Stacks {
		s := &e.Stacks[i]
		transit := c.Nth(s.Transit.Masked(), n.ID+node.NodeOffset, node.FieldID)
		join := c.Nth(s.Join.Masked(), n.ID+node.NodeOffset, node.FieldID)
		p.transit, p.join = append(p.transit, transit), append(p.join, join)
	}
	if len(c.Problems) > 0 {
		return p, false
	}
	return p, true
}

// tunnelBridge is claims.TunnelBridge, its way to OVN, and the port of all tunnels.
func tunnelBridge(e *node.Env, s *flow.State) {
	owner, name := node.OwnerOf(e.Node.Name), claims.TunnelBridge
	s.Bridges = map[string]flow.Bridge{name: {Name: name, Userspace: e.Node.Gateway.Userspace, Owner: owner}}
	for _, p := range []flow.Port{
		{Name: claims.TunnelPort, Bridge: name, Type: "geneve", Local: e.Node.Addresses[0]},
		{Name: claims.TunnelPatch, Bridge: name, Type: "patch", Peer: claims.OthersPatch},
		{Name: claims.OthersPatch, Bridge: claims.IntegrationBridge, Type: "patch", Peer: claims.TunnelPatch,
			ExternalIDs: map[string]string{"iface-id": node.OthersPort(e.Node.Name)}},
	} {
		p.Owner = owner
		s.Ports[p.Name] = p
	}
	if e.Node.Gateway.Userspace {
		s.TunnelNeighbors = map[netip.Addr]cluster.MAC{}
	} else {
		tooBig(e, s)
	}
	if x, ok := newEncap(e); ok {
		s.TunnelBridge, s.TunnelRoutes = claims.EncapBridge, map[netip.Addr]netip.Addr{}
		s.TunnelNeighbors[x.host.Addr()] = x.hostMAC()
	}
}

// tooBig accepts what the kernel's tunnel port answers itself to a packet that is too long for the
// path to its peer: an ICMP error, with the tunnel metadata of that packet, which no peer's flow
// matches. The userspace datapath does not look at the path's MTU.
func tooBig(e *node.Env, s *flow.State) {
	all := cluster.MACFor(node.TransitAddress(&e.Stacks[0], node.AnyNode))
	for i := range e.Stacks {
		m := node.Vocab(e.Stacks[i].Family).TooBig
		m.InPort = claims.TunnelPort
		k := flow.Key{Bridge: claims.TunnelBridge, Table: pipeline.TunnelNodes, Priority: prioTooBig, Match: m}
		s.Flows.Put(k.ID(), &flow.Flow{Key: k, Feature: claims.FeatureTunnels, Owner: node.OwnerOf(e.Node.Name),
			Actions: []flow.Action{flow.SetEthSrc{MAC: all}, flow.Output{Port: claims.TunnelPatch}}})
	}
}

// Peers lead to other nodes, and let in what comes from them.
func Peers(e node.Env) (datapath.State, []cluster.Problem) {
	to := datapath.State{Bridge: flow.State{TunnelNeighbors: map[netip.Addr]cluster.MAC{},
		TunnelRoutes: map[netip.Addr]netip.Addr{}}}
	ends := newTunnelEnds(&e)
	var problems []cluster.Problem
	for _, n := range e.Peers {
		c := node.Checker{Owner: node.OwnerOf(n.Name)}
		if p, ok := checkPeer(&c, &e, n); ok {
			addTunnel(&e, p, &to.Bridge)
			tunnelTo(&c, &e, n, &to)
		}
		ends.add(n)
		problems = append(append(problems, c.Problems...), ends.problems()...)
	}
	to.Bridge.Flows.Insert(ends.Flows.All())
	to.NFT = ends.tables()
	return to, problems
}

// addTunnel leads to another node by a tunnel, and takes what comes from it. What no flow leads
// anywhere is dropped.
func addTunnel(e *node.Env, p peer, s *flow.State) {
	own, id := uint32(e.Node.ID), uint32(p.node.ID)
	add := func(priority uint16, m flow.Match, actions ...flow.Action) {
		k := flow.Key{Bridge: claims.TunnelBridge, Priority: priority, Match: m}
		s.Flows.Put(k.ID(), &flow.Flow{Key: k, Feature: claims.FeatureTunnels, Actions: actions,
			Owner: node.OwnerOf(p.node.Name)})
	}
	tunnel := func(from, to uint32) flow.Tunnel {
		return flow.Tunnel{Key: claims.TransitTunnelKey, Ports: from<<16 | to, Peer: p.node.Addresses[0]}
	}
	// Of the nodes' MACs OVN knows this one alone; what a router says of a packet it sends back to
	// where that came from.
	all := cluster.MACFor(node.TransitAddress(&e.Stacks[0], node.AnyNode))
	add(prioToPeer, flow.Match{InPort: claims.TunnelPort, Tunnel: tunnel(id, own)}, flow.SetEthSrc{MAC: all},
		flow.Output{Port: claims.TunnelPatch})

	mac := cluster.MACFor(p.transit[0].Addr())
	// The userspace datapath finds no route for a tunnel's packet that has a mark.
	out := []flow.Action{flow.SetPktMark{}, flow.SetTunnel{Tunnel: tunnel(own, id)},
		flow.Output{Port: claims.TunnelPort}}
	add(prioToNode, flow.Match{InPort: claims.TunnelPatch, EthDst: mac}, out...)
	for i := range e.Stacks {
		f := e.Stacks[i].Family
		for _, to := range []netip.Prefix{node.HostPrefix(p.join[i].Addr()), p.node.PodCIDR(f)} {
			if to.IsValid() {
				m := flow.Match{InPort: claims.TunnelPatch, Protocol: node.Vocab(f).IP, Dst: to.Masked()}
				add(prioToPeer, m, append([]flow.Action{flow.SetEthDst{MAC: mac}}, out...)...)
			}
		}
	}
}

// tunnelTo records the MAC of a tunnel's other end, if it is on our network: the userspace datapath
// loses the first packet to a neighbour that it has not resolved.
func tunnelTo(c *node.Checker, e *node.Env, n *cluster.Node, to *datapath.State) {
	end := n.Addresses[0]
	if x, ok := newEncap(e); ok {
		to.Bridge.TunnelRoutes[end] = x.host.Addr()
		return
	}
	s := e.Stack(cluster.FamilyOf(end))
	if !e.Node.Gateway.Userspace || s == nil || !s.Address.Masked().Contains(end) {
		return
	}
	mac := n.Gateway.MAC
	if !e.Config.ModeOf(n).Uplink { // the node's MAC is that of its device
		mac = n.Gateway.DeviceMAC
	}
	if mac == (cluster.MAC{}) {
		c.Problem(node.FieldGateway, "mac-address: the link of %s has none, so the first packet to it will be lost",
			end)
		return
	}
	to.Bridge.TunnelNeighbors[end] = mac
}
