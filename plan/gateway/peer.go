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
	"hairpin/datapath/ovs"
	"hairpin/pipeline"
	"hairpin/plan/node"
)

// OVN has no data of other nodes: for each that joins or leaves, it would recompute everything
// (docs/operations/sizing.md). One port of its transit switch leads to claims.TunnelBridge, whose
// flows set the metadata of OVN's own tunnels. So a node with OVN's own tunnels is a valid peer.

// Priorities of flows of claims.TunnelBridge.
const (
	prioToNode = 110 // by router MAC: packets that a policy sends to a node, whatever their address is
	prioToPeer = 100 // by address
	prioTooBig = 90
)

// transit connects the node's zone to those of the other nodes. Every zone has the same switch,
// with the same tunnel keys: the node's ID is the key of its port.
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
// SourceRouteBits is widened to that length, because the join range is split into parts of the
// length of these routes. No packet has a source in the added part: pods send only from their own
// addresses, and packets of other senders are for pods or gateway routers, which have longer
// routes.
func bySource(s *node.Stack) (list []netip.Prefix) {
	for _, c := range s.Cluster {
		c = netip.PrefixFrom(c.Addr(), min(c.Bits(), s.SourceRouteBits())).Masked()
		if !slices.Contains(list, c) {
			list = append(list, c)
		}
	}
	return list
}

// remoteRanges returns the ranges of other nodes' pods and gateway routers. The parts are so small
// that routes to them precede those by source (clusterRouter) and the join switch itself.
func remoteRanges(s *node.Stack) (list []netip.Prefix) {
	bits := s.SourceRouteBits()
	for _, c := range s.Cluster {
		list = append(list, split(c, bits)...)
	}
	return append(list, split(s.GatewayRouters(), max(bits, s.Join.Bits()+1))...)
}

// split splits a range into parts with the given prefix length.
func split(p netip.Prefix, bits int) []netip.Prefix {
	if p.Bits() >= bits {
		return []netip.Prefix{p}
	}
	lower, upper := cluster.Halves(p)
	return slices.Concat(split(lower, bits), split(upper, bits))
}

// peer is another node, seen from the planned one.
type peer struct {
	node          *cluster.Node
	transit, join []netip.Prefix // one per Stack
}

// checkPeer checks another node and returns its addresses. A node that cannot be reached yet is
// left out; the others are not affected.
func checkPeer(c *node.Checker, e *node.Env, n *cluster.Node) (peer, bool) {
	p := peer{node: n}
	c.CheckReachable(n)
	if len(c.Problems) > 0 || e.RejectsNode(n) {
		return p, false
	}
	for i := range e.Stacks {
		s := &e.Stacks[i]
		transit := c.Nth(s.Transit.Masked(), n.ID+claims.NodeOffset, node.FieldID)
		join := c.Nth(s.Join.Masked(), n.ID+claims.NodeOffset, node.FieldID)
		p.transit, p.join = append(p.transit, transit), append(p.join, join)
	}
	if len(c.Problems) > 0 {
		return p, false
	}
	return p, true
}

