package egress

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/conn"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/plan/node"
)

// hostEgress is an address that the planned node carries on a link of its host, and the pods of all
// nodes that leave with it. OVN sends the packet to the host by the management port. A rule by the
// pod's address selects the link's own table. nft translates packets that leave by that link, and
// drops those that leave by another one.
type hostEgress struct {
	address           netip.Addr // unset: that of the link by which the packet leaves
	link              *cluster.HostLink
	table             *cluster.RouteTable // replaces the link's table, for service
	service           *cluster.EgressService
	pods              []netip.Prefix
	answeredElsewhere bool // another node answers for the address
}

// egressLink returns where the planned node carries an address: on the gateway bridge (primary), on
// a link of the host, or nowhere, if no network of the node has it any more.
func egressLink(e *node.Env, x *cluster.EgressIP, a netip.Addr) (link *cluster.HostLink, primary bool) {
	if x.ByTable() {
		if t := tableOf(e, x); t != nil {
			return &cluster.HostLink{Table: t.Number}, false
		}
		return nil, false
	}
	n, _ := x.NetworkFor(e.Node, e.Node.Networks(e.Config), a)
	return n.Link, n.Primary
}

// trackedAddresses returns the egress addresses with connections that the kernel tracks, and
// whether this node translates to each. On the gateway bridge, the kernel tracks connections only
// with the kernel datapath.
func trackedAddresses(e *node.Env, all []*cluster.EgressIP) map[netip.Addr]conn.Egress {
	networks := e.Node.Networks(e.Config)
	byKernel := func(n cluster.Network) bool { return n.Link != nil || n.Primary && !e.Node.Gateway.Userspace }
	if !slices.ContainsFunc(networks, byKernel) && !slices.ContainsFunc(all, (*cluster.EgressIP).ByTable) {
		return nil
	}
	list := map[netip.Addr]conn.Egress{}
	add := func(x *cluster.EgressIP, a netip.Addr, own bool) {
		if x.OnlyAnnounced() {
			return
		}
		if n, _ := x.NetworkFor(e.Node, networks, a); !byKernel(n) && !x.ByTable() || e.Node.HasAddress(a) {
			return
		}
		if _, known := list[a]; own || !known { // several EgressIPs may want it, and one has it
			list[a] = conn.Egress{Elsewhere: !own, Owner: x.Owner}
		}
	}
	for _, x := range all {
		for _, a := range x.Addresses {
			add(x, a, false)
		}
		for _, a := range x.Assigned {
			add(x, a.Address, a.Node == e.Node.Name)
		}
		for _, m := range x.Moving {
			add(x, m.Address, m.From == e.Node.Name || m.To == e.Node.Name)
		}
	}
	return list
}

// toHost routes packets of other nodes' pods, which come by the transit switch, to the host.
// reroute does that for this node's own pods.
func toHost(e *node.Env, rows nb.State, s *node.Stack, x *cluster.EgressIP, all []netip.Prefix) {
	set := egressSet(x.Owner, s.Family)
	rows.Add(&nb.AddressSet{Name: set, Addresses: all, Owner: x.Owner}, &nb.Policy{
		Router: claims.ClusterRouter, Priority: claims.PolicyHostEgress, Action: nb.Reroute,
		NextHops: []netip.Addr{s.Management.Addr()}, Owner: x.Owner,
		Match: `inport == "` + node.RouterToTransit(e.Node.Name) + `" && ` + node.Vocab(s.Family).Match + ".src == $" +
			set,
	})
}

// planHost plans the host's part of all EgressIPs. It runs again whenever one of them changes,
// because a pod's address can pass from one to another.
func planHost(e *node.Env, parts map[cluster.Owner]egressPart) datapath.State {
	k, t := node.NewKernel(e), node.NewElements()
	used := false
	for _, owner := range slices.SortedFunc(maps.Keys(parts), cluster.Owner.Compare) {
		p := parts[owner]
		for _, h := range p.hostEgress {
			if len(h.pods) == 0 {
				addAddress(k, p.owner, h)
				addAnnounced(k, t, p.owner, h.address)
				used = true
				continue
			}
			sources := map[string]netip.Addr{}
			if h.table == nil {
				carryOnLink(k, p.owner, h)
				sources[h.link.Name] = h.address
			} else {
				sources = useTable(k, p.owner, h)
			}
			for _, pod := range h.pods {
				if addSources(t, p.owner, pod, sources) {
					rule(k, p.owner, pod, egressTable(h.link))
				}
			}
			used = true
		}
		for _, pod := range p.guarded {
			addGuards(t, p.owner, pod)
			used = true
		}
		for _, l := range p.limits { // of pods that are guarded
			l.mark(k, t, p.owner)
		}
	}
	if !used {
		return datapath.State{}
	}
	for i := range e.Stacks {
		s := &e.Stacks[i]
		if len(k.State.Rules) > 0 {
			k.State.Rules[host.Rule{Family: s.Family, Priority: claims.RuleMainTable, Mark: claims.MarkNodeIP,
				Table: node.MainTable}] = k.Owner
		}
		for _, n := range e.NodeAddresses(s) {
			t.Set(egressOf[s.Family].nodes).Put(nft.Element{Addr: n.Addr()}, k.Owner)
		}
	}
	return datapath.State{Host: k.State, NFT: nft.State{nft.Inet: t.Table}}
}

