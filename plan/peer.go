package plan

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/datapath/nb"
)

// OVN knows nothing of other nodes, as it would compute all anew for one that joins or leaves (docs/operations/sizing.md). Beyond one port of its transit switch is
// claims.TunnelBridge, where flows say what OVN's own tunnels carry: a zone whose OVN knows its peers sees no difference.

// Priorities of flows of claims.TunnelBridge.
const (
	prioToNode = 110 // by the MAC of its router: what a policy sends to a node, whatever its address is
	prioToPeer = 100 // by address
)

// transit joins the node's zone to those of the other nodes. Every zone has the same switch, with the same tunnel
// keys: the node's number is the key of its port.
func (z *zone) transit(to *datapath.State) {
	name := z.Node.Name
	z.rows.Add(&nb.Switch{Name: claims.TransitSwitch, Owner: z.owner, OtherConfig: map[string]string{
		"interconn-ts":      claims.TransitSwitch,
		"requested-tnl-key": strconv.Itoa(claims.TransitTunnelKey),
	}})
	z.link(nb.RouterPort{
		Name: routerToTransit(name), Router: claims.ClusterRouter,
		Networks: z.addresses(func(s *Stack) netip.Prefix { return s.Transit }),
	}, claims.TransitSwitch, transitToRouter(name), map[string]string{"requested-tnl-key": strconv.Itoa(z.Node.ID)})
	for i := range z.Stacks {
		hop := onTransit(&z.Stacks[i], nobody)
		for _, r := range z.Stacks[i].beyond() {
			z.rows.Add(&nb.Route{Router: claims.ClusterRouter, Prefix: r, NextHop: hop, Owner: z.owner})
		}
	}

	tunnelBridge(&z.Env, &to.Bridge)
}

// nobody is the ID of no node. Its place on the transit network stands for all nodes.
const nobody = 0

// onTransit is the address of a node's router on the transit switch, if there is room for its ID.
func onTransit(s *Stack, id int) netip.Addr {
	a, _ := cluster.Nth(s.Transit.Masked(), id+nodeOffset)
	return a
}

// bySource returns the sources of routes by source: the cluster's ranges. A range longer than spreadBits is widened to that length,
// because the join range is split into parts of the length of these routes. No packet has a source in what is added: pods send from
// addresses of their own only, and packets of other senders are for pods or gateway routers, to which longer routes lead.
func (s *Stack) bySource() (list []netip.Prefix) {
	for _, c := range s.Cluster {
		c = netip.PrefixFrom(c.Addr(), min(c.Bits(), s.spreadBits())).Masked()
		if !slices.Contains(list, c) {
			list = append(list, c)
		}
	}
	return list
}

// beyond are the ranges where other nodes have pods and gateway routers, in parts so small that routes to them come before those by
// source (zone.clusterRouter), and before the join switch itself.
func (s *Stack) beyond() (list []netip.Prefix) {
	bits := s.spreadBits()
	for _, c := range s.Cluster {
		list = append(list, halved(c, bits)...)
	}
	return append(list, halved(s.reached(), max(bits, s.Join.Bits()+1))...)
}

// reached returns the part of the join range in which gateway routers have addresses.
func (s *Stack) reached() netip.Prefix {
	join := s.Join.Masked()
	return netip.PrefixFrom(join.Addr(), max(join.Bits(), join.Addr().BitLen()-idBits))
}

// spreadBits returns the length of the longest route by source: that of the smallest of the cluster's ranges, as long as
// the join range has at most 1<<joinSpread parts of this length.
func (s *Stack) spreadBits() int {
	_, bits := bitsOf(s.Cluster)
	return min(bits, s.reached().Bits()+joinSpread)
}

// joinSpread limits into how many parts the join range is split: each is a route.
const joinSpread = 4

// maxSpread limits how much the cluster's ranges may differ.
const maxSpread = 8

