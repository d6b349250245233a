package gateway

import (
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/pipeline"
	"hairpin/plan/node"
)

// tunnels accepts Geneve packets only from nodes, and lets them bypass conntrack.
func tunnels(b *node.Bridge) {
	for i := range b.Env.Stacks {
		s := &b.Env.Stacks[i]
		for _, a := range append([]netip.Addr{s.Address.Addr()}, s.Secondary...) {
			m := flow.Match{Protocol: node.Vocab(s.Family).L4[cluster.UDP], Dst: node.HostPrefix(a),
				DstPort: node.Geneve}
			// Conntrack has reassembled it. Tunnels of nodes send no fragments, so it is a pod's,
			// from the address of its node.
			b.Add(pipeline.GatewayUplinkConntrack, node.PrioNoParts, m, flow.Drop{})
			m.InPort = b.Uplink
			b.Classify(node.PrioStranger, m, flow.Drop{})
		}
	}
	b.Classify(node.PrioTunnel, flow.Match{InPort: flow.Local,
		Protocol: node.Vocab(b.Env.TunnelFamily()).L4[cluster.UDP], DstPort: node.Geneve}, flow.Output{Port: b.Uplink})
}

// setTunnelEnds is the nft set of the tunnel addresses of other nodes.
const setTunnelEnds = "tunnel-ends"

// endsSet declares setTunnelEnds.
func endsSet(e *node.Env) *nft.Set {
	source := node.Vocab(e.TunnelFamily()).Src
	return &nft.Set{Name: setTunnelEnds, Key: []nft.KeyField{source}}
}

// tunnelEnds accepts packets from the tunnels of other nodes.
type tunnelEnds struct {
	*node.Bridge
	set          *nft.Set      // declared
	host, frames node.Elements // of it
	encap        encap
	hasEncap     bool
}

func newTunnelEnds(e *node.Env) tunnelEnds {
	t := tunnelEnds{Bridge: node.NewBridge(e, claims.FeatureGateway), set: endsSet(e), host: node.NewElements(),
		frames: node.NewElements()}
	t.encap, t.hasEncap = newEncap(e)
	return t
}

// add adds a node that has tunnels, unless it is rejected.
func (t *tunnelEnds) add(n *cluster.Node) {
	e := t.Env
	end := e.Node.Addresses[0]
	if n.ID == 0 || len(n.Addresses) == 0 || e.Rejects(n) || cluster.FamilyOf(n.Addresses[0]) != cluster.FamilyOf(end) {
		return
	}
	from := node.HostPrefix(n.Addresses[0])
	t.host.Of(t.set).Put(nft.Element{Src: from}, node.OwnerOf(n.Name))
	if t.hasEncap && e.Node.Gateway.Device != "" {
		t.frames.Of(t.set).Put(nft.Element{Src: from}, node.OwnerOf(n.Name))
	}
	if e.Mode.Uplink {
		t.Classify(node.PrioTunnelIn, flow.Match{InPort: t.Uplink, EthDst: t.Mac,
			Protocol: node.Vocab(cluster.FamilyOf(end)).L4[cluster.UDP], Src: from, Dst: node.HostPrefix(end),
			DstPort: node.Geneve},
			flow.Output{Port: flow.Local})
	}
}

// problems returns what keeps out the packets of another node. It is repeated for each node,
// because Problems are counted by the object from which they are planned.
func (t *tunnelEnds) problems() []cluster.Problem {
	c := node.Checker{Owner: t.Owner}
	if t.hasEncap && t.Env.Node.Gateway.Device == "" {
		c.Problem(node.FieldGateway, "device: no link of the host has %s, so tunnels from other nodes do not arrive",
			t.encap.end)
	}
	return c.Problems
}

func (t *tunnelEnds) tables() nft.State {
	s := nft.State{nft.Inet: t.host.Table}
	if t.hasEncap {
		s[nft.Netdev] = t.frames.Table
	}
	return s
}

// tunnelsSet declares the nft set of all nodes' addresses.
func tunnelsSet(f cluster.Family) *nft.Set { return node.Declare(f).Set("tunnels", node.Vocab(f).Dst) }

// tunnelChains accepts only nodes' tunnel packets at the host. It drops those of pods and Services
// to any node in the forward hook: they would leave with the host's own address. The kernel has
// already reassembled fragments. The packets of the node's own tunnels come from the link of encap,
// if the host forwards them.
func tunnelChains(e *node.Env, t *nft.Table, owner cluster.Owner) {
	port := nft.DstPort{Protocol: cluster.UDP, Port: node.Geneve}
	t.Sets[setTunnelEnds] = endsSet(e)
	t.Chains[node.ChainTunnelsIn] = &nft.Chain{Name: node.ChainTunnelsIn, Type: "filter", Hook: "input",
		Priority: node.HookFilter, Owner: owner, Rules: []nft.Rule{
			{Matches: []nft.Match{nft.InSet{Set: setTunnelEnds}, port}, Do: nft.Accept{}, Comment: "tunnels of nodes",
				Owner: owner},
			{Matches: []nft.Match{port}, Do: nft.Drop{}, Comment: "tunnels of others", Owner: owner},
		}}
	forward := &nft.Chain{Name: node.ChainTunnelsForward, Type: "filter", Hook: "forward", Priority: node.HookFilter,
		Owner: owner, Rules: []nft.Rule{
			{Matches: []nft.Match{nft.InSet{Set: setTunnelEnds}, port}, Do: nft.Return{}, Comment: "tunnels of nodes",
				Owner: owner},
		}}
	from := []string{claims.ManagementPort, e.Node.Gateway.Bridge}
	if e.Engine.ServiceBridge {
		from = append(from, claims.ServiceHost)
	}
	for i := range e.Stacks {
		set := tunnelsSet(e.Stacks[i].Family)
		t.Sets[set.Name] = set
		for _, link := range from {
			forward.Rules = append(forward.Rules, nft.Rule{
				Matches: []nft.Match{nft.InInterface{Name: link}, nft.InSet{Set: set.Name}, port},
				Do:      nft.Drop{}, Comment: "pods and Services to tunnels", Owner: owner,
			})
		}
	}
	t.Chains[node.ChainTunnelsForward] = forward
}

