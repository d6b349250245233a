package gateway

import (
	"net/netip"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/nft"
	"hairpin/pipeline"
	"hairpin/plan/node"
)

// tunnels drops Geneve packets from the uplink, except those that tunnelEnds accepts, and lets
// those of this node bypass conntrack.
func tunnels(b *node.Bridge) {
	for i := range b.Env.Stacks {
		s := &b.Env.Stacks[i]
		for _, a := range append([]netip.Addr{s.Address.Addr()}, s.Secondary...) {
			m := flow.Match{Protocol: node.Vocab(s.Family).L4[cluster.UDP], Dst: node.HostPrefix(a),
				DstPort: node.Geneve}
			// Tunnels of nodes send no fragments, so a fragment is a pod's, with the address of its
			// node. The kernel's conntrack has reassembled it.
			b.Add(pipeline.GatewayUplinkConntrack, node.PrioTunnelFragment, m, flow.Drop{})
			if b.Env.Node.Gateway.Userspace {
				b.Add(pipeline.GatewayUplinkConntrack, node.PrioTunnelFragment, node.Fragments(node.Vocab(s.Family), m),
					flow.Drop{})
			}
			m.InPort = b.Uplink
			b.Classify(node.PrioForeignTunnel, m, flow.Drop{})
		}
	}
	b.Classify(node.PrioTunnel, flow.Match{InPort: flow.Local,
		Protocol: node.Vocab(b.Env.TunnelFamily()).L4[cluster.UDP], DstPort: node.Geneve}, flow.Output{Port: b.Uplink})
}

// setTunnelSources is the name of the nft set of the tunnel addresses of other nodes, from which
// packets are accepted.
const setTunnelSources = "tunnel-ends"

// tunnelSources declares the set with that name.
func tunnelSources(e *node.Env) *nft.Set {
	source := node.Vocab(e.TunnelFamily()).Src
	return &nft.Set{Name: setTunnelSources, Key: []nft.KeyField{source}}
}

// tunnelEnds accepts packets from the tunnels of other nodes.
type tunnelEnds struct {
	*node.Bridge
	set          *nft.Set      // tunnelSources
	host, frames node.Elements // of set: in the host's table, and in that of the chain at encap's ingress
	encap        encap
	hasEncap     bool
}

func newTunnelEnds(e *node.Env) tunnelEnds {
	t := tunnelEnds{Bridge: node.NewBridge(e, claims.FeatureGateway), set: tunnelSources(e), host: node.NewElements(),
		frames: node.NewElements()}
	t.encap, t.hasEncap = newEncap(e)
	return t
}

// add adds a node that has tunnels, unless it is rejected.
func (t *tunnelEnds) add(n *cluster.Node) {
	e := t.Env
	end := e.Node.Addresses[0]
	if n.ID == 0 || len(n.Addresses) == 0 || e.RejectsNode(n) ||
		cluster.FamilyOf(n.Addresses[0]) != cluster.FamilyOf(end) {
		return
	}
	from := node.HostPrefix(n.Addresses[0])
	t.host.Set(t.set).Put(nft.Element{Src: from}, cluster.NodeOwner(n.Name))
	if t.hasEncap && e.Node.Gateway.Device != "" {
		t.frames.Set(t.set).Put(nft.Element{Src: from}, cluster.NodeOwner(n.Name))
	}
	if e.Mode.Uplink {
		t.Classify(node.PrioTunnelIn, flow.Match{InPort: t.Uplink, EthDst: t.MAC,
			Protocol: node.Vocab(cluster.FamilyOf(end)).L4[cluster.UDP], Src: from, Dst: node.HostPrefix(end),
			DstPort: node.Geneve},
			flow.Output{Port: flow.Local})
	}
}

// problems returns why packets from the tunnels of other nodes do not arrive. Peers adds it for
// each other node, although it is the same: nodes are planned one by one, and each counts its
// Problems.
func (t *tunnelEnds) problems() []cluster.Problem {
	c := node.Checker{Owner: t.Owner}
	if t.hasEncap && t.Env.Node.Gateway.Device == "" {
		c.Problem(node.FieldGateway, "device: no link of the host has %s, so tunnels from other nodes do not arrive",
			t.encap.end)
	}
	return c.Problems
}

// tables returns the elements of the sets.
func (t *tunnelEnds) tables() nft.State {
	s := nft.State{nft.Inet: t.host.Table}
	if t.hasEncap {
		s[nft.Netdev] = t.frames.Table
	}
	return s
}

// tunnelTargets declares the nft set of all nodes' addresses, to which pods must not send tunnel
// packets.
func tunnelTargets(f cluster.Family) *nft.Set {
	return node.Declare(f).Set("tunnels", node.Vocab(f).Dst)
}

// tunnelChains accepts only nodes' tunnel packets at the host. It drops those of pods and Services
// to any node in the forward hook: they would leave with the host's own address. The kernel has
// already reassembled fragments. The packets of the node's own tunnels come from the link of encap,
// if the host forwards them.
func tunnelChains(c node.Chains) {
	port := nft.DstPort{Protocol: cluster.UDP, Port: node.Geneve}
	ofNode := nft.InSet{Set: setTunnelSources}
	c.Table.Sets[setTunnelSources] = tunnelSources(c.Env)
	c.Base(node.ChainTunnelsIn, "filter", "input", node.HookFilter, []nft.Rule{
		c.Rule(nft.Accept{}, "tunnels of nodes", ofNode, port),
		c.Rule(nft.Drop{}, "tunnels of others", port),
	})
	forward := []nft.Rule{c.Rule(nft.Return{}, "tunnels of nodes", ofNode, port)}
	from := []string{claims.ManagementPort, c.Env.Node.Gateway.Bridge}
	if c.Env.Engine.ServiceBridge {
		from = append(from, claims.ServiceHost)
	}
	for i := range c.Env.Stacks {
		set := tunnelTargets(c.Env.Stacks[i].Family)
		c.Table.Sets[set.Name] = set
		for _, link := range from {
			forward = append(forward, c.Rule(nft.Drop{}, "pods and Services to tunnels", nft.InInterface{Name: link},
				nft.InSet{Set: set.Name}, port))
		}
	}
	c.Base(node.ChainTunnelsForward, "filter", "forward", node.HookFilter, forward)
}
