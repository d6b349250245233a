package ovn

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/datapath/nb"
	"hairpin/walk/packet"
	"hairpin/walk/path"
)

// routeLevel holds all routes of a router with one prefix length and one kind of match, for one
// family.
type routeLevel struct {
	family   cluster.Family
	bits     int
	priority int // of lr_in_ip_routing: longest prefix first; connected before static, destination before source
	bySource bool
	routes   map[netip.Prefix]*routeGroup
}

// routeGroup holds a router's routes for one prefix: static routes (several are ECMP), or a
// connected network.
type routeGroup struct {
	static    []*nb.Route
	connected *routerPort
}

// The priorities of lr_in_ip_routing: eight per bit of prefix, plus one of these.
const (
	routeBySource  = 0
	routeStatic    = 4
	routeConnected = 6
)

func (r *logicalRouter) level(p netip.Prefix, kind int) *routeLevel {
	family := cluster.FamilyOf(p.Addr())
	priority := 8*p.Bits() + kind
	for i := range r.routes {
		if l := &r.routes[i]; l.family == family && l.priority == priority {
			return l
		}
	}
	r.routes = append(r.routes, routeLevel{family, p.Bits(), priority, kind == routeBySource,
		map[netip.Prefix]*routeGroup{}})
	return &r.routes[len(r.routes)-1]
}

func (r *logicalRouter) addRoute(row *nb.Route) {
	kind := routeStatic
	if row.BySource {
		kind = routeBySource
	}
	l := r.level(row.Prefix, kind)
	g := l.routes[row.Prefix.Masked()]
	if g == nil {
		g = &routeGroup{}
		l.routes[row.Prefix.Masked()] = g
	}
	g.static = append(g.static, row)
}

// sortRoutes adds the connected networks and sorts all routes in OVN's order of comparison.
func (r *logicalRouter) sortRoutes() {
	for _, p := range r.ports {
		for _, n := range p.row.Networks {
			r.level(n, routeConnected).routes[n.Masked()] = &routeGroup{connected: p}
		}
	}
	slices.SortFunc(r.routes, func(a, b routeLevel) int { return cmp.Compare(b.priority, a.priority) })
	for _, l := range r.routes {
		for _, g := range l.routes {
			slices.SortFunc(g.static, func(a, b *nb.Route) int { return a.NextHop.Compare(b.NextHop) })
		}
	}
}

// lookup returns the best route for a packet, or nil.
func (r *logicalRouter) lookup(p *packet.Packet) *routeGroup {
	family := cluster.FamilyOf(p.Dst)
	for i := range r.routes {
		l := &r.routes[i]
		if l.family != family {
			continue
		}
		a := p.Dst
		if l.bySource {
			a = p.Src
		}
		prefix, _ := a.Prefix(l.bits)
		if g := l.routes[prefix]; g != nil {
			return g
		}
	}
	return nil
}

// portTo returns the port with a network that contains a next hop, or nil.
func (r *logicalRouter) portTo(hop netip.Addr) *routerPort {
	for _, p := range r.ports {
		if p.network(hop).IsValid() {
			return p
		}
	}
	return nil
}

// routed is the egress port and the next hop that a router chose.
type routed struct {
	out *routerPort
	hop netip.Addr
}

// route runs lr_in_ip_routing. ok is false when there is no route.
func route(pkt *path.Path, rt *logicalRouter) (to routed, ok bool, err error) {
	stage := pkt.Join(rt.row.Name, " lr_in_ip_routing")
	g := rt.lookup(&pkt.Packet)
	switch {
	case g == nil:
		return to, false, nil
	case g.connected != nil:
		p := g.connected
		pkt.Step(stage, connectedRule{p, p.network(pkt.Dst)}, p.row.Owner, "connected: out of port "+p.row.Name)
		return routed{p, pkt.Dst}, true, nil
	}
	hops := make([]netip.AddrPort, len(g.static))
	for i, row := range g.static {
		hops[i] = netip.AddrPortFrom(row.NextHop, 0)
	}
	row := g.static[pkt.Choose(hops)]
	to.hop = row.NextHop
	for _, p := range rt.ports {
		if p.row.Name == row.OutPort {
			to.out = p
		}
	}
	if row.OutPort == "" {
		to.out = rt.portTo(row.NextHop)
	}
	if to.out == nil {
		return to, false, fmt.Errorf("%s: no port leads to its next hop", row.Key())
	}
	s := pkt.Step(stage, row, row.Owner, "to "+to.hop.String()+" out of port "+to.out.row.Name)
	if len(hops) > 1 {
		s.Choices = hops
	}
	return to, true, nil
}
