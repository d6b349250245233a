package service

import (
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/nft"
	"hairpin/plan/node"
)

// serviceMaps holds the nft maps and sets of Services of one family. The rules in Chains look them
// up; the number of rules does not depend on the Services.
type serviceMaps struct {
	node.Declared
	nodePorts, externals *nft.Map // to the cluster IP or its proxy port
	localPorts, localIPs *nft.Map // the same for external clients and policy Local: to the node's own endpoints
	// The same, where the host itself is one of several endpoints. The key includes a slot: some
	// bits of the client's port or, with session affinity, of its address.
	spreadPorts, spreadIPs, stickyPorts, stickyIPs *nft.Map
	// Load balancer addresses with source ranges, and those ranges.
	restricted, allowed *nft.Set
	ports, ips          *nft.Set // the served ports of cluster IPs, and all cluster IPs
}

var servicesOf = map[cluster.Family]*serviceMaps{cluster.IPv4: newServiceMaps(cluster.IPv4),
	cluster.IPv6: newServiceMaps(cluster.IPv6)}

func newServiceMaps(f cluster.Family) *serviceMaps {
	d, w := node.Declare(f), node.Vocab(f)
	return &serviceMaps{
		Declared:    d,
		nodePorts:   d.Map("nodeports", nft.KeyProto, nft.KeyPort),
		externals:   d.Map("externals", w.Dst, nft.KeyProto, nft.KeyPort),
		localPorts:  d.Map("own-nodeports", nft.KeyProto, nft.KeyPort),
		localIPs:    d.Map("own-externals", w.Dst, nft.KeyProto, nft.KeyPort),
		spreadPorts: d.Map("spread-nodeports", nft.KeyProto, nft.KeyPort, nft.KeyPortSlot),
		spreadIPs:   d.Map("spread-externals", w.Dst, nft.KeyProto, nft.KeyPort, nft.KeyPortSlot),
		stickyPorts: d.Map("sticky-nodeports", nft.KeyProto, nft.KeyPort, w.Slot),
		stickyIPs:   d.Map("sticky-externals", w.Dst, nft.KeyProto, nft.KeyPort, w.Slot),
		restricted:  d.Set("guarded", w.Dst, nft.KeyProto, nft.KeyPort),
		allowed:     d.Set("allowed", w.Dst, nft.KeyProto, nft.KeyPort, w.Src),
		ports:       d.Set("service-ports", w.Dst, nft.KeyProto, nft.KeyPort),
		ips:         d.Set("service-ips", w.Dst),
	}
}

// rejectedOf holds the addresses without endpoints, except cluster IPs, with the engine "openflow".
// The host rejects connections to them.
var rejectedOf = map[cluster.Family]rejected{cluster.IPv4: newRejected(cluster.IPv4),
	cluster.IPv6: newRejected(cluster.IPv6)}

type rejected struct {
	node.Declared
	set *nft.Set
}

func newRejected(f cluster.Family) rejected {
	d, w := node.Declare(f), node.Vocab(f)
	return rejected{d, d.Set("unserved", w.Dst, nft.KeyProto, nft.KeyPort)}
}

// addClusterIP adds a cluster IP and, if it is served, its port; the host rejects all other ports.
// All Frontends of a Service write the same element for its address.
func addClusterIP(t node.Elements, x *Front, served bool) {
	m := servicesOf[x.Family]
	if served {
		t.Set(m.ports).Put(nft.Element{Addr: x.ClusterIP, Protocol: x.Protocol, Port: x.Port}, x.Owner)
	}
	t.Set(m.ips).Put(nft.Element{Addr: x.ClusterIP}, x.Owner)
}

func addNodePort(t node.Elements, x *Front) {
	m, key := servicesOf[x.Family], nft.Element{Protocol: x.Protocol, Port: x.NodePort}
	t.Map(m.nodePorts).Put(key, nft.Target{Addr: x.clusterTarget(), Owner: x.Owner})
	if x.ExternalLocal {
		addLocalBackends(t, x, key, m.localPorts, m.spreadPorts, m.stickyPorts)
	}
}

