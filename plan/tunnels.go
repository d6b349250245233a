package plan

import (
	"net/netip"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/nft"
)

// tunnelPeers are the nodes that tunnels come from. A node that claims what is another's is none.
func (e *Env) tunnelPeers() []*cluster.Node {
	var list []*cluster.Node
	for _, n := range e.Nodes {
		if n.Name != e.Node.Name && len(n.Addresses) > 0 && !e.refuses(n) && cluster.FamilyOf(n.Addresses[0]) == cluster.FamilyOf(e.Node.Addresses[0]) {
			list = append(list, n)
		}
	}
	return list
}

// ownersOfHosts are the addresses of all nodes, by which their tunnels can be reached, of one family, and whose they are: also
// those that are not believed, because here a lie takes nothing but tunnels from anybody.
func (e *Env) ownersOfHosts(f cluster.Family) map[netip.Addr]cluster.Owner {
	list := map[netip.Addr]cluster.Owner{}
	for _, n := range e.Nodes {
		for _, p := range n.HostAddresses {
			if _, there := list[p.Addr()]; !there && cluster.FamilyOf(p.Addr()) == f {
				list[p.Addr()] = nodeOwner(n.Name)
			}
		}
	}
	return list
}

// tunnels lets Geneve between the nodes bypass conntrack, and no other into the node.
func (b *bridge) tunnels() {
	end := b.env.Node.Addresses[0]
	udp := words(cluster.FamilyOf(end)).l4[cluster.UDP]
	in := flow.Match{InPort: b.uplink, EthDst: b.mac, Protocol: udp, Dst: single(end), DstPort: geneve}
	for _, n := range b.env.tunnelPeers() {
		in.Src = single(n.Addresses[0])
		b.classify(prioTunnelIn, in, flow.Output{Port: flow.Local})
	}
	for i := range b.env.Stacks {
		s := &b.env.Stacks[i]
		for _, a := range append([]netip.Addr{s.Address.Addr()}, s.Others...) {
			b.classify(prioStranger, flow.Match{InPort: b.uplink, Protocol: words(s.Family).l4[cluster.UDP], Dst: single(a), DstPort: geneve}, flow.Drop{})
		}
	}
	b.classify(prioTunnel, flow.Match{InPort: flow.Local, Protocol: udp, DstPort: geneve}, flow.Output{Port: b.uplink})
}

// noTunnels keeps what the gateway router sends from the tunnels of all nodes: pods' packets leave with the node's own address,
// and a Service may have any endpoint.
func (b *bridge) noTunnels() {
	for i := range b.env.Stacks {
		s := &b.env.Stacks[i]
		list := b.env.ownersOfHosts(s.Family)
		list[s.MasqHost] = b.owner
		for a := range list {
			b.classify(prioNoTunnel, flow.Match{InPort: b.ovn, Protocol: words(s.Family).l4[cluster.UDP], Dst: single(a), DstPort: geneve}, flow.Drop{})
		}
	}
}

// setTunnelEnds is the nft set of the ends of other nodes' tunnels.
const setTunnelEnds = "tunnel-ends"

// endsSet is the set of the other nodes' ends.
func endsSet(e *Env) *nft.Set {
	source := words(cluster.FamilyOf(e.Node.Addresses[0])).src
	s := &nft.Set{Name: setTunnelEnds, Key: []nft.KeyField{source}, Elements: map[nft.Element]cluster.Owner{}}
	for _, n := range e.tunnelPeers() {
		s.Elements[nft.Element{Src: single(n.Addresses[0])}] = nodeOwner(n.Name)
	}
	return s
}

// tunnelChains let only nodes' tunnels into the host, and nothing of pods into those of any node: by the host's routing they
// would leave with its address.
func tunnelChains(e *Env, t *nft.Table, owner cluster.Owner) {
	port := nft.DstPort{Protocol: cluster.UDP, Port: geneve}
	t.Sets[setTunnelEnds] = endsSet(e)
	t.Chains[chainTunnelsIn] = &nft.Chain{Name: chainTunnelsIn, Type: "filter", Hook: "input", Priority: hookFilter, Owner: owner, Rules: []nft.Rule{
		{Matches: []nft.Match{nft.InSet{Set: setTunnelEnds}, port}, Do: nft.Accept{}, Comment: "tunnels of nodes", Owner: owner},
		{Matches: []nft.Match{port}, Do: nft.Drop{}, Comment: "tunnels of others", Owner: owner},
	}}
	forward := &nft.Chain{Name: chainTunnelsForward, Type: "filter", Hook: "forward", Priority: hookFilter, Owner: owner}
	for i := range e.Stacks {
		f := e.Stacks[i].Family
		hosts := declare(f)
		set := hosts.set("tunnels", words(f).dst) // all nodes' addresses
		for a, owner := range e.ownersOfHosts(f) {
			set.Elements[nft.Element{Addr: a}] = owner
		}
		hosts.in(t)
		forward.Rules = append(forward.Rules, nft.Rule{
			Matches: []nft.Match{nft.InInterface{Name: claims.ManagementPort}, nft.InSet{Set: set.Name}, port}, Do: nft.Drop{}, Comment: "pods to tunnels", Owner: owner,
		})
	}
	t.Chains[chainTunnelsForward] = forward
}
