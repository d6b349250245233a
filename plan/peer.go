package plan

import (
	"net/netip"
	"strconv"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/nb"
)

// transit joins the node's zone to those of the other nodes. Every zone has the same switch, with the same tunnel
// keys: the node's number is the key of its port.
func (z *zone) transit(to *datapath.State) []Problem {
	name := z.Node.Name
	z.rows.Add(&nb.Switch{Name: claims.TransitSwitch, Owner: z.owner, OtherConfig: map[string]string{
		"interconn-ts":      claims.TransitSwitch,
		"requested-tnl-key": strconv.Itoa(claims.TransitTunnelKey),
	}})
	z.link(nb.RouterPort{
		Name: routerToTransit(name), Router: claims.ClusterRouter,
		Networks: z.addresses(func(s *Stack) netip.Prefix { return s.Transit }),
	}, claims.TransitSwitch, transitToRouter(name), map[string]string{"requested-tnl-key": strconv.Itoa(z.Node.ID)})

	var problems []Problem
	if z.Node.Gateway.Userspace {
		to.Bridge.TunnelNeighbors = map[netip.Addr]cluster.MAC{}
	}
	for _, n := range z.Nodes {
		if n.Name == name {
			continue
		}
		c := checker{owner: nodeOwner(n.Name)}
		if p, ok := c.peer(&z.Env, n); ok {
			z.peer(p)
			c.tunnel(&z.Env, n, to)
		}
		problems = append(problems, c.problems...)
	}
	return problems
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

// peer writes what this zone knows of another: its chassis, its port on the transit switch, and the routes to its
// pods and to its gateway router.
func (z *zone) peer(p peer) {
	name, owner := p.node.Name, nodeOwner(p.node.Name)
	address := cluster.MACFor(p.transit[0].Addr()).String()
	for i, t := range p.transit {
		address += " " + t.String()
		routes := []netip.Prefix{single(p.join[i].Addr())}
		if pods := p.node.PodCIDR(z.Stacks[i].Family); pods.IsValid() {
			routes = append(routes, pods)
		}
		for _, r := range routes {
			z.rows.Add(&nb.Route{Router: claims.ClusterRouter, Prefix: r, NextHop: t.Addr(), Owner: owner})
		}
	}
	z.rows.Add(
		&nb.Chassis{Name: name, Hostname: name, IP: p.node.Addresses[0], Owner: owner},
		&nb.SwitchPort{
			Name: transitToRouter(name), Switch: claims.TransitSwitch, Type: "remote", Addresses: []string{address},
			Options: map[string]string{"requested-tnl-key": strconv.Itoa(p.node.ID), "requested-chassis": name},
			Owner:   owner,
		},
	)
}

// tunnel records the MAC of a tunnel's other end, if it is on our network: the userspace datapath
// loses the first packet to a neighbour that it has not resolved.
func (c *checker) tunnel(e *Env, n *cluster.Node, to *datapath.State) {
	end := n.Addresses[0]
	if x, ok := newEncap(e); ok {
		x.peer(end, &to.Bridge)
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
