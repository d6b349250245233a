package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/conn"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/datapath/redirect"
	"hairpin/plan/admission"
)

// services makes load balancers of Frontends, one row for each way to one, so that northd handles a changed endpoint
// without looking at the others, or flows and groups of claims.ServiceBridge; and what leads to them from the external network and from the host.
// Who is served where, and by whom, is the same for both.
func services(e Env) (datapath.State, []Problem) {
	b := balancer{
		Env: &e, rows: make(nb.State, len(e.Frontends)), wire: newBridge(&e, claims.FeatureServices),
		nft: newElements(), conns: map[netip.AddrPort]conn.Targets{}, options: map[lbOptionKey]map[string]string{},
		redirected: map[redirect.Service]redirect.Way{},
	}
	if e.Node.Gateway.OpenFlow {
		b.board = newSwitchboard(&e)
	}
	for _, f := range e.Frontends {
		// A family that the node does not have reaches no Service here.
		if s := e.stack(f.Family); s != nil {
			b.frontend(s, f)
		}
	}
	s := datapath.State{NB: b.rows, Bridge: flow.State{Flows: b.wire.flows}}
	if b.board != nil {
		b.board.Flows.Insert(b.wire.flows.All())
		s.Bridge, b.problems = b.board.State, append(b.problems, b.board.problems...)
	}
	s.Conn, s.Redirect = conn.State{UDP: b.conns}, redirect.State{Services: b.redirected}
	s.Host = host.State{Routes: b.routes}
	if len(e.Frontends) > 0 {
		s.NFT = nft.State{nft.Inet: b.nft.Table}
	}
	return s, b.problems
}

// balancer writes what Services need.
type balancer struct {
	*Env
	rows     nb.State
	board    *switchboard // nil: load balancers
	wire     *bridge
	nft      elements
	conns    map[netip.AddrPort]conn.Targets
	options  map[lbOptionKey]map[string]string // rows share them
	problems []Problem
	routes   map[host.RouteKey]host.Route // of cluster IPs outside of the ranges

	redirected map[redirect.Service]redirect.Way
}

func (b *balancer) problem(f *cluster.Frontend, field, format string, args ...any) {
	b.problems = append(b.problems, Problem{Owner: f.Owner, Field: field, Message: fmt.Sprintf(format, args...)})
}

// front is a Frontend on this node.
type front struct {
	*cluster.Frontend
	chosen
	stack              *Stack
	internal, external []netip.AddrPort // endpoints by policy: within the cluster, and for clients outside
	ownHost, ownPods   []netip.AddrPort // endpoints of externalTrafficPolicy Local: the host's, and the node's others
}

func (e *Env) front(s *Stack, f *cluster.Frontend) front {
	c := choose(e, f)
	x := front{Frontend: f, chosen: c, stack: s, internal: c.cluster, external: c.cluster}
	if f.InternalLocal {
		x.internal = c.local
	}
	if f.ExternalLocal {
		x.external = c.local
		for _, a := range c.local {
			if x.isHost(a.Addr()) {
				x.ownHost = append(x.ownHost, a)
			} else {
				x.ownPods = append(x.ownPods, a)
			}
		}
	}
	return x
}

func (b *balancer) frontend(s *Stack, f *cluster.Frontend) {
	if !b.outOfRange(s, f) {
		return
	}
	x := b.front(s, f)
	if b.board != nil {
		b.board.frontend(&x)
	} else {
		b.balance(&x, way{vips: []netip.AddrPort{netip.AddrPortFrom(f.ClusterIP, f.Port)}, to: x.internal})
	}
	b.nft.clusterIP(&x, b.board == nil || len(x.cluster) > 0)
	b.wire.owner = f.Owner
	if f.NodePort != 0 && b.Config.Gateway.NodePort {
		b.outside(&x, wayNodePort, b.nodePorts(s, f))
		b.nft.nodePort(&x)
	}
	if vips := f.External(); len(vips) > 0 {
		b.outside(&x, wayExternal, vips)
		b.nft.externals(&x)
	}
	switch {
	case b.board == nil:
		b.byHost(&x)
	case len(x.cluster) == 0:
		b.nft.refused(&x, b.outer(s, f))
	}
	b.connections(&x)
}

