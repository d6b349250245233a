package walk

import (
	"fmt"

	"hairpin/cluster"
	"hairpin/datapath/nb"
)

// ExternalMAC is a node's MAC on the external network: that of its gateway bridge. A host that keeps the uplink
// to itself has one that nothing here knows; an address of the node's own stands for it.
func ExternalMAC(n *cluster.Node) cluster.MAC {
	if n.Gateway.Device == "" || len(n.Addresses) == 0 {
		return n.Gateway.MAC
	}
	m := cluster.MACFor(n.Addresses[0])
	m[0], m[1] = 0x02, 0x00
	return m
}

// outsideReceives carries a frame over a network between the nodes, and through the routers outside that may be on it. from
// is the sender, nil for a machine outside.
func (r *run) outsideReceives(from *node) (location, error) {
	to, link, err := r.w.byMAC(r.p.EthDst)
	switch {
	case r.p.EthDst == (cluster.MAC{}):
		to, err = r.w.owner(r.p.Dst)
	case to == nil && err == nil:
		return r.drop(fmt.Sprintf("no machine on the external network has MAC %s", r.p.EthDst))
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
		return r.drop(fmt.Sprintf("no machine on the external network has %s", r.p.Dst))
	}
	if from == nil {
		return r.drop(fmt.Sprintf("no node has %s", r.p.Dst))
	}
	return r.deliver(Point{}, "delivered outside, to "+endpoint(r.p.Dst, r.p.DstPort))
}

// geneve carries a packet to the other node that a port of type "remote" stands for.
func (r *run) geneve(n *node, p *switchPort) (location, error) {
	chassis, ok := n.state.NB[nb.Key{Table: nb.TableChassis, Name: p.row.Options["requested-chassis"]}].(*nb.Chassis)
	if !ok {
		return r.drop(fmt.Sprintf("port %s is on chassis %q, which is not in the Southbound database", p.row.Name, p.row.Options["requested-chassis"]))
	}
	to, err := r.w.node(chassis.Hostname)
	if err != nil {
		return location{}, err
	}
	r.step(n, "geneve", chassis, chassis.Owner, "in a Geneve tunnel to "+chassis.IP.String()+", tunnel keys "+
		p.sw.row.OtherConfig["requested-tnl-key"]+" and "+p.row.Options["requested-tnl-key"])
	if n.userspace() && r.p.Mark != 0 { // ovs_router_lookup of its lib/ovs-router.c asks for a rule of that mark, of which there is none
		return r.drop(fmt.Sprintf("Open vSwitch's userspace datapath has no route for a tunnel's packet with a mark: %d", r.p.Mark))
	}
	if own := to.chassis(); own != chassis.Name {
		return r.drop(fmt.Sprintf("node %s is chassis %q, not %q", to.name, own, chassis.Name))
	}
	if ip := to.state.Bridge.Settings["ovn-encap-ip"]; ip != chassis.IP.String() {
		return r.drop(fmt.Sprintf("node %s takes tunnels at %q, not at %s", to.name, ip, chassis.IP))
	}
	port := to.ovn.byTunnelKeys(p.sw.row.OtherConfig["requested-tnl-key"], p.row.Options["requested-tnl-key"])
	if port == nil {
		return r.drop(fmt.Sprintf("node %s has no port with the tunnel keys %s and %s", to.name,
			p.sw.row.OtherConfig["requested-tnl-key"], p.row.Options["requested-tnl-key"]))
	}
	r.ctState, r.p.Mark = tracking{}, 0
	r.cost.sendTunnelled(n)
	r.cost.takeTunnelled(to)
	return location{switchSends, to, port.row.Name}, nil
}
