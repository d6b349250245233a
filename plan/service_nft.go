package plan

import (
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/nft"
	"hairpin/plan/admission"
)

// serviceMaps are the nft maps and sets of Services of one family. The rules that look at them are in serviceChains, and their
// number does not depend on the Services.
type serviceMaps struct {
	declared
	nodePorts, externals *nft.Map // to the cluster IP, or to what stands in for it
	ownPorts, ownIPs     *nft.Map // the same, of policy Local and for clients outside: to the node's own endpoints
	// The same, where the host itself is one of several endpoints: by a part of the client's port or, with session affinity,
	// of its address.
	spreadPorts, spreadIPs, stickyPorts, stickyIPs *nft.Map
	guarded, allowed                               *nft.Set // load balancer addresses with ranges of sources, and those ranges
	ports, ips                                     *nft.Set // what is served at cluster IPs, and all cluster IPs
}

var servicesOf = map[cluster.Family]*serviceMaps{cluster.IPv4: newServiceMaps(cluster.IPv4), cluster.IPv6: newServiceMaps(cluster.IPv6)}

func newServiceMaps(f cluster.Family) *serviceMaps {
	d, w := declare(f), words(f)
	return &serviceMaps{
		declared:    d,
		nodePorts:   d.toMap("nodeports", nft.KeyProto, nft.KeyPort),
		externals:   d.toMap("externals", w.dst, nft.KeyProto, nft.KeyPort),
		ownPorts:    d.toMap("own-nodeports", nft.KeyProto, nft.KeyPort),
		ownIPs:      d.toMap("own-externals", w.dst, nft.KeyProto, nft.KeyPort),
		spreadPorts: d.toMap("spread-nodeports", nft.KeyProto, nft.KeyPort, nft.KeyPortSlot),
		spreadIPs:   d.toMap("spread-externals", w.dst, nft.KeyProto, nft.KeyPort, nft.KeyPortSlot),
		stickyPorts: d.toMap("sticky-nodeports", nft.KeyProto, nft.KeyPort, w.slot),
		stickyIPs:   d.toMap("sticky-externals", w.dst, nft.KeyProto, nft.KeyPort, w.slot),
		guarded:     d.set("guarded", w.dst, nft.KeyProto, nft.KeyPort),
		allowed:     d.set("allowed", w.dst, nft.KeyProto, nft.KeyPort, w.src),
		ports:       d.set("service-ports", w.dst, nft.KeyProto, nft.KeyPort),
		ips:         d.set("service-ips", w.dst),
	}
}

// unservedOf are the addresses without endpoints but cluster IPs, on a node where Services are flows: the host refuses clients by them.
var unservedOf = map[cluster.Family]unserved{cluster.IPv4: newUnserved(cluster.IPv4), cluster.IPv6: newUnserved(cluster.IPv6)}

type unserved struct {
	declared
	set *nft.Set
}

func newUnserved(f cluster.Family) unserved {
	d, w := declare(f), words(f)
	return unserved{d, d.set("unserved", w.dst, nft.KeyProto, nft.KeyPort)}
}

// clusterIP tells what is served: what is not, the host refuses. All Frontends of a Service say the same of its address.
func (t elements) clusterIP(x *front, served bool) {
	m := servicesOf[x.Family]
	if served {
		t.of(m.ports).Put(nft.Element{Addr: x.ClusterIP, Protocol: x.Protocol, Port: x.Port}, x.Owner)
	}
	t.of(m.ips).Put(nft.Element{Addr: x.ClusterIP}, x.Owner)
}

func (t elements) nodePort(x *front) {
	m, key := servicesOf[x.Family], nft.Element{Protocol: x.Protocol, Port: x.NodePort}
	t.to(m.nodePorts).Put(key, nft.Target{Addr: x.clusterTarget(), Owner: x.Owner})
	if x.ExternalLocal {
		t.owns(x, key, m.ownPorts, m.spreadPorts, m.stickyPorts)
	}
}

func (t elements) externals(x *front) {
	m := servicesOf[x.Family]
	for _, v := range x.External() {
		key := nft.Element{Addr: v.Addr(), Protocol: x.Protocol, Port: v.Port()}
		t.to(m.externals).Put(key, nft.Target{Addr: x.clusterTarget(), Owner: x.Owner})
		if x.ExternalLocal {
			t.owns(x, key, m.ownIPs, m.spreadIPs, m.stickyIPs)
		}
		if !x.guards(v) {
			continue
		}
		t.of(m.guarded).Put(key, x.Owner)
		for _, r := range x.SourceRanges {
			key.Src = r
			t.of(m.allowed).Put(key, x.Owner)
		}
	}
}

