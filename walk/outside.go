package walk

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/ovs"
	"hairpin/walk/conntrack"
	"hairpin/walk/ovn"
	"hairpin/walk/packet"
)

// ExternalMAC returns a node's MAC on the external network: that of its gateway bridge. If the host
// keeps the uplink, its MAC is not known here; one derived from the node's address replaces it.
func ExternalMAC(n *cluster.Node) cluster.MAC {
	if n.Gateway.Device == "" || len(n.Addresses) == 0 {
		return n.Gateway.MAC
	}
	m := cluster.MACFor(n.Addresses[0])
	m[0], m[1] = 0x02, 0x00
	return m
}

// outsideReceives carries a frame over a network between the nodes, and through external routers on
// it. from is the sending node, nil for an external machine.
func (r *run) outsideReceives(from *node) (location, error) {
	to, link, err := r.w.byMAC(r.EthDst)
	if to == nil && err == nil && r.w.isRouter(r.EthDst) {
		r.EthDst = cluster.MAC{} // a router forwards by IP address, as any machine with an unknown MAC
	}
	switch {
	case r.EthDst == (cluster.MAC{}):
		to, err = r.w.owner(r.Dst)
	case to == nil && err == nil:
		return r.drop(packet.Unclaimed, fmt.Sprintf("no machine on the external network has MAC %s", r.EthDst))
	}
	if err != nil {
		return location{}, err
	}
	if to != nil {
		if link == "" {
			link = to.linkWith(r.Dst)
		}
		if link != "" {
			r.EthDst = to.MAC(link)
			return location{hostReceives, to, link}, nil
		}
		if r.EthDst == (cluster.MAC{}) && to.info != nil {
			r.EthDst = ExternalMAC(to.info)
		}
		if port := to.uplink(); port != "" {
			return location{bridgeReceives, to, port}, nil
		}
		return location{hostReceives, to, to.host.Uplink()}, nil
	}
	if r.w.internal(r.Dst) {
		return r.drop(packet.Unclaimed, fmt.Sprintf("no machine on the external network has %s", r.Dst))
	}
	if from == nil {
		return r.drop(packet.Unclaimed, fmt.Sprintf("no node has %s", r.Dst))
	}
	return r.deliver(Point{}, "delivered outside, to "+r.Destination().String())
}

// isRouter reports whether an external machine is a next hop of a node.
func (w *Walker) isRouter(mac cluster.MAC) bool {
	for _, n := range w.world.Snapshot.Nodes {
		for _, m := range n.Gateway.NextHopMACs {
			if m == mac && mac != (cluster.MAC{}) {
				return true
			}
		}
	}
	return false
}

// geneve carries a packet through a tunnel.
func (r *run) geneve(n *node, port ovs.Port, t flow.Tunnel) (location, error) {
	r.Step("geneve", fmt.Sprintf("tun_id=0x%x,tun_src=%s,tun_dst=%s,tun_metadata0=0x%x", t.Key, port.Local, t.Peer,
		t.Ports), n.owner,
		"in a Geneve tunnel to "+t.Peer.String())
	// ovs_router_lookup in lib/ovs-router.c looks for a rule with that mark, and there is none
	if n.userspace() && r.Mark != 0 {
		return r.drop(packet.Other,
			fmt.Sprintf("Open vSwitch's userspace datapath has no route for a tunnel's packet with a mark: %d",
				r.Mark))
	}
	to, err := r.w.owner(t.Peer)
	switch {
	case err != nil:
		return location{}, err
	case to == nil:
		return r.drop(packet.Other, fmt.Sprintf("no node has %s", t.Peer))
	}
	for name, p := range to.state.Bridge.Ports {
		if p.Local == t.Peer {
			t.Peer = port.Local
			r.tunnel, r.CT, r.Mark = t, conntrack.State{}, 0
			sendTunnelled(&r.Cost, n)
			receiveTunnelled(&r.Cost, to)
			return location{tunnelReceives, to, name}, nil
		}
	}
	return r.drop(packet.Other, fmt.Sprintf("node %s takes no tunnels at %s", to.name, t.Peer))
}

// internal reports whether an address is in one of the cluster's own networks, which no external
// machine uses.
func (w *Walker) internal(a netip.Addr) bool {
	c := &w.world.Snapshot.Config
	for _, s := range c.ClusterSubnets {
		if s.CIDR.Contains(a) {
			return true
		}
	}
	for _, list := range [...][]netip.Prefix{c.ServiceCIDRs, c.JoinSubnets, c.TransitSubnets,
		c.Gateway.MasqueradeSubnets, c.Gateway.NodeLocalSubnets} {
		for _, p := range list {
			if p.Contains(a) {
				return true
			}
		}
	}
	return false
}

// owner returns the node that answers for an address on the external network. The address belongs
// to its host, is an egress address, or is the external address of a NAT row.
func (w *Walker) owner(a netip.Addr) (*node, error) {
	if w.owners == nil {
		w.owners = map[netip.Addr]string{}
		for _, name := range slices.Sorted(maps.Keys(w.world.States)) {
			for _, external := range ovn.NATAddresses(w.world.States[name].NB) {
				w.owners[external] = name
			}
		}
		for _, e := range w.world.Snapshot.EgressIPs {
			for _, a := range e.Assigned {
				if w.world.Snapshot.Node(a.Node) != nil {
					w.owners[a.Address] = a.Node
				}
			}
		}
		for _, n := range w.world.Snapshot.Nodes {
			for _, p := range n.HostAddresses {
				if !cluster.HostOnly(p.Addr()) {
					w.owners[p.Addr()] = n.Name
				}
			}
			for _, a := range n.Addresses {
				w.owners[a] = n.Name
			}
		}
	}
	if w.internal(a) {
		return nil, nil
	}
	name, ok := w.owners[a]
	if !ok {
		return nil, nil
	}
	return w.node(name)
}

// byMAC returns the node that has a MAC on a network, and the node's link if that is to a network
// other than the gateway bridge's.
func (w *Walker) byMAC(m cluster.MAC) (n *node, link string, err error) {
	if m == (cluster.MAC{}) {
		return nil, "", nil
	}
	for _, info := range w.world.Snapshot.Nodes {
		if ExternalMAC(info) == m {
			n, err = w.node(info.Name)
			return n, "", err
		}
		for i := range info.Links {
			if l := &info.Links[i]; l.MAC == m && l.Name != info.Gateway.Device {
				n, err = w.node(info.Name)
				return n, l.Name, err
			}
		}
	}
	return nil, "", nil
}

// resolve returns the MAC of a neighbour on the external network; ok is false if none answers. An
// external machine answers with the zero MAC.
func (w *Walker) resolve(a netip.Addr) (m cluster.MAC, ok bool) {
	if w.internal(a) || w.world.Silent[a] {
		return m, false
	}
	if n, err := w.owner(a); err == nil && n != nil && n.info != nil {
		return ExternalMAC(n.info), true
	}
	return m, true
}