// nodePorts are the addresses of the host on which pods find a NodePort.
func (e *Env) nodePorts(s *Stack, f *cluster.Frontend) []netip.AddrPort {
	var vips []netip.AddrPort
	for _, a := range e.nodePortAddresses(s) {
		if !slices.Contains(f.NoNodePort, a) {
			vips = append(vips, netip.AddrPortFrom(a, f.NodePort))
		}
	}
	return vips
}

// outer are the addresses on which pods find a Frontend, but its cluster IP.
func (e *Env) outer(s *Stack, f *cluster.Frontend) []netip.AddrPort {
	vips := f.External()
	if f.NodePort != 0 && e.Config.Gateway.NodePort {
		vips = append(vips, e.nodePorts(s, f)...)
	}
	return vips
}

// outside serves addresses that clients outside use. A pod finds them on its switch, where the policy for clients outside
// does not count; what is not for everybody it finds on its host, which looks at the source. Clients come from the wire to
// the gateway router, or by the host, see serviceMaps.
func (b *balancer) outside(x *front, name string, vips []netip.AddrPort) {
	var open, guarded, wire []netip.AddrPort
	redirected := false
	for _, v := range vips {
		if unserved := b.board != nil && len(x.cluster) == 0; !unserved && (name == wayNodePort && b.redirects(x, v) || name == wayExternal && b.redirectsExternal(x, v)) {
			b.redirected[redirect.Service{Addr: v, Protocol: x.Protocol}] = redirect.Way{Tracked: name == wayExternal || b.board != nil, Owner: x.Owner}
			redirected = true
		}
		if x.guards(v) {
			guarded = append(guarded, v)
		} else {
			open = append(open, v)
		}
		if b.Mode.ClientsByHost {
			continue
		}
		if name == wayExternal || v.Addr() == x.stack.Address.Addr() {
			if b.board != nil {
				if len(x.ownHost) == 0 && len(x.cluster) > 0 { // else new clients are the host's
					b.wire.toServices(x, v)
				}
				continue
			}
			wire = append(wire, v)
			if slices.Contains(x.stack.Redirect, v.Addr()) {
				b.wire.answers(x, v)
			}
			if len(x.ownHost) == 0 { // else new clients are the host's
				b.wire.frontend(x, v)
			}
		} else if b.redirects(x, v) {
			wire = append(wire, v)
		}
	}
	if b.board != nil {
		return
	}
	pods := way{name: name, vips: open, to: x.cluster, group: groupSwitch, noARP: true}
	switch {
	case b.Mode.ClientsByHost:
		if redirected { // to the gateway router
			pods.group = ""
		}
	case !x.ExternalLocal:
		pods.group = ""
		b.balance(x, way{name: name + ":guarded", vips: guarded, to: x.cluster, group: groupRouter, noARP: true})
	default:
		b.balance(x, way{name: name + ":local", vips: wire, to: x.local, group: groupRouter, keepClientIP: true, noARP: true})
	}
	b.balance(x, pods)
}

// byHost serves clients that come by the host, which leads them to addresses that stand in for the Service's own.
func (b *balancer) byHost(x *front) {
	if (x.NodePort == 0 || !b.Config.Gateway.NodePort) && len(x.ExternalIPs)+len(x.LoadBalancerIPs) == 0 {
		return
	}
	port := admission.ProxyPort(x.Frontend)
	if x.standsIn() {
		b.balance(x, way{name: wayAll, vips: []netip.AddrPort{netip.AddrPortFrom(x.stack.MasqAll, port)}, to: x.cluster, group: groupRouter, noARP: true})
	}
	if x.ExternalLocal && (len(x.ownHost) == 0 || len(x.ownPods) > 0) {
		own := way{name: wayOwn, vips: []netip.AddrPort{netip.AddrPortFrom(x.stack.MasqLocal, port)}, to: x.ownPods, group: groupSwitch, noARP: true}
		if !b.Mode.PodsByHost { // the pod's reply comes by the gateway router
			own.group, own.keepClientIP = groupRouter, true
		}
		b.balance(x, own)
	}
}

// isHost reports whether an address is one of this node's host. Clients outside are led to it by the host itself: from a load
// balancer of OVN's, the host would answer past that.
func (x *front) isHost(a netip.Addr) bool {
	return a == x.stack.Address.Addr() || slices.Contains(x.stack.Others, a)
}

