package service

import (
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/nft"
	"hairpin/plan/admission"
	"hairpin/plan/node"
)

// serviceMaps are the nft maps and sets of Services of one family. The rules that look at them are
// in serviceChains, and their number does not depend on the Services.
type serviceMaps struct {
	node.Declared
	nodePorts, externals *nft.Map // to the cluster IP, or to what stands in for it
	localPorts, localIPs *nft.Map // the same, of policy Local and for clients outside: to the node's own endpoints
	// The same, where the host itself is one of several endpoints: by a part of the client's port
	// or, with session affinity, of its address.
	spreadPorts, spreadIPs, stickyPorts, stickyIPs *nft.Map
	// load balancer addresses with ranges of sources, and those ranges
	guarded, allowed *nft.Set
	ports, ips       *nft.Set // what is served at cluster IPs, and all cluster IPs
}

var servicesOf = map[cluster.Family]*serviceMaps{cluster.IPv4: newServiceMaps(cluster.IPv4),
	cluster.IPv6: newServiceMaps(cluster.IPv6)}

func newServiceMaps(f cluster.Family) *serviceMaps {
	d, w := node.Declare(f), node.Vocab(f)
	return &serviceMaps{
		Declared:    d,
		nodePorts:   d.ToMap("nodeports", nft.KeyProto, nft.KeyPort),
		externals:   d.ToMap("externals", w.Dst, nft.KeyProto, nft.KeyPort),
		localPorts:  d.ToMap("own-nodeports", nft.KeyProto, nft.KeyPort),
		localIPs:    d.ToMap("own-externals", w.Dst, nft.KeyProto, nft.KeyPort),
		spreadPorts: d.ToMap("spread-nodeports", nft.KeyProto, nft.KeyPort, nft.KeyPortSlot),
		spreadIPs:   d.ToMap("spread-externals", w.Dst, nft.KeyProto, nft.KeyPort, nft.KeyPortSlot),
		stickyPorts: d.ToMap("sticky-nodeports", nft.KeyProto, nft.KeyPort, w.Slot),
		stickyIPs:   d.ToMap("sticky-externals", w.Dst, nft.KeyProto, nft.KeyPort, w.Slot),
		guarded:     d.Set("guarded", w.Dst, nft.KeyProto, nft.KeyPort),
		allowed:     d.Set("allowed", w.Dst, nft.KeyProto, nft.KeyPort, w.Src),
		ports:       d.Set("service-ports", w.Dst, nft.KeyProto, nft.KeyPort),
		ips:         d.Set("service-ips", w.Dst),
	}
}

// rejectedOf are the addresses without endpoints but cluster IPs, on a node where Services are
// flows: the host refuses clients by them.
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

// addClusterIP tells what is served: what is not, the host refuses. All Frontends of a Service say
// the same of its address.
func addClusterIP(t node.Elements, x *Front, served bool) {
	m := servicesOf[x.Family]
	if served {
		t.Of(m.ports).Put(nft.Element{Addr: x.ClusterIP, Protocol: x.Protocol, Port: x.Port}, x.Owner)
	}
	t.Of(m.ips).Put(nft.Element{Addr: x.ClusterIP}, x.Owner)
}

func addNodePort(t node.Elements, x *Front) {
	m, key := servicesOf[x.Family], nft.Element{Protocol: x.Protocol, Port: x.NodePort}
	t.To(m.nodePorts).Put(key, nft.Target{Addr: x.clusterTarget(), Owner: x.Owner})
	if x.ExternalLocal {
		addLocalBackends(t, x, key, m.localPorts, m.spreadPorts, m.stickyPorts)
	}
}

func addExternals(t node.Elements, x *Front) {
	m := servicesOf[x.Family]
	for _, v := range x.External() {
		key := nft.Element{Addr: v.Addr(), Protocol: x.Protocol, Port: v.Port()}
		t.To(m.externals).Put(key, nft.Target{Addr: x.clusterTarget(), Owner: x.Owner})
		if x.ExternalLocal {
			addLocalBackends(t, x, key, m.localIPs, m.spreadIPs, m.stickyIPs)
		}
		if !x.RestrictsSources(v) {
			continue
		}
		t.Of(m.guarded).Put(key, x.Owner)
		for _, r := range x.SourceRanges {
			key.Src = r
			t.Of(m.allowed).Put(key, x.Owner)
		}
	}
}

// addRejected tells what the host refuses: addresses from outside, which it is asked for by pods,
// and what it leads its own clients to.
func addRejected(t node.Elements, x *Front, vips []netip.AddrPort) {
	port := admission.ProxyPort(x.Frontend)
	for _, v := range append(slices.Clone(vips), netip.AddrPortFrom(x.Stack.MasqAll, port),
		netip.AddrPortFrom(x.Stack.MasqLocal, port)) {
		t.Of(rejectedOf[x.Family].set).Put(nft.Element{Addr: v.Addr(), Protocol: x.Protocol, Port: v.Port()}, x.Owner)
	}
}