// egressTable returns the route table of a link: its VRF's, or one of Hairpin's.
func egressTable(l *cluster.HostLink) int {
	if l.Table != 0 {
		return l.Table
	}
	return claims.EgressTableBase + l.Index
}

// carryOnLink adds an address to a link, and routes to the link's table.
func carryOnLink(k *node.Kernel, owner cluster.Owner, h hostEgress) {
	f := cluster.FamilyOf(h.address)
	addAddress(k, owner, h)
	k.Sysctl(fmt.Sprintf("net/ipv4/conf/%s/forwarding", h.link.Name), "1")
	if f == cluster.IPv4 {
		validMarks(k)
	}
	if s := k.Env.Stack(f); h.link.Table != 0 && s != nil {
		for _, c := range s.Cluster { // replies come into the VRF
			k.Route(host.Route{RouteKey: host.RouteKey{Table: h.link.Table, Prefix: c}, Link: claims.ManagementPort,
				Via: s.Router.Addr()})
		}
		return
	}
	table := egressTable(h.link)
	k.Route(host.Route{RouteKey: host.RouteKey{Table: table, Prefix: node.AllAddresses(f)}, Link: h.link.Name})
	for _, r := range h.link.Routes {
		if cluster.FamilyOf(r.Prefix.Addr()) == f {
			k.Route(host.Route{RouteKey: host.RouteKey{Table: table, Prefix: r.Prefix}, Link: h.link.Name, Via: r.Via})
		}
	}
	for _, a := range h.link.Addresses {
		if cluster.FamilyOf(a.Addr()) == f && !a.IsSingleIP() {
			k.Route(host.Route{RouteKey: host.RouteKey{Table: table, Prefix: a.Masked()}, Link: h.link.Name})
		}
	}
}

// addAddress adds an address to a link, so that the host answers for it.
func addAddress(k *node.Kernel, owner cluster.Owner, h hostEgress) {
	if h.answeredElsewhere {
		return
	}
	a := host.AddressKey{Link: h.link.Name, Prefix: node.HostPrefix(h.address)}
	if _, known := k.State.Addresses[a]; !known {
		// The host must not choose it as its own source. IPv4 prefers addresses with the network's
		// mask.
		k.State.Addresses[a] = host.Address{AddressKey: a, Deprecated: h.address.Is6(), Owner: owner}
	}
}

// validMarks accepts, on every link, replies of nodes to a pod that has a rule. A link with a
// strict reverse-path check (rp_filter=1) then uses the main table, and not the rule.
func validMarks(k *node.Kernel) {
	n := k.Env.Node
	for i := range n.Links {
		k.Sysctl(fmt.Sprintf("net/ipv4/conf/%s/src_valid_mark", n.Links[i].Name), "1")
	}
	if d := n.Gateway.Device; d != "" {
		k.Sysctl(fmt.Sprintf("net/ipv4/conf/%s/src_valid_mark", d), "1")
	}
}

// egressMaps holds the nft maps and sets of EgressIPs of one family. Chains has the rules that use
// them.
type egressMaps struct {
	node.Declared
	sources     *nft.Map // pod and link to the egress address
	pods, nodes *nft.Set
	announced   *nft.Set // load balancer addresses that the host has
}

var egressOf = map[cluster.Family]*egressMaps{cluster.IPv4: newEgressMaps(cluster.IPv4),
	cluster.IPv6: newEgressMaps(cluster.IPv6)}

