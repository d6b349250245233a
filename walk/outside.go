package walk

import (
	"fmt"

	"hairpin/cluster"
	"hairpin/datapath/flow"
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
	to, link, err := r.w.byMAC(r.p.EthDst)
	if to == nil && err == nil && r.w.isRouter(r.p.EthDst) {
		r.p.EthDst = cluster.MAC{} // a router forwards by IP address
	}
	switch {
	case r.p.EthDst == (cluster.MAC{}):
		to, err = r.w.owner(r.p.Dst)
	case to == nil && err == nil:
		return r.drop(Unclaimed, fmt.Sprintf("no machine on the external network has MAC %s", r.p.EthDst))
	}
	if err != nil {
		return location{}, err
	}
	if to != nil {
		if link == "" {
			link = to.carrying(r.p.Dst)
		}
		if link != "" {
			r.p.EthDst = to.mac(link)
			return location{hostReceives, to, link}, nil
		}
		if r.p.EthDst == (cluster.MAC{}) && to.info != nil {
			r.p.EthDst = ExternalMAC(to.info)
		}
		if port := to.uplink(); port != "" {
			return location{bridgeReceives, to, port}, nil
		}
		return location{hostReceives, to, to.uplinkLink()}, nil
	}
	if r.w.internal(r.p.Dst) {
		return r.drop(Unclaimed, fmt.Sprintf("no machine on the external network has %s", r.p.Dst))
	}
	if from == nil {
		return r.drop(Unclaimed, fmt.Sprintf("no node has %s", r.p.Dst))
	}
	return r.deliver(Point{}, "delivered outside, to "+endpoint(r.p.Dst, r.p.DstPort))
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
func (r *run) geneve(n *node, port flow.Port, t flow.Tunnel) (location, error) {
	r.step(n, "geneve", fmt.Sprintf("tun_id=0x%x,tun_src=%s,tun_dst=%s,tun_metadata0=0x%x", t.Key, port.Local, t.Peer,
		t.Ports), n.owner,
		"in a Geneve tunnel to "+t.Peer.String())
	// ovs_router_lookup in lib/ovs-router.c looks for a rule with that mark, and there is none
	if n.userspace() && r.p.Mark != 0 {
		return r.drop(Other,
			fmt.Sprintf("Open vSwitch's userspace datapath has no route for a tunnel's packet with a mark: %d",
				r.p.Mark))
	}
	to, err := r.w.owner(t.Peer)
	switch {
	case err != nil:
		return location{}, err
	case to == nil:
		return r.drop(Other, fmt.Sprintf("no node has %s", t.Peer))
	}
	for name, p := range to.state.Bridge.Ports {
		if p.Local == t.Peer {
			t.Peer = port.Local
			r.tunnel, r.ctState, r.p.Mark = t, tracking{}, 0
			r.cost.sendTunnelled(n)
			r.cost.takeTunnelled(to)
			return location{tunnelReceives, to, name}, nil
		}
	}
	return r.drop(Other, fmt.Sprintf("node %s takes no tunnels at %s", to.name, t.Peer))
}