func addExternals(t node.Elements, x *Front) {
	m := servicesOf[x.Family]
	for _, v := range x.External() {
		key := nft.Element{Addr: v.Addr(), Protocol: x.Protocol, Port: v.Port()}
		t.Map(m.externals).Put(key, nft.Target{Addr: x.clusterTarget(), Owner: x.Owner})
		if x.ExternalLocal {
			addLocalBackends(t, x, key, m.localIPs, m.spreadIPs, m.stickyIPs)
		}
		if !x.RestrictsSources(v) {
			continue
		}
		t.Set(m.restricted).Put(key, x.Owner)
		for _, r := range x.SourceRanges {
			key.Src = r
			t.Set(m.allowed).Put(key, x.Owner)
		}
	}
}

// addRejected adds what the host rejects: external addresses, for packets of pods, and the proxy
// ports to which the host translates connections of its own clients.
func addRejected(t node.Elements, x *Front, vips []netip.AddrPort) {
	port := x.ProxyPort()
	for _, v := range append(slices.Clone(vips), netip.AddrPortFrom(x.Stack.MasqAll, port),
		netip.AddrPortFrom(x.Stack.MasqLocal, port)) {
		t.Set(rejectedOf[x.Family].set).Put(nft.Element{Addr: v.Addr(), Protocol: x.Protocol, Port: v.Port()}, x.Owner)
	}
}

// UsesProxyPort reports whether the host sends clients to all endpoints by the proxy port instead
// of the cluster IP. It always does for a NodePort: then a change of the Service's port or internal
// policy does not affect its connections, even new ones. It also always does where the host has
// another path to cluster IPs: through the management port, clients of external addresses would get
// another source address.
func (x *Front) UsesProxyPort() bool {
	return x.InternalLocal || x.NodePort != 0 || x.Stack.Local != node.Local{}
}

// clusterTarget returns the target of the host's own clients: all endpoints.
func (x *Front) clusterTarget() netip.AddrPort {
	if x.UsesProxyPort() {
		return netip.AddrPortFrom(x.Stack.MasqAll, x.ProxyPort())
	}
	return netip.AddrPortFrom(x.ClusterIP, x.Port)
}

// addLocalBackends adds the targets of external clients under policy Local: the host's own
// endpoints directly, pods through a load balancer. It distributes several targets over slots: one
// share for each endpoint, as long as there are slots.
func addLocalBackends(t node.Elements, x *Front, key nft.Element, one, spread, sticky *nft.Map) {
	pods := netip.AddrPortFrom(x.Stack.MasqLocal, x.ProxyPort())
	to := slices.Clone(x.LocalHost)
	for range min(len(x.LocalPods), max(1, nft.Slots-len(x.LocalHost))) {
		to = append(to, pods)
	}
	if len(to) == 0 {
		to = append(to, pods)
	}
	if to[0] == to[len(to)-1] {
		t.Map(one).Put(key, nft.Target{Addr: to[0], Owner: x.Owner})
		return
	}
	m := spread
	if x.Affinity > 0 {
		m = sticky
	}
	for i := range nft.Slots {
		key.Slot = uint8(i)
		t.Map(m).Put(key, nft.Target{Addr: to[i*len(to)/nft.Slots], Owner: x.Owner})
	}
}

// Chains plans the host's rules for Services, and the maps and sets that they look up.
func Chains(e node.Env) (datapath.State, []cluster.Problem) {
	c := node.NewChains(&e)
	for i := range e.Stacks {
		servicesOf[e.Stacks[i].Family].AddTo(c.Table)
		if !e.Engine.Rejects {
			rejectedOf[e.Stacks[i].Family].AddTo(c.Table)
		}
	}
	c.Base(node.ChainNodePortIn, "nat", "prerouting", node.HookDNAT,
		slices.Concat(balancedRules(c), externalRules(c, true), nodePortRules(c, true)))
	c.Base(node.ChainNodePortOut, "nat", "output", node.HookDNAT,
		slices.Concat(externalRules(c, false), nodePortRules(c, false)))
	c.Base(node.ChainSourceRanges, "filter", "prerouting", node.HookSourceRanges, sourceRangeRules(c))
	c.Base(node.ChainRejectOut, "filter", "output", node.HookReject, rejectRules(c))
	c.Base(node.ChainRejectForward, "filter", "forward", node.HookReject, rejectRules(c))
	c.Base(node.ChainMasquerade, "filter", "prerouting", node.HookLoopback, masqueradeRules(c))
	if in, out := loopbackRules(c); len(in) > 0 {
		c.Base(node.ChainLoopbackIn, "filter", "prerouting", node.HookLoopback, in)
		c.Base(node.ChainLoopbackOut, "nat", "postrouting", node.HookSNAT, out)
	}
	return c.State(), nil
}