func newEgressMaps(f cluster.Family) *egressMaps {
	d, w := node.Declare(f), node.Vocab(f)
	return &egressMaps{d, d.Map("egress", w.Src, nft.KeyOut), d.Set("egress-pods", w.Src), d.Set("node-ips", w.Dst),
		d.Set("announced", w.Dst)}
}

// addSources lets a pod leave by links, with a source address for each. It returns false while a
// pod of another EgressIP has the same address, which is possible briefly after one of them ended.
func addSources(t node.Elements, owner cluster.Owner, pod netip.Prefix, sources map[string]netip.Addr) bool {
	m := egressOf[cluster.FamilyOf(pod.Addr())]
	pods := t.Set(m.pods)
	if _, taken := pods.Get(nft.Element{Src: pod}); taken {
		return false
	}
	for link, a := range sources {
		t.Map(m.sources).Put(nft.Element{Src: pod, Out: link}, nft.Target{Addr: netip.AddrPortFrom(a, 0), Owner: owner})
	}
	pods.Put(nft.Element{Src: pod}, owner)
	return true
}

// addGuards keeps a pod from leaving by the host.
func addGuards(t node.Elements, owner cluster.Owner, pod netip.Prefix) {
	pods := t.Set(egressOf[cluster.FamilyOf(pod.Addr())].pods)
	if _, known := pods.Get(nft.Element{Src: pod}); !known {
		pods.Put(nft.Element{Src: pod}, owner)
	}
}

// Chains plans the host's rules for packets that leave by it. Their number depends on no pod.
func Chains(e node.Env) (datapath.State, []cluster.Problem) {
	c := node.NewChains(&e)
	for i := range e.Stacks {
		egressOf[e.Stacks[i].Family].AddTo(c.Table)
	}
	c.Base(node.ChainEgressMarks, "filter", "prerouting", node.HookMarks, markRules(c))
	c.Base(node.ChainEgress, "nat", "postrouting", node.HookSNAT, egressRules(c))
	c.Base(node.ChainEgressGuard, "filter", "postrouting", node.HookLeaks, guardRules(c))
	return c.State(), nil
}

// eastWestMatches returns the destinations within the cluster to which a pod with an egress address
// leaves as other pods do: Services. Nodes are in a set.
func eastWestMatches(c node.Chains, s *node.Stack) []nft.Match {
	var list []nft.Match
	for _, p := range append(slices.Clone(s.Services), s.Masquerade) {
		list = append(list, nft.AddrIn{Dst: true, Prefix: p})
	}
	return list
}

// markRules marks packets of pods with egress addresses to nodes and Services, and saves the mark
// in conntrack: they and the reverse-path checks of their replies use the main table
// (docs/design/origins.md#policies). The mark that OVN sets does not survive the userspace
// datapath. Replies of such pods to clients for which the host forwards use the main table, too.
func markRules(c node.Chains) []nft.Rule {
	marked := nft.MarkIs{Value: claims.MarkNodeIP, Mask: ^uint32(0)}
	rules := []nft.Rule{c.Rule(nft.RestoreMark{}, "replies of nodes and Services", nft.MarkIs{Mask: ^uint32(0)},
		nft.CTMarkIs{Value: claims.MarkNodeIP})}
	for i := range c.Env.Stacks {
		s := &c.Env.Stacks[i]
		m := egressOf[s.Family]
		from, pods := nft.InInterface{Name: claims.ManagementPort}, nft.InSet{Set: m.pods.Name}
		for _, to := range append(eastWestMatches(c, s), nft.InSet{Set: m.nodes.Name}) {
			rules = append(rules, c.Rule(nft.SetMark{Value: claims.MarkNodeIP},
				"pods with egress addresses to nodes and Services", from, pods, to))
		}
	}
	rules = append(rules, c.Rule(nft.SaveMark{}, "saved for their replies", marked))
	if c.Env.Engine.ServiceBridge { // not of a pod's own connections, which come by the management port
		for i := range c.Env.Stacks {
			rules = append(rules, c.Rule(nft.SetMark{Value: claims.MarkNodeIP}, "replies to forwarded requests",
				nft.InInterface{Name: claims.ServiceHost}, nft.InSet{Set: egressOf[c.Env.Stacks[i].Family].pods.Name},
				nft.CTReply))
		}
	}
	return rules
}