// Names of ways.
const (
	wayNodePort = ":nodeport"
	wayExternal = ":external"
	wayAll      = ":all" // for clients by the host
	wayOwn      = ":own" // for clients outside by the host, under policy Local
)

// way is one way to a Frontend's endpoints.
type way struct {
	name         string // after the Frontend's key
	vips         []netip.AddrPort
	to           []netip.AddrPort
	group        string // where; empty = on node switch and gateway router
	keepClientIP bool   // the gateway router leaves the client's address alone
	noARP        bool   // routers do not answer ARP for the address
}

// lbOptionKey is what a row's options depend on.
type lbOptionKey struct{ rejectNoBackends, dropNoBackends, keepClientIP, noARP bool }

// balance makes the load balancer of a way: one row for node switch and gateway router, or one for each when a backend is
// this node's address. That is the gateway router's own too, and a packet to it would go no further; the host's
// masquerade address stands for it (host-to-service.md).
func (b *balancer) balance(x *front, w way) {
	if len(w.vips) == 0 {
		return
	}
	// No endpoint at all: rejected. Policy Local and none here: dropped, so that the client tries elsewhere.
	m := lbOptionKey{rejectNoBackends: len(x.cluster) == 0, dropNoBackends: len(w.to) == 0 && len(x.cluster) > 0, keepClientIP: w.keepClientIP, noARP: w.noARP}
	if m.rejectNoBackends {
		w.to = nil
	}
	// By a hash of the client's address, the same for all VIPs of the port and on every node, however long the timeout is.
	// OVN's own affinity_timeout drops the first packet of each client, and ends at 65535 s.
	affinity := x.Affinity > 0
	if affinity {
		w.to = places(w.to)
	}
	row := nb.LoadBalancer{
		Name: x.Key() + w.name, Protocol: x.Protocol, VIPs: vipsOf(w.vips, w.to),
		Options: b.lbOptions(m), Groups: []string{groupOf(cmp.Or(w.group, groupBoth), x.Owner)}, Owner: x.Owner, Affinity: affinity,
	}
	node := x.stack.Address.Addr()
	if w.group == groupSwitch || !slices.ContainsFunc(w.to, func(a netip.AddrPort) bool { return a.Addr() == node }) {
		b.rows.Add(&row)
		return
	}
	masqueraded := slices.Clone(w.to)
	for i, a := range masqueraded {
		if a.Addr() == node {
			masqueraded[i] = netip.AddrPortFrom(x.stack.MasqHost, a.Port())
		}
	}
	if !affinity {
		slices.SortFunc(masqueraded, netip.AddrPort.Compare)
	}
	router := row
	router.VIPs = vipsOf(w.vips, masqueraded)
	if w.group == "" {
		sw := row
		sw.Name, sw.Groups = row.Name+":switch", []string{groupOf(groupSwitch, x.Owner)}
		router.Name, router.Groups = row.Name+":router", []string{groupOf(groupRouter, x.Owner)}
		b.rows.Add(&sw)
	}
	b.rows.Add(&router)
}

func vipsOf(vips, to []netip.AddrPort) []nb.VIP {
	list := make([]nb.VIP, 0, len(vips))
	for _, v := range vips {
		list = append(list, nb.VIP{Addr: v, Backends: to})
	}
	return list
}

// lbOptions returns the options of a load balancer; rows share them.
func (b *balancer) lbOptions(m lbOptionKey) map[string]string {
	if o, ok := b.options[m]; ok {
		return o
	}
	var pins []string
	for i := range b.Stacks {
		pins = append(pins, b.Stacks[i].MasqPin.String())
	}
	o := map[string]string{
		"reject": strconv.FormatBool(!m.dropNoBackends), // no endpoint: TCP reset or ICMP port unreachable
		"event":  "false",                               // "no endpoint" events are unused
		// A gateway router translates what it load-balances, but must not translate a reset that it made itself: the host
		// would get it from another address than it had asked.
		"skip_snat":       strconv.FormatBool(m.rejectNoBackends || m.keepClientIP),
		"hairpin_snat_ip": strings.Join(pins, " "), // source for a pod that reaches itself
	}
	if m.noARP {
		o["neighbor_responder"] = "none"
	}
	b.options[m] = o
	return o
}