// balancedRules accepts packets that a load balancer has translated already. An endpoint of this
// host may listen on a port that is also a NodePort or an external address's port. Its packets must
// not be translated again. Pods' packets that the engine leaves to the host are the exception: to
// addresses with source ranges (engine ovn), or to addresses without endpoints (engine openflow).
func balancedRules(c node.Chains) []nft.Rule {
	fromPods := nft.InInterface{Name: claims.ManagementPort}
	var rules []nft.Rule
	for i := range c.Env.Stacks {
		m := servicesOf[c.Env.Stacks[i].Family]
		if c.Env.Engine.Rejects {
			rules = append(rules, c.Rule(nft.DNATMap{Map: m.externals.Name},
				"pods to addresses with loadBalancerSourceRanges", fromPods, nft.InSet{Set: m.restricted.Name}))
		} else {
			const why = "pods to addresses without endpoints: rejected at the cluster IP"
			to := nft.InSet{Set: rejectedOf[c.Env.Stacks[i].Family].set.Name}
			rules = append(rules,
				c.Rule(nft.DNATMap{Map: m.externals.Name}, why, fromPods, to),
				c.Rule(nft.DNATMap{Map: m.nodePorts.Name}, why, fromPods, to))
		}
	}
	rules = append(rules, c.Rule(nft.Return{}, "balanced by the node switch", fromPods))
	if c.Env.Node.Gateway.NodeLocal {
		rules = append(rules, c.Rule(nft.Return{}, "balanced by the node switch",
			nft.InInterface{Name: claims.LocalPort}))
	}
	by := "the gateway router"
	if c.Env.Engine.ServiceBridge {
		by = claims.ServiceBridge
	}
	for i := range c.Env.Stacks {
		rules = append(rules, c.Rule(nft.Return{}, "balanced by "+by,
			nft.AddrIn{Prefix: node.HostPrefix(c.Env.Stacks[i].MasqOVN)}))
	}
	return rules
}

// Targets of the rules, for their comments.
const (
	toOwn = "the node's own endpoints" // external clients under policy Local
	toAll = "all endpoints"
)

// externalRules translates connections to external addresses, before NodePorts: one port of a
// node's address may be another Service's external port.
func externalRules(c node.Chains, prerouting bool) []nft.Rule {
	var rules []nft.Rule
	for i := range c.Env.Stacks {
		m := servicesOf[c.Env.Stacks[i].Family]
		if prerouting {
			for _, own := range []*nft.Map{m.localIPs, m.spreadIPs, m.stickyIPs} {
				rules = append(rules, c.Rule(nft.DNATMap{Map: own.Name}, "external address: "+toOwn))
			}
		}
		rules = append(rules, c.Rule(nft.DNATMap{Map: m.externals.Name}, "external address: "+toAll))
	}
	return rules
}

// nodePortRules translates connections to NodePorts. For the primary address in mode shared, the
// bridge's flows come first. The host's addresses in the pod network and on the gateway router's
// link, and link-local ones, have no NodePorts: no external client can use them
// (docs/design/origins.md#nodeport-without-kube-proxy).
func nodePortRules(c node.Chains, prerouting bool) []nft.Rule {
	var rules []nft.Rule
	if !c.Env.Config.Gateway.NodePort {
		return nil
	}
	for i := range c.Env.Stacks {
		s := &c.Env.Stacks[i]
		m := servicesOf[s.Family]
		for _, inner := range []netip.Prefix{node.HostPrefix(s.Management.Addr()), node.HostPrefix(s.MasqHost),
			node.HostPrefix(s.MasqServiceHost), node.Vocab(s.Family).LinkLocal} {
			if inner.IsValid() {
				rules = append(rules, c.Rule(nft.Return{}, "not for NodePorts", nft.AddrIn{Dst: true, Prefix: inner}))
			}
		}
		for _, matches := range nodePortMatches(c, s) {
			to := func(in *nft.Map, comment string) {
				rules = append(rules, c.Rule(nft.DNATMap{Map: in.Name}, "NodePort: "+comment,
					append(slices.Clone(matches), nft.DstIsLocal{})...))
			}
			if prerouting {
				to(m.localPorts, toOwn)
				to(m.spreadPorts, toOwn)
				to(m.stickyPorts, toOwn)
			}
			to(m.nodePorts, toAll)
		}
	}
	return rules
}