// refused tells what the host refuses: addresses from outside, which it is asked for by pods, and what it leads its own clients to.
func (t elements) refused(x *front, vips []netip.AddrPort) {
	port := admission.ProxyPort(x.Frontend)
	for _, v := range append(slices.Clone(vips), netip.AddrPortFrom(x.stack.MasqAll, port), netip.AddrPortFrom(x.stack.MasqLocal, port)) {
		t.of(unservedOf[x.Family].set).Put(nft.Element{Addr: v.Addr(), Protocol: x.Protocol, Port: v.Port()}, x.Owner)
	}
}

// standsIn reports whether the host leads clients to all endpoints by what stands in for the cluster IP: always to a NodePort.
// Its connections, also those that are just being made, do not see the Service's port or internal policy change. Always, too, where the
// host's way to cluster IPs is another one: by the management port, clients of external addresses would be others than before.
func (x *front) standsIn() bool {
	return x.InternalLocal || x.NodePort != 0 || x.stack.Local != local{}
}

// clusterTarget is where the host sends its own clients: to all endpoints.
func (x *front) clusterTarget() netip.AddrPort {
	if x.standsIn() {
		return netip.AddrPortFrom(x.stack.MasqAll, admission.ProxyPort(x.Frontend))
	}
	return netip.AddrPortFrom(x.ClusterIP, x.Port)
}

// owns tells where the host sends clients outside when the policy is Local: to its own endpoints at once, to the pods by a
// load balancer. Among several it chooses by slots.
func (t elements) owns(x *front, key nft.Element, one, spread, sticky *nft.Map) {
	pods := netip.AddrPortFrom(x.stack.MasqLocal, admission.ProxyPort(x.Frontend))
	to := slices.Clone(x.ownHost)
	for range min(len(x.ownPods), max(1, nft.Slots-len(x.ownHost))) { // each has its share
		to = append(to, pods)
	}
	if len(to) == 0 {
		to = append(to, pods)
	}
	if to[0] == to[len(to)-1] {
		t.to(one).Put(key, nft.Target{Addr: to[0], Owner: x.Owner})
		return
	}
	m := spread
	if x.Affinity > 0 {
		m = sticky
	}
	for i := range nft.Slots {
		key.Slot = uint8(i)
		t.to(m).Put(key, nft.Target{Addr: to[i*len(to)/nft.Slots], Owner: x.Owner})
	}
}

// nodePortAddresses are the host's addresses with NodePorts.
func (e *Env) nodePortAddresses(s *Stack) []netip.Addr {
	list := append([]netip.Addr{s.Address.Addr()}, s.Others...)
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.DeleteFunc(list, func(a netip.Addr) bool { return !e.nodePortOn(a) })
}

func (e *Env) nodePortOn(a netip.Addr) bool {
	on := &e.Config.Gateway.NodePorts
	return on.All() || on.Primary && slices.Contains(e.Node.Addresses, a) || within(on.Ranges, a)
}

// Priorities of filter hooks.
const (
	hookLoopback = -300 // raw: before a reply is translated back
	hookGuarded  = -150 // mangle: before the destination is translated
	hookRefuse   = 0    // filter: after that
)

// serviceChains are the host's rules for Services, and the maps and sets that they look at.
func serviceChains(e Env) (datapath.State, []cluster.Problem) {
	c := newChains(&e)
	for i := range e.Stacks {
		servicesOf[e.Stacks[i].Family].in(c.table)
		if e.Node.Gateway.OpenFlow {
			unservedOf[e.Stacks[i].Family].in(c.table)
		}
	}
	c.base(chainNodePortIn, "nat", "prerouting", hookDNAT, slices.Concat(c.balanced(), c.externals(true), c.nodePorts(true)))
	c.base(chainNodePortOut, "nat", "output", hookDNAT, slices.Concat(c.externals(false), c.nodePorts(false)))
	c.base(chainGuarded, "filter", "prerouting", hookGuarded, c.guarded())
	c.base(chainRefuseOut, "filter", "output", hookRefuse, c.refuse())
	c.base(chainRefuseForward, "filter", "forward", hookRefuse, c.refuse())
	c.base(chainMasquerade, "filter", "prerouting", hookLoopback, c.masquerade())
	if in, out := c.loopback(); len(in) > 0 {
		c.base(chainLoopbackIn, "filter", "prerouting", hookLoopback, in)
		c.base(chainLoopbackOut, "nat", "postrouting", hookSNAT, out)
	}
	return c.state(), nil
}

// chains writes rules of the host's table.
type chains struct {
	env   *Env
	table *nft.Table
	owner cluster.Owner
}