// UsesProxyPort reports whether the host leads clients to all endpoints by what stands in for the
// cluster IP: always to a NodePort. Its connections, also those that are just being made, do not
// see the Service's port or internal policy change. Always, too, where the host's way to cluster
// IPs is another one: by the management port, clients of external addresses would be others than
// before.
func (x *Front) UsesProxyPort() bool {
	return x.InternalLocal || x.NodePort != 0 || x.Stack.Local != node.Local{}
}

// clusterTarget is where the host sends its own clients: to all endpoints.
func (x *Front) clusterTarget() netip.AddrPort {
	if x.UsesProxyPort() {
		return netip.AddrPortFrom(x.Stack.MasqAll, admission.ProxyPort(x.Frontend))
	}
	return netip.AddrPortFrom(x.ClusterIP, x.Port)
}

// addLocalBackends tells where the host sends clients outside when the policy is Local: to its own
// endpoints at once, to the pods by a load balancer. Among several it chooses by slots.
func addLocalBackends(t node.Elements, x *Front, key nft.Element, one, spread, sticky *nft.Map) {
	pods := netip.AddrPortFrom(x.Stack.MasqLocal, admission.ProxyPort(x.Frontend))
	to := slices.Clone(x.LocalHost)
	for range min(len(x.LocalPods), max(1, nft.Slots-len(x.LocalHost))) { // each has its share
		to = append(to, pods)
	}
	if len(to) == 0 {
		to = append(to, pods)
	}
	if to[0] == to[len(to)-1] {
		t.To(one).Put(key, nft.Target{Addr: to[0], Owner: x.Owner})
		return
	}
	m := spread
	if x.Affinity > 0 {
		m = sticky
	}
	for i := range nft.Slots {
		key.Slot = uint8(i)
		t.To(m).Put(key, nft.Target{Addr: to[i*len(to)/nft.Slots], Owner: x.Owner})
	}
}

// Chains are the host's rules for Services, and the maps and sets that they look at.
func Chains(e node.Env) (datapath.State, []cluster.Problem) {
	c := node.NewChains(&e)
	for i := range e.Stacks {
		servicesOf[e.Stacks[i].Family].In(c.Table)
		if e.Node.Gateway.OpenFlow {
			rejectedOf[e.Stacks[i].Family].In(c.Table)
		}
	}
	c.Base(node.ChainNodePortIn, "nat", "prerouting", node.HookDNAT,
		slices.Concat(balancedRules(c), externalRules(c, true), nodePortRules(c, true)))
	c.Base(node.ChainNodePortOut, "nat", "output", node.HookDNAT,
		slices.Concat(externalRules(c, false), nodePortRules(c, false)))
	c.Base(node.ChainGuarded, "filter", "prerouting", node.HookGuarded, guardedRules(c))
	c.Base(node.ChainRefuseOut, "filter", "output", node.HookRefuse, refuseRules(c))
	c.Base(node.ChainRefuseForward, "filter", "forward", node.HookRefuse, refuseRules(c))
	c.Base(node.ChainMasquerade, "filter", "prerouting", node.HookLoopback, masqueradeRules(c))
	if in, out := loopbackRules(c); len(in) > 0 {
		c.Base(node.ChainLoopbackIn, "filter", "prerouting", node.HookLoopback, in)
		c.Base(node.ChainLoopbackOut, "nat", "postrouting", node.HookSNAT, out)
	}
	return c.State(), nil
}