// bitsOf are those of the largest and of the smallest range.
func bitsOf(ranges []netip.Prefix) (few, most int) {
	for i, r := range ranges {
		if i == 0 {
			few = r.Bits()
		}
		few, most = min(few, r.Bits()), max(most, r.Bits())
	}
	return few, most
}

// idBits are enough for the place of each node on the join network.
const idBits = 16

// halved are the parts of a range that have so many bits.
func halved(p netip.Prefix, bits int) []netip.Prefix {
	if p.Bits() >= bits {
		return []netip.Prefix{p}
	}
	half := p.Addr().AsSlice()
	half[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	upper, _ := netip.AddrFromSlice(half) // it has the length of an address
	return slices.Concat(halved(netip.PrefixFrom(p.Addr(), p.Bits()+1), bits), halved(netip.PrefixFrom(upper, p.Bits()+1), bits))
}

// othersPort is the port of the transit switch behind which all other nodes are.
func othersPort(node string) string { return "others-" + node }

// others is that port. OVN knows the address that routes name, and those of nodes that policies name, by their IDs. Only what has no type, and
// addresses that are known, changes without ovn-northd computing all anew.
func (e *Env) others(ids []int) *nb.SwitchPort {
	p := &nb.SwitchPort{Name: othersPort(e.Node.Name), Switch: claims.TransitSwitch, Owner: nodeOwner(e.Node.Name)}
	for _, id := range append([]int{nobody}, ids...) {
		if !onTransit(&e.Stacks[0], id).IsValid() {
			continue // nor is it a peer
		}
		words := []string{cluster.MACFor(onTransit(&e.Stacks[0], id)).String()}
		for i := range e.Stacks {
			words = append(words, onTransit(&e.Stacks[i], id).String())
		}
		p.Addresses = append(p.Addresses, strings.Join(words, " "))
	}
	return p
}

// peer is another node, seen from the planned one.
type peer struct {
	node          *cluster.Node
	transit, join []netip.Prefix // one per Stack
}

// peer checks another node and gives its addresses. A node that is not ready to be reached is left out; the others
// are not affected.
func (c *checker) peer(e *Env, n *cluster.Node) (peer, bool) {
	p := peer{node: n}
	c.known(n)
	if len(c.problems) > 0 || e.refuses(n) {
		return p, false
	}
	for i := range e.Stacks {
		s := &e.Stacks[i]
		transit := c.nth(s.Transit.Masked(), n.ID+nodeOffset, fieldID)
		join := c.nth(s.Join.Masked(), n.ID+nodeOffset, fieldID)
		p.transit, p.join = append(p.transit, transit), append(p.join, join)
	}
	if len(c.problems) > 0 {
		return p, false
	}
	return p, true
}

// tunnelBridge is claims.TunnelBridge, its way to OVN, and the port of all tunnels.
func tunnelBridge(e *Env, s *flow.State) {
	owner, name := nodeOwner(e.Node.Name), claims.TunnelBridge
	s.Bridges = map[string]flow.Bridge{name: {Name: name, Userspace: e.Node.Gateway.Userspace, Owner: owner}}
	for _, p := range []flow.Port{
		{Name: claims.TunnelPort, Bridge: name, Type: "geneve", Local: e.Node.Addresses[0]},
		{Name: claims.TunnelPatch, Bridge: name, Type: "patch", Peer: claims.OthersPatch},
		{Name: claims.OthersPatch, Bridge: claims.IntegrationBridge, Type: "patch", Peer: claims.TunnelPatch, ExternalIDs: map[string]string{"iface-id": othersPort(e.Node.Name)}},
	} {
		p.Owner = owner
		s.Ports[p.Name] = p
	}
	if e.Node.Gateway.Userspace {
		s.TunnelNeighbors = map[netip.Addr]cluster.MAC{}
	}
	if x, ok := newEncap(e); ok {
		s.TunnelBridge, s.TunnelRoutes = claims.EncapBridge, map[netip.Addr]netip.Addr{}
		s.TunnelNeighbors[x.host.Addr()] = x.hostMAC()
	}
}

// peers lead to other nodes, and let in what comes from them.
func peers(e Env) (datapath.State, []cluster.Problem) {
	to := datapath.State{Bridge: flow.State{TunnelNeighbors: map[netip.Addr]cluster.MAC{}, TunnelRoutes: map[netip.Addr]netip.Addr{}}}
	ends := newTunnelEnds(&e)
	var problems []cluster.Problem
	for _, n := range e.Peers {
		c := checker{owner: nodeOwner(n.Name)}
		if p, ok := c.peer(&e, n); ok {
			e.lead(p, &to.Bridge)
			c.tunnel(&e, n, &to)
		}
		ends.add(n)
		problems = append(append(problems, c.problems...), ends.problems()...)
	}
	to.Bridge.Flows.Insert(ends.flows.All())
	to.NFT = ends.tables()
	return to, problems
}

// lead leads to another node by a tunnel, and takes what comes from it. What no flow leads anywhere is dropped.
func (e *Env) lead(p peer, s *flow.State) {
	own, id := uint32(e.Node.ID), uint32(p.node.ID)
	add := func(priority uint16, m flow.Match, actions ...flow.Action) {
		k := flow.Key{Bridge: claims.TunnelBridge, Priority: priority, Match: m}
		s.Flows.Put(k.ID(), &flow.Flow{Key: k, Feature: claims.FeatureTunnels, Actions: actions, Owner: nodeOwner(p.node.Name)})
	}
	tunnel := func(from, to uint32) flow.Tunnel {
		return flow.Tunnel{Key: claims.TransitTunnelKey, Ports: from<<16 | to, Peer: p.node.Addresses[0]}
	}
	// Of the nodes' MACs OVN knows this one alone; what a router says of a packet it sends back to where that came from.
	all := cluster.MACFor(onTransit(&e.Stacks[0], nobody))
	add(prioToPeer, flow.Match{InPort: claims.TunnelPort, Tunnel: tunnel(id, own)}, flow.SetEthSrc{MAC: all}, flow.Output{Port: claims.TunnelPatch})

	mac := cluster.MACFor(p.transit[0].Addr())
	// The userspace datapath finds no route for a tunnel's packet that has a mark.
	out := []flow.Action{flow.SetPktMark{}, flow.SetTunnel{Tunnel: tunnel(own, id)}, flow.Output{Port: claims.TunnelPort}}
	add(prioToNode, flow.Match{InPort: claims.TunnelPatch, EthDst: mac}, out...)
	for i := range e.Stacks {
		f := e.Stacks[i].Family
		for _, to := range []netip.Prefix{single(p.join[i].Addr()), p.node.PodCIDR(f)} {
			if to.IsValid() {
				m := flow.Match{InPort: claims.TunnelPatch, Protocol: words(f).ip, Dst: to.Masked()}
				add(prioToPeer, m, append([]flow.Action{flow.SetEthDst{MAC: mac}}, out...)...)
			}
		}
	}
}

// tunnel records the MAC of a tunnel's other end, if it is on our network: the userspace datapath
// loses the first packet to a neighbour that it has not resolved.
func (c *checker) tunnel(e *Env, n *cluster.Node, to *datapath.State) {
	end := n.Addresses[0]
	if x, ok := newEncap(e); ok {
		to.Bridge.TunnelRoutes[end] = x.host.Addr()
		return
	}
	s := e.stack(cluster.FamilyOf(end))
	if !e.Node.Gateway.Userspace || s == nil || !s.Address.Masked().Contains(end) {
		return
	}
	mac := n.Gateway.MAC
	if !e.Config.ModeOf(n).Uplink { // the node's MAC is that of its device
		mac = n.Gateway.DeviceMAC
	}
	if mac == (cluster.MAC{}) {
		c.problem(fieldGateway, "mac-address: the link of %s has none, so the first packet to it will be lost", end)
		return
	}
	to.Bridge.TunnelNeighbors[end] = mac
}