func newChains(e *Env) chains {
	t := &nft.Table{Chains: map[string]*nft.Chain{}, Maps: map[string]*nft.Map{}, Sets: map[string]*nft.Set{}}
	return chains{env: e, table: t, owner: nodeOwner(e.Node.Name)}
}

// base adds a chain that a hook of the kernel calls.
func (c chains) base(name, typ, hook string, priority int, rules []nft.Rule) {
	c.table.Chains[name] = &nft.Chain{Name: name, Type: typ, Hook: hook, Priority: priority, Rules: rules, Owner: c.owner}
}

func (c chains) state() datapath.State { return datapath.State{NFT: nft.State{nft.Inet: c.table}} }

func (c chains) rule(do nft.Statement, comment string, matches ...nft.Match) nft.Rule {
	return nft.Rule{Matches: matches, Do: do, Comment: comment, Owner: c.owner}
}

// balanced lets pass what OVN has balanced already: when an endpoint of this host listens on a port that is also a NodePort's
// number or an external address's port, its packets must not go round again. Only addresses that are not for everybody are
// left to the host by the node switch.
func (c chains) balanced() []nft.Rule {
	fromPods := nft.InInterface{Name: claims.ManagementPort}
	var rules []nft.Rule
	for i := range c.env.Stacks {
		m := servicesOf[c.env.Stacks[i].Family]
		if !c.env.Node.Gateway.OpenFlow {
			rules = append(rules, c.rule(nft.DNATMap{Map: m.externals.Name}, "pods to addresses with loadBalancerSourceRanges", fromPods, nft.InSet{Set: m.guarded.Name}))
		} else {
			const why = "pods to addresses without endpoints: refused at the cluster IP"
			to := nft.InSet{Set: unservedOf[c.env.Stacks[i].Family].set.Name}
			rules = append(rules,
				c.rule(nft.DNATMap{Map: m.externals.Name}, why, fromPods, to),
				c.rule(nft.DNATMap{Map: m.nodePorts.Name}, why, fromPods, to))
		}
	}
	rules = append(rules, c.rule(nft.Return{}, "balanced by the node switch", fromPods))
	if c.env.Node.Gateway.NodeLocal {
		rules = append(rules, c.rule(nft.Return{}, "balanced by the node switch", nft.InInterface{Name: claims.LocalPort}))
	}
	by := "the gateway router"
	if c.env.Node.Gateway.OpenFlow {
		by = claims.ServiceBridge
	}
	for i := range c.env.Stacks {
		rules = append(rules, c.rule(nft.Return{}, "balanced by "+by, nft.AddrIn{Prefix: single(c.env.Stacks[i].MasqOVN)}))
	}
	return rules
}

// What clients are led to.
const (
	toOwn = "the node's own endpoints" // clients outside, where the policy is Local
	toAll = "all endpoints"
)

// externals lead clients of external addresses, before NodePorts: of a node's address, one may be another Service's than the
// other ports are.
func (c chains) externals(outside bool) []nft.Rule {
	var rules []nft.Rule
	for i := range c.env.Stacks {
		m := servicesOf[c.env.Stacks[i].Family]
		if outside {
			for _, own := range []*nft.Map{m.ownIPs, m.spreadIPs, m.stickyIPs} {
				rules = append(rules, c.rule(nft.DNATMap{Map: own.Name}, "external address: "+toOwn))
			}
		}
		rules = append(rules, c.rule(nft.DNATMap{Map: m.externals.Name}, "external address: "+toAll))
	}
	return rules
}

// nodePorts lead clients of NodePorts. For the primary address in mode shared, the bridge's flows come first. No client outside can
// use the host's addresses in the pod network and on the gateway router's link, nor link-local ones: they have no NodePorts (nodeport-antrea.md).
func (c chains) nodePorts(outside bool) []nft.Rule {
	var rules []nft.Rule
	if !c.env.Config.Gateway.NodePort {
		return nil
	}
	for i := range c.env.Stacks {
		s := &c.env.Stacks[i]
		m := servicesOf[s.Family]
		for _, inner := range []netip.Prefix{single(s.Management.Addr()), single(s.MasqHost), words(s.Family).linkLocal} {
			if inner.IsValid() {
				rules = append(rules, c.rule(nft.Return{}, "not for NodePorts", nft.AddrIn{Dst: true, Prefix: inner}))
			}
		}
		for _, matches := range c.nodePortMatches(s) {
			to := func(in *nft.Map, comment string) {
				rules = append(rules, c.rule(nft.DNATMap{Map: in.Name}, "NodePort: "+comment, append(slices.Clone(matches), nft.DstIsLocal{})...))
			}
			if outside {
				to(m.ownPorts, toOwn)
				to(m.spreadPorts, toOwn)
				to(m.stickyPorts, toOwn)
			}
			to(m.nodePorts, toAll)
		}
	}
	return rules
}

