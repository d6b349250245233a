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
	"hairpin/datapath/ovs"
	"hairpin/plan/node"
)

// Hosts plans rules for the addresses of all nodes, because tunnels can be reached at them. Several
// nodes may report the same address. A node without an ID has no tunnel yet, and is left out.
type Hosts struct {
	// reporters are the nodes that report an address, sorted. Unaccepted reports count, too: a
	// false one only blocks tunnel packets and ICMP errors about the pods' MTU.
	reporters map[netip.Addr][]string
	set       datapath.State // OVN's address set of them
}

// NewHosts returns Hosts without nodes.
func NewHosts() *Hosts { return &Hosts{} }

// Update plans the changes of the addresses of the nodes that changed.
func (p *Hosts) Update(_ *cluster.Snapshot, env *node.Env, c node.Changes, _ bool) (gone, come datapath.State) {
	nodes := c.Nodes
	if p.reporters == nil {
		p.reporters = map[netip.Addr][]string{}
		nodes.Added = append(slices.Clone(nodes.Added), env.Node) // the own node does not change later
	}
	if len(nodes.Removed)+len(nodes.Added) == 0 {
		return gone, come
	}
	before := map[netip.Addr]string{} // the node to which each address was attributed
	change := func(list []*cluster.Node, do func(names []string, name string) []string) {
		for _, n := range list {
			if n.ID == 0 {
				continue
			}
			for _, h := range n.HostAddresses {
				a := h.Addr()
				if cluster.HostOnly(a) {
					continue
				}
				if _, known := before[a]; !known {
					before[a] = first(p.reporters[a])
				}
				p.reporters[a] = do(p.reporters[a], n.Name)
			}
		}
	}
	change(nodes.Removed, without)
	change(nodes.Added, insertSorted)
	oldRules, newRules := newHostRules(env), newHostRules(env)
	for a, name := range before {
		if now := first(p.reporters[a]); now != name {
			oldRules.add(a, name)
			newRules.add(a, now)
		}
		if len(p.reporters[a]) == 0 {
			delete(p.reporters, a)
		}
	}
	gone, p.set = datapath.Union(oldRules.state(), p.set), hostsRows(env)
	return gone, datapath.Union(newRules.state(), p.set)
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

// hostsRows returns the address set that podMTU uses, if it uses one.
func hostsRows(e *node.Env) datapath.State {
	s := datapath.State{NB: nb.State{}}
	if stack := e.Stack(e.TunnelFamily()); stack != nil && e.Mode.Uplink && e.Engine.LoadBalancers {
		s.NB.Add(&nb.AddressSet{Name: node.HostsSet(stack.Family), Addresses: e.NodeAddresses(stack),
			Owner: cluster.NodeOwner(e.Node.Name)})
	}
	return s
}

// hostRules drops packets of pods, and of the gateway router for them, to the tunnels of all nodes:
// they would arrive with the node's own address, as if from its tunnel. A pod can send them to the
// node, or to a Service with such an endpoint. hostRules also drops ICMP errors that would make a
// node's tunnel packets smaller.
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
	r.Set(tunnelTargets(s.Family)).Put(nft.Element{Addr: a}, cluster.NodeOwner(name))
	if a != s.MasqHost {
		noTunnels(r.Bridge, s, a)
	}
	if s.Family == r.Env.TunnelFamily() && r.Env.Mode.Uplink && !r.Env.Engine.LoadBalancers {
		noMTU(r.Bridge, s, a)
	}
}

func (r *hostRules) state() datapath.State {
	return datapath.State{Bridge: ovs.State{Flows: r.Flows}, NFT: nft.State{nft.Inet: r.Table}}
}

// noTunnels drops tunnel packets of the gateway router to an address.
func noTunnels(b *node.Bridge, s *node.Stack, a netip.Addr) {
	b.Classify(node.PrioNoTunnel, flow.Match{InPort: b.OVN, Protocol: node.Vocab(s.Family).L4[cluster.UDP],
		Dst: node.HostPrefix(a), DstPort: node.Geneve}, flow.Drop{})
}

// noMTU drops ICMP errors to a node which say that pods have a smaller MTU than the external
// network (podMTU). The node would use that MTU for every packet to this node, also for those of
// its tunnel, in which packets of pods would no longer fit. An address set of OVN (hostsRows) would
// cost ovn-controller 30 ms for each node that joins a cluster of 1 000
// (docs/reference/performance.md). The set is used only with OVN's load balancers: there the
// gateway router also forwards such errors to nodes with endpoints, and those must pass.
func noMTU(b *node.Bridge, s *node.Stack, a netip.Addr) {
	m := node.Vocab(s.Family).TooBig
	m.InPort, m.Dst = b.OVN, node.HostPrefix(a)
	b.Classify(node.PrioNoMTU, m, flow.Drop{})
}