// tunnelBridge adds claims.TunnelBridge, its patch to OVN, and the port of all tunnels.
func tunnelBridge(e *node.Env, s *ovs.State) {
	owner, name := cluster.NodeOwner(e.Node.Name), claims.TunnelBridge
	s.Bridges = map[string]ovs.Bridge{name: {Name: name, Userspace: e.Node.Gateway.Userspace, Owner: owner}}
	s.Named[name] = true
	for _, p := range []ovs.Port{
		{Name: claims.TunnelPort, Bridge: name, Type: "geneve", Local: e.Node.Addresses[0]},
		{Name: claims.TunnelPatch, Bridge: name, Type: "patch", Peer: claims.OthersPatch},
		{Name: claims.OthersPatch, Bridge: claims.IntegrationBridge, Type: "patch", Peer: claims.TunnelPatch,
			ExternalIDs: map[string]string{"iface-id": node.RemoteNodesPortName(e.Node.Name)}},
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

// tooBig accepts ICMP errors of the kernel's tunnel port about packets that are too long for the
// path to a peer. They have the tunnel metadata of that packet, which no peer's flow matches. The
// userspace datapath does not check the path MTU.
func tooBig(e *node.Env, s *ovs.State) {
	router := anyRouterMAC(e)
	for i := range e.Stacks {
		m := node.Vocab(e.Stacks[i].Family).TooBig
		m.InPort = claims.TunnelPort
		k := flow.Key{Bridge: claims.TunnelBridge, Table: pipeline.TunnelNodes, Priority: prioTooBig, Match: m}
		s.Flows.Put(k.ID(), &flow.Flow{Key: k, Feature: claims.FeatureTunnels, Owner: cluster.NodeOwner(e.Node.Name),
			Actions: []flow.Action{flow.SetEthSrc{MAC: router}, flow.Output{Port: claims.TunnelPatch}}})
	}
}

// Peers plans the tunnels to other nodes, and accepts packets from them.
func Peers(e node.Env) (datapath.State, []cluster.Problem) {
	to := datapath.State{Bridge: ovs.State{TunnelNeighbors: map[netip.Addr]cluster.MAC{},
		TunnelRoutes: map[netip.Addr]netip.Addr{}}}
	ends := newTunnelEnds(&e)
	var problems []cluster.Problem
	for _, n := range e.Peers {
		c := node.Checker{Owner: cluster.NodeOwner(n.Name)}
		if p, ok := checkPeer(&c, &e, n); ok {
			addTunnel(&e, p, &to.Bridge)
			recordTunnelEnd(&c, &e, n, &to)
		}
		ends.add(n)
		problems = append(append(problems, c.Problems...), ends.problems()...)
	}
	to.Bridge.Flows.Insert(ends.Flows.All())
	to.NFT = ends.tables()
	return to, problems
}

// anyRouterMAC returns the only MAC of the nodes' routers that OVN knows. Packets from all nodes
// get it as their source, because a router returns an ICMP error to the source MAC of the packet.
func anyRouterMAC(e *node.Env) cluster.MAC {
	return cluster.MACFor(node.TransitAddress(&e.Stacks[0], node.AnyNode))
}

// addTunnel adds the flows to another node through a tunnel, and from it. Packets without a
// matching flow are dropped.
func addTunnel(e *node.Env, p peer, s *ovs.State) {
	own, id := uint32(e.Node.ID), uint32(p.node.ID)
	add := func(priority uint16, m flow.Match, actions ...flow.Action) {
		k := flow.Key{Bridge: claims.TunnelBridge, Priority: priority, Match: m}
		s.Flows.Put(k.ID(), &flow.Flow{Key: k, Feature: claims.FeatureTunnels, Actions: actions,
			Owner: cluster.NodeOwner(p.node.Name)})
	}
	tunnel := func(from, to uint32) flow.Tunnel {
		return flow.Tunnel{Key: claims.TransitTunnelKey, Ports: from<<16 | to, Peer: p.node.Addresses[0]}
	}
	router := anyRouterMAC(e)
	add(prioToPeer, flow.Match{InPort: claims.TunnelPort, Tunnel: tunnel(id, own)}, flow.SetEthSrc{MAC: router},
		flow.Output{Port: claims.TunnelPatch})

	mac := cluster.MACFor(p.transit[0].Addr())
	// The userspace datapath finds no route for a tunnel packet that has a mark.
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

// recordTunnelEnd records how the userspace datapath reaches a tunnel's other end: by the host, if
// the node has encap, or by its MAC, if it is on this node's network. That datapath loses the first
// packet to a neighbor that it has not resolved.
func recordTunnelEnd(c *node.Checker, e *node.Env, n *cluster.Node, to *datapath.State) {
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