// nodePortMatches are the destinations with NodePorts: one list of matches for each rule.
func (c chains) nodePortMatches(s *Stack) [][]nft.Match {
	on := &c.env.Config.Gateway.NodePorts
	to := func(p netip.Prefix) []nft.Match { return []nft.Match{nft.AddrIn{Dst: true, Prefix: p}} }
	var list [][]nft.Match
	if on.All() {
		return append(list, nil)
	}
	if a := c.env.Node.Address(s.Family); on.Primary && a.IsValid() {
		list = append(list, to(single(a)))
	}
	for _, r := range on.Ranges {
		switch {
		case cluster.FamilyOf(r.Addr()) != s.Family:
		case r.Bits() == 0:
			list = append(list, nil)
		default:
			list = append(list, to(r))
		}
	}
	return list
}

// guarded blocks clients that may not reach a load balancer's address.
func (c chains) guarded() []nft.Rule {
	var rules []nft.Rule
	for i := range c.env.Stacks {
		m := servicesOf[c.env.Stacks[i].Family]
		rules = append(rules,
			c.rule(nft.Return{}, "loadBalancerSourceRanges", nft.InSet{Set: m.allowed.Name}),
			c.rule(nft.Drop{}, "loadBalancerSourceRanges", nft.InSet{Set: m.guarded.Name}))
	}
	return rules
}

// refuse answers for other ports of cluster IPs, and drops what is for no Service at all.
func (c chains) refuse() []nft.Rule {
	rules := []nft.Rule{
		c.rule(nft.Return{}, "connections that a Service's change must not end", nft.CTEstablished),
		c.rule(nft.Return{}, "errors about connections to Services", nft.CTRelated),
	}
	for i := range c.env.Stacks {
		s := &c.env.Stacks[i]
		m := servicesOf[s.Family]
		rules = append(rules,
			c.rule(nft.Return{}, "a port of a Service", nft.InSet{Set: m.ports.Name}),
			c.rule(nft.Reject{TCPReset: true}, "another port of a Service", nft.InSet{Set: m.ips.Name}, nft.L4Proto{Protocol: cluster.TCP}),
			c.rule(nft.Reject{}, "another port of a Service", nft.InSet{Set: m.ips.Name}))
		if c.env.Node.Gateway.OpenFlow {
			nobody := nft.InSet{Set: unservedOf[s.Family].set.Name}
			rules = append(rules,
				c.rule(nft.Reject{TCPReset: true}, "no endpoint", nobody, nft.L4Proto{Protocol: cluster.TCP}),
				c.rule(nft.Reject{}, "no endpoint", nobody))
		}
		for _, r := range s.Services {
			rules = append(rules, c.rule(nft.Drop{}, "no Service has this address", nft.AddrIn{Dst: true, Prefix: r}))
		}
	}
	return rules
}

// masquerade keeps others from the addresses that the host translates Services' addresses to. The host's own packets, and those that it
// translates itself, do not pass here with such an address.
func (c chains) masquerade() []nft.Rule {
	var rules []nft.Rule
	for i := range c.env.Stacks {
		s := &c.env.Stacks[i]
		for _, a := range []netip.Addr{s.MasqAll, s.MasqLocal} {
			rules = append(rules, c.rule(nft.Drop{}, "masquerade addresses are the host's own", nft.AddrIn{Dst: true, Prefix: single(a)}))
		}
	}
	return rules
}

// loopback serves NodePorts on 127.0.0.1 and ::1: such a packet leaves the host with the bridge's address, and nothing
// else may send to a loopback address.
func (c chains) loopback() (in, out []nft.Rule) {
	for i := range c.env.Stacks {
		s := &c.env.Stacks[i]
		loop := words(s.Family).loopback
		if !c.env.loopbackPorts(s.Family) {
			continue
		}
		in = append(in, c.rule(nft.Drop{}, "loopback addresses are the host's own", nft.InInterface{Name: "lo", Not: true}, nft.AddrIn{Dst: true, Prefix: loop}))
		out = append(out, c.rule(nft.SNAT{Addr: s.Address.Addr()}, "NodePort of a loopback address",
			nft.OutInterface{Name: c.env.serviceLink()}, nft.AddrIn{Prefix: loop}))
	}
	return in, out
}

// loopbackPorts reports whether NodePorts are on the loopback address of a family.
func (e *Env) loopbackPorts(f cluster.Family) bool {
	return e.Config.Gateway.NodePort && e.nodePortOn(words(f).localhost)
}