// egressRules SNATs packets that leave by the host. Pods with an egress address get it on its link,
// and leave by no other. If all pods leave by the host, the others get the node's address on the
// link. In mode detached, so do packets of the gateway router to other machines.
func egressRules(c node.Chains) []nft.Rule {
	e := c.Env
	marked := nft.MarkIs{Value: claims.MarkNodeIP, Mask: ^uint32(0)}
	rules := toPods(c)
	if e.Mode.PodsByHost {
		rules = append(rules, toItself(c))
	}
	not := func(link string) nft.Match { return nft.OutInterface{Name: link, Not: true} }
	mp0 := not(claims.ManagementPort)
	for i := range e.Stacks {
		if s := &e.Stacks[i]; e.Mode.PodsByHost {
			rules = append(rules, c.Rule(nft.Masquerade{}, "to nodes and Services as other pods",
				nft.AddrIn{Prefix: s.Subnet}, mp0, marked))
		}
	}
	rules = append(rules, c.Rule(nft.Return{}, "to nodes and Services as other pods", marked))
	for i := range e.Stacks {
		m := egressOf[e.Stacks[i].Family]
		rules = append(rules,
			c.Rule(nft.SNATMap{Map: m.sources.Name}, "egress addresses"),
			c.Rule(nft.Drop{}, "pods without an egress address on this link", nft.InSet{Set: m.pods.Name}, mp0))
	}
	for i := range e.Stacks {
		s := &e.Stacks[i]
		if e.Mode.PodsByHost {
			rules = append(rules, c.Rule(nft.Masquerade{}, "pods leave the cluster", nft.AddrIn{Prefix: s.Subnet}, mp0))
		}
		if e.Mode.PodsByHost && e.Node.Gateway.NodeLocal {
			rules = append(rules, c.Rule(nft.Masquerade{}, "the host to Services with endpoints elsewhere",
				nft.AddrIn{Prefix: node.HostPrefix(s.Local.Management.Addr())}, not(claims.LocalPort)))
		}
		if e.Engine.ServiceBridge {
			rules = append(rules, c.Rule(nft.Masquerade{}, "Services with endpoints elsewhere",
				nft.AddrIn{Prefix: node.HostPrefix(s.MasqOVN)}, not(claims.ServiceHost)))
		}
		switch elsewhere := (nft.AddrIn{Prefix: node.HostPrefix(s.MasqRouter)}); {
		case !e.Mode.Uplink:
			rules = append(rules, c.Rule(nft.Masquerade{}, "Services with endpoints elsewhere", elsewhere,
				not(e.Node.Gateway.Bridge)))
		case e.RoutesByHost(s): // also those that the host sends back by the gateway bridge
			rules = append(rules, c.Rule(nft.Masquerade{}, "Services with endpoints elsewhere", elsewhere, mp0))
		}
	}
	return rules
}

// toPods skips packets that the host forwards to pods: NetworkPolicies must see a pod's own source.
func toPods(c node.Chains) []nft.Rule {
	if !c.Env.Engine.ServiceBridge {
		return nil
	}
	return []nft.Rule{c.Rule(nft.Return{}, "forwarded to pods", node.Forwarded())}
}

// toItself skips packets of the host to its own management address: their source is that address,
// and they do not leave.
func toItself(c node.Chains) nft.Rule {
	return c.Rule(nft.Return{}, "the host to its management address", nft.OutInterface{Name: "lo"})
}

// guardRules drops pods' packets that were not translated, except replies to clients that have a
// route to pods by this node. Those to Services pass, by the link that leads to Services.
func guardRules(c node.Chains) []nft.Rule {
	rules := append(toPods(c), toItself(c))
	for i := range c.Env.Stacks {
		s := &c.Env.Stacks[i]
		for _, p := range s.Cluster {
			from := nft.AddrIn{Prefix: p}
			for _, to := range eastWestMatches(c, s) {
				rules = append(rules, c.Rule(nft.Return{}, "to Services", from,
					nft.OutInterface{Name: c.Env.ServiceLink()}, to))
			}
			rules = append(rules, c.Rule(nft.Return{}, "replies to clients with a route to pods", from, nft.CTReply),
				c.Rule(nft.Drop{}, "untranslated packets of pods", from,
					nft.OutInterface{Name: claims.ManagementPort, Not: true}))
		}
		if c.Env.Mode.Uplink && c.Env.RoutesByHost(s) {
			rules = append(rules, c.Rule(nft.Drop{}, "untranslated packets of the gateway router",
				nft.AddrIn{Prefix: node.HostPrefix(s.MasqRouter)},
				nft.OutInterface{Name: claims.ManagementPort, Not: true}))
		}
	}
	return rules
}