// Hosts plans the rules for the addresses of all nodes, at which their tunnels can be reached.
// Several nodes may have the same one. A node without an ID has no tunnel yet. The controller
// assigns the ID at once, and both come in one change of the node's network.
type Hosts struct {
	// nodes that report the address, sorted; also those that are not accepted, because here a false
	// report only blocks tunnels and reports of the pods' MTU
	of  map[netip.Addr][]string
	set datapath.State // OVN's address set of them
}

func NewHosts() *Hosts { return &Hosts{} }

func (p *Hosts) Update(_ *cluster.Snapshot, env *node.Env, c node.Changes, _ bool) (gone, come datapath.State) {
	nodes := c.Nodes
	if p.of == nil {
		p.of = map[netip.Addr][]string{}
		nodes.Come = append(slices.Clone(nodes.Come), env.Node) // which does not change
	}
	if len(nodes.Gone)+len(nodes.Come) == 0 {
		return gone, come
	}
	was := map[netip.Addr]string{}
	each := func(list []*cluster.Node, do func(names []string, name string) []string) {
		for _, n := range list {
			if n.ID == 0 {
				continue
			}
			for _, h := range n.HostAddresses {
				a := h.Addr()
				if cluster.HostOnly(a) {
					continue
				}
				if _, touched := was[a]; !touched {
					was[a] = first(p.of[a])
				}
				p.of[a] = do(p.of[a], n.Name)
			}
		}
	}
	each(nodes.Gone, without)
	each(nodes.Come, insertSorted)
	before, after := newHostRules(env), newHostRules(env)
	for a, name := range was {
		if now := first(p.of[a]); now != name {
			before.add(a, name)
			after.add(a, now)
		}
		if len(p.of[a]) == 0 {
			delete(p.of, a)
		}
	}
	gone, p.set = datapath.Union(before.state(), p.set), hostsRows(env)
	return gone, datapath.Union(after.state(), p.set)
}

// first returns the node that an address is attributed to, or "" if there is none.
func first(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return names[0]
}

// insertSorted adds a name. It is there twice if the node reports an address twice.
func insertSorted(names []string, name string) []string {
	i, _ := slices.BinarySearch(names, name)
	return slices.Insert(names, i, name)
}

func without(names []string, name string) []string {
	i, _ := slices.BinarySearch(names, name)
	return slices.Delete(names, i, i+1)
}

// hostsRows returns the address set that podMTU names, if it does.
func hostsRows(e *node.Env) datapath.State {
	s := datapath.State{NB: nb.State{}}
	if stack := e.Stack(e.TunnelFamily()); stack != nil && e.Mode.Uplink && e.Engine.LoadBalancers {
		s.NB.Add(&nb.AddressSet{Name: node.HostsSet(stack.Family), Addresses: e.NodeAddresses(stack),
			Owner: node.OwnerOf(e.Node.Name)})
	}
	return s
}

// hostRules drops packets of pods, and of the gateway router for them, to the tunnels of all nodes:
// the host would route pods' packets with the node's own address, and a Service may have any
// endpoint. It also drops ICMP errors to nodes that would make their tunnels' packets smaller.
type hostRules struct {
	*node.Bridge
	node.Elements
}

func newHostRules(e *node.Env) hostRules {
	return hostRules{node.NewBridge(e, claims.FeatureGateway), node.NewElements()}
}

// add adds the rules for an address, if a node has it.
func (r *hostRules) add(a netip.Addr, name string) {
	s := r.Env.Stack(cluster.FamilyOf(a))
	if name == "" || s == nil {
		return
	}
	r.Of(tunnelsSet(s.Family)).Put(nft.Element{Addr: a}, node.OwnerOf(name))
	if a != s.MasqHost {
		noTunnels(r.Bridge, s, a)
	}
	if s.Family == r.Env.TunnelFamily() && r.Env.Mode.Uplink && !r.Env.Engine.LoadBalancers {
		noMTU(r.Bridge, s, a)
	}
}

func (r *hostRules) state() datapath.State {
	return datapath.State{Bridge: flow.State{Flows: r.Flows}, NFT: nft.State{nft.Inet: r.Table}}
}

// noTunnels drops tunnel packets of the gateway router to an address.
func noTunnels(b *node.Bridge, s *node.Stack, a netip.Addr) {
	b.Classify(node.PrioNoTunnel, flow.Match{InPort: b.Ovn, Protocol: node.Vocab(s.Family).L4[cluster.UDP],
		Dst: node.HostPrefix(a), DstPort: node.Geneve}, flow.Drop{})
}

// noMTU drops reports to a node that pods have a smaller MTU than the external network
// (podMTU). The node would use that MTU for the whole path to this node, also for its tunnel,
// in which packets of pods would no longer fit. An address set of OVN costs ovn-controller 30 ms
// for each node that joins 1 000 (docs/reference/performance.md). But with OVN's load balancers the
// gateway router also forwards such errors to nodes with endpoints, and those must pass.
func noMTU(b *node.Bridge, s *node.Stack, a netip.Addr) {
	m := node.Vocab(s.Family).TooBig
	m.InPort, m.Dst = b.Ovn, node.HostPrefix(a)
	b.Classify(node.PrioNoMTU, m, flow.Drop{})
}