// balancedRules lets pass what OVN has balanced already: when an endpoint of this host listens on a
// port that is also a NodePort's number or an external address's port, its packets must not go
// round again. Only addresses that are not for everybody are left to the host by the node switch.
func balancedRules(c node.Chains) []nft.Rule {
	fromPods := nft.InInterface{Name: claims.ManagementPort}
	var rules []nft.Rule
	for i := range c.Env.Stacks {
		m := servicesOf[c.Env.Stacks[i].Family]
		if !c.Env.Node.Gateway.OpenFlow {
			rules = append(rules, c.Rule(nft.DNATMap{Map: m.externals.Name},
				"pods to addresses with loadBalancerSourceRanges", fromPods, nft.InSet{Set: m.guarded.Name}))
		} else {
			const why = "pods to addresses without endpoints: refused at the cluster IP"
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
	if c.Env.Node.Gateway.OpenFlow {
		by = claims.ServiceBridge
	}
	for i := range c.Env.Stacks {
		rules = append(rules, c.Rule(nft.Return{}, "balanced by "+by,
			nft.AddrIn{Prefix: node.HostPrefix(c.Env.Stacks[i].MasqOVN)}))
	}
	return rules
}

// What clients are led to.
const (
	toOwn = "the node's own endpoints" // clients outside, where the policy is Local
	toAll = "all endpoints"
)

// externalRules lead clients of external addresses, before NodePorts: of a node's address, one may
// be another Service's than the other ports are.
func externalRules(c node.Chains, outside bool) []nft.Rule {
	var rules []nft.Rule
	for i := range c.Env.Stacks {
		m := servicesOf[c.Env.Stacks[i].Family]
		if outside {
			for _, own := range []*nft.Map{m.localIPs, m.spreadIPs, m.stickyIPs} {
				rules = append(rules, c.Rule(nft.DNATMap{Map: own.Name}, "external address: "+toOwn))
			}
		}
		rules = append(rules, c.Rule(nft.DNATMap{Map: m.externals.Name}, "external address: "+toAll))
	}
	return rules
}

// nodePortRules lead clients of NodePorts. For the primary address in mode shared, the bridge's
// flows come first. No client outside can use the host's addresses in the pod network and on the
// gateway router's link, nor link-local ones: they have no NodePorts
// (docs/design/origins.md#nodeport-without-kube-proxy).
func nodePortRules(c node.Chains, outside bool) []nft.Rule {
	var rules []nft.Rule
	if !c.Env.Config.Gateway.NodePort {
		return nil
	}
	for i := range c.Env.Stacks {
		s := &c.Env.Stacks[i]
		m := servicesOf[s.Family]
		for _, inner := range []netip.Prefix{node.HostPrefix(s.Management.Addr()), node.HostPrefix(s.MasqHost),
			node.Vocab(s.Family).LinkLocal} {
			if inner.IsValid() {
				rules = append(rules, c.Rule(nft.Return{}, "not for NodePorts", nft.AddrIn{Dst: true, Prefix: inner}))
			}
		}
		for _, matches := range nodePortMatches(c, s) {
			to := func(in *nft.Map, comment string) {
				rules = append(rules, c.Rule(nft.DNATMap{Map: in.Name}, "NodePort: "+comment,
					append(slices.Clone(matches), nft.DstIsLocal{})...))
			}
			if outside {
				to(m.localPorts, toOwn)
				to(m.spreadPorts, toOwn)
				to(m.stickyPorts, toOwn)
			}
			to(m.nodePorts, toAll)
		}
	}
	return rules
}

// nodePortMatches are the destinations with NodePorts: one list of matches for each rule.
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

// guardedRules blocks clients that may not reach a load balancer's address.
func guardedRules(c node.Chains) []nft.Rule {
	var rules []nft.Rule
	for i := range c.Env.Stacks {
		m := servicesOf[c.Env.Stacks[i].Family]
		rules = append(rules,
			c.Rule(nft.Return{}, "loadBalancerSourceRanges", nft.InSet{Set: m.allowed.Name}),
			c.Rule(nft.Drop{}, "loadBalancerSourceRanges", nft.InSet{Set: m.guarded.Name}))
	}
	return rules
}

// refuseRules answers for other ports of cluster IPs, and drops what is for no Service at all.
func refuseRules(c node.Chains) []nft.Rule {
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
		if c.Env.Node.Gateway.OpenFlow {
			nobody := nft.InSet{Set: rejectedOf[s.Family].set.Name}
			rules = append(rules,
				c.Rule(nft.Reject{TCPReset: true}, "no endpoint", nobody, nft.L4Proto{Protocol: cluster.TCP}),
				c.Rule(nft.Reject{}, "no endpoint", nobody))
		}
		for _, r := range s.Services {
			rules = append(rules, c.Rule(nft.Drop{}, "no Service has this address", nft.AddrIn{Dst: true, Prefix: r}))
		}
	}
	return rules
}

// masqueradeRules keeps others from the addresses that the host translates Services' addresses to.
// The host's own packets, and those that it translates itself, do not pass here with such an
// address.
func masqueradeRules(c node.Chains) []nft.Rule {
	var rules []nft.Rule
	for i := range c.Env.Stacks {
		s := &c.Env.Stacks[i]
		for _, a := range []netip.Addr{s.MasqAll, s.MasqLocal} {
			rules = append(rules, c.Rule(nft.Drop{}, "masquerade addresses are the host's own",
				nft.AddrIn{Dst: true, Prefix: node.HostPrefix(a)}))
		}
	}
	return rules
}

// loopbackRules serves NodePorts on 127.0.0.1 and ::1: such a packet leaves the host with the
// bridge's address, and nothing else may send to a loopback address.
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