// nodePortMatches returns the destinations with NodePorts, as one list of matches for each rule.
func nodePortMatches(c node.Chains, s *node.Stack) [][]nft.Match {
	on := &c.Env.Config.Gateway.NodePorts
	to := func(p netip.Prefix) []nft.Match { return []nft.Match{nft.AddrIn{Dst: true, Prefix: p}} }
	var list [][]nft.Match
	if on.All() {
		return append(list, nil)
	}
	if a := c.Env.Node.Address(s.Family); on.Primary && a.IsValid() {
		list = append(list, to(node.HostPrefix(a)))
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

// sourceRangeRules drops packets to load balancer addresses from sources outside of their source
// ranges.
func sourceRangeRules(c node.Chains) []nft.Rule {
	var rules []nft.Rule
	for i := range c.Env.Stacks {
		m := servicesOf[c.Env.Stacks[i].Family]
		rules = append(rules,
			c.Rule(nft.Return{}, "loadBalancerSourceRanges", nft.InSet{Set: m.allowed.Name}),
			c.Rule(nft.Drop{}, "loadBalancerSourceRanges", nft.InSet{Set: m.restricted.Name}))
	}
	return rules
}

// rejectRules rejects other ports of cluster IPs, and drops packets to addresses of no Service.
func rejectRules(c node.Chains) []nft.Rule {
	rules := []nft.Rule{
		c.Rule(nft.Return{}, "connections that a Service's change must not end", nft.CTEstablished),
		c.Rule(nft.Return{}, "errors about connections to Services", nft.CTRelated),
	}
	for i := range c.Env.Stacks {
		s := &c.Env.Stacks[i]
		m := servicesOf[s.Family]
		rules = append(rules,
			c.Rule(nft.Return{}, "a port of a Service", nft.InSet{Set: m.ports.Name}),
			c.Rule(nft.Reject{TCPReset: true}, "another port of a Service", nft.InSet{Set: m.ips.Name},
				nft.L4Proto{Protocol: cluster.TCP}),
			c.Rule(nft.Reject{}, "another port of a Service", nft.InSet{Set: m.ips.Name}))
		if !c.Env.Engine.Rejects {
			unserved := nft.InSet{Set: rejectedOf[s.Family].set.Name}
			rules = append(rules,
				c.Rule(nft.Reject{TCPReset: true}, "no endpoint", unserved, nft.L4Proto{Protocol: cluster.TCP}),
				c.Rule(nft.Reject{}, "no endpoint", unserved))
		}
		for _, r := range s.Services {
			rules = append(rules, c.Rule(nft.Drop{}, "no Service has this address", nft.AddrIn{Dst: true, Prefix: r}))
		}
	}
	return rules
}

// masqueradeRules drops packets that arrive with a masquerade address as their destination. The
// host's own packets, and those that it translates itself, do not pass this hook with such an
// address. Replies that arrive on claims.ServiceHost may have the link's address: other software's
// nft, such as that of hostPorts, masquerades packets to pods as it.
func masqueradeRules(c node.Chains) []nft.Rule {
	var rules []nft.Rule
	drop := func(a netip.Addr, except ...nft.Match) {
		rules = append(rules, c.Rule(nft.Drop{}, "masquerade addresses are the host's own",
			append(except, nft.AddrIn{Dst: true, Prefix: node.HostPrefix(a)})...))
	}
	for i := range c.Env.Stacks {
		s := &c.Env.Stacks[i]
		drop(s.MasqAll)
		drop(s.MasqLocal)
		drop(s.MasqServiceHost, nft.InInterface{Name: claims.ServiceHost, Not: true})
	}
	return rules
}

// loopbackRules serves NodePorts on 127.0.0.1 and ::1. Such a packet leaves the host with the
// bridge's address. Packets to a loopback address from any device but lo are dropped.
func loopbackRules(c node.Chains) (in, out []nft.Rule) {
	for i := range c.Env.Stacks {
		s := &c.Env.Stacks[i]
		loop := node.Vocab(s.Family).Loopback
		if !c.Env.LoopbackPorts(s.Family) {
			continue
		}
		in = append(in, c.Rule(nft.Drop{}, "loopback addresses are the host's own",
			nft.InInterface{Name: "lo", Not: true}, nft.AddrIn{Dst: true, Prefix: loop}))
		out = append(out, c.Rule(nft.SNAT{Addr: s.Address.Addr()}, "NodePort of a loopback address",
			nft.OutInterface{Name: c.Env.ServiceLink()}, nft.AddrIn{Prefix: loop}))
	}
	return in, out
}
