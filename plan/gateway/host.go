package gateway

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/host"
	"hairpin/datapath/nft"
	"hairpin/plan/node"
)

// hostSide plans the host's path to Services (through the gateway bridge) and to pods (through the
// management port).
func hostSide(e *node.Env) host.State {
	k := node.NewKernel(e)
	bridge := e.Node.Gateway.Bridge
	k.State.Links[bridge] = host.Link{Name: bridge, Checksums: e.Checksums(), Owner: k.Owner}
	k.State.Links[claims.ManagementPort] = host.Link{
		Name: claims.ManagementPort, Checksums: e.Checksums() && e.Node.Gateway.NodeLocal,
		MAC: cluster.MACFor(e.Stacks[0].Management.Addr()), MTU: e.Config.MTU, Owner: k.Owner,
	}
	for i := range e.Stacks {
		management(k, &e.Stacks[i])
		if e.Mode.Uplink {
			borrowed(k, &e.Stacks[i], bridge)
		} else {
			k.Address(host.Address{AddressKey: host.AddressKey{Link: bridge, Prefix: e.Stacks[i].Address}})
		}
	}
	sysctls(k, bridge)
	if x, ok := newEncap(e); ok {
		x.links(k)
	}
	return k.State
}

// management adds the path between host and pods.
func management(k *node.Kernel, s *node.Stack) {
	mp0 := claims.ManagementPort
	k.Address(host.Address{AddressKey: host.AddressKey{Link: mp0, Prefix: s.Management}})
	for _, c := range s.Cluster {
		k.Route(host.Route{RouteKey: host.RouteKey{Table: node.MainTable, Prefix: c}, Link: mp0, Via: s.Router.Addr()})
	}
}

// borrowed adds the machine's own addresses and default route on the gateway bridge. Packets use
// them, but Hairpin does not write them.
func borrowed(k *node.Kernel, s *node.Stack, bridge string) {
	for _, p := range k.Env.Node.Gateway.Addresses {
		if cluster.FamilyOf(p.Addr()) == s.Family {
			k.Address(host.Address{AddressKey: host.AddressKey{Link: bridge, Prefix: p}, Borrowed: true})
		}
	}
	if len(s.NextHops) > 0 { // one is enough: borrowed routes are not written
		k.Route(host.Route{RouteKey: host.RouteKey{Table: node.MainTable, Prefix: node.AllAddresses(s.Family)},
			Link: bridge, Via: s.NextHops[0], Borrowed: true})
	}
}

// sysctls sets the kernel's settings for forwarding and for the host's links.
func sysctls(k *node.Kernel, bridge string) {
	k.Sysctl("net/ipv4/ip_forward", "1")
	k.Sysctl("net/ipv6/conf/all/forwarding", "1")
	// A packet and its reply take different paths here: loose reverse-path checks, and no redirects
	// to "better" ones.
	k.Sysctl("net/ipv4/conf/all/send_redirects", "0")
	for _, link := range []string{bridge, claims.ManagementPort} {
		k.Asymmetric(link)
	}
	// In the pod network the host has no router except the one that its routes name.
	k.Sysctl(fmt.Sprintf("net/ipv6/conf/%s/accept_ra", claims.ManagementPort), "0")
	conntrack(k, &k.Env.Config.Conntrack)
	if s := k.Env.Stack(cluster.IPv6); s != nil && k.Env.LoopbackPorts(cluster.IPv6) {
		// The equivalent of route_localnet: the reply, un-NATed to ::1, is for the host.
		k.Route(host.Route{RouteKey: host.RouteKey{Table: host.LocalTable, Prefix: node.Vocab(s.Family).Loopback},
			Link: k.Env.ServiceLink()})
	}
	if k.Env.Stack(cluster.IPv4) != nil {
		// Reset the value of an earlier configuration: without node.ChainLoopbackIn, other hosts
		// could reach 127.0.0.1.
		value := "0"
		if k.Env.LoopbackPorts(cluster.IPv4) {
			value = "1"
		}
		k.Sysctl(fmt.Sprintf("net/ipv4/conf/%s/route_localnet", k.Env.ServiceLink()), value)
	}
	if g := &k.Env.Node.Gateway; g.Userspace && k.Env.Mode.Uplink {
		// The kernel gets the uplink's frames, too, and would act on router advertisements.
		k.Sysctl(fmt.Sprintf("net/ipv6/conf/%s/disable_ipv6", g.Uplink), "1")
	}
}

// conntrack sets the configured sysctls of the kernel's connection tracking.
func conntrack(k *node.Kernel, c *cluster.ConntrackConfig) {
	set := func(name string, value int) {
		if value != 0 {
			k.Sysctl("net/netfilter/"+name, strconv.Itoa(value))
		}
	}
	set("nf_conntrack_max", c.Max())
	set("nf_conntrack_tcp_timeout_established", int(c.TCPEstablished.Seconds()))
	set("nf_conntrack_tcp_timeout_close_wait", int(c.TCPCloseWait.Seconds()))
	// The kernel does not translate packets that it calls invalid. With the Service engine
	// openflow, a pod would get a late reply from the endpoint's own address, and reset the
	// connection (kubernetes #74839).
	if g := &k.Env.Node.Gateway; c.TCPLiberal || k.Env.Engine.ServiceBridge && !g.Userspace {
		set("nf_conntrack_tcp_be_liberal", 1)
	}
}

// hostFilter returns the host's nft rules for tunnels, for packets from pods, and for the source
// address of packets to pods. On the userspace datapath the kernel also drops packets that it
// receives on the uplink and on the host's ends of pods' veth pairs: Open vSwitch receives them,
// too.
func hostFilter(e *node.Env) nft.State {
	c := node.NewChains(e)
	c.Base(node.ChainToPods, "nat", "postrouting", node.HookSNAT, toPods(c))
	tunnelChains(c)
	c.Base(node.ChainFromPods, "filter", "prerouting", node.HookGuard, podGuard(c))
	if e.Engine.ServiceBridge {
		forwarded(c)
	}
	if e.Engine.ServiceBridge && e.Mode.ClientsByHost {
		c.Base(node.ChainForeign, "filter", "prerouting", node.HookGuard, foreignSources(c))
	}
	if !e.Node.Gateway.Userspace {
		return nft.State{nft.Inet: c.Table}
	}
	c.Base(node.ChainPods, "filter", "prerouting", node.HookGuard,
		[]nft.Rule{c.Rule(nft.Drop{}, node.CopiedFrame, nft.InInterface{Name: claims.PodInterface + "*"})})
	frames := node.NewChains(e)
	if x, ok := newEncap(e); ok {
		x.chains(frames)
	} else {
		frames.Ingress(node.ChainUplink, e.Node.Gateway.Uplink, node.HookGuard,
			frames.Rule(nft.Drop{}, node.CopiedFrame))
	}
	return nft.State{nft.Inet: c.Table, nft.Netdev: frames.Table}
}

// forwarded marks packets that the host forwards to pods for other machines: for a client of a
// hostPort, or one that has a route to pods by this node. Through the management port they would
// get the host's own source address, and NetworkPolicies would permit them. So they use
// claims.ServiceHost, as those of clients of Services do, or are dropped. Replies to pods use the
// management port. Packets from outside with an address of the node or of a pod as source are
// dropped: Linux does not check this for IPv6.
func forwarded(c node.Chains) {
	var mark []nft.Rule
	for i := range c.Env.Stacks {
		s := &c.Env.Stacks[i]
		for _, r := range s.Cluster {
			to := nft.AddrIn{Dst: true, Prefix: r}
			for _, src := range slices.Concat(s.Cluster, hostAddresses(c.Env, s)) {
				mark = append(mark, c.Rule(nft.Drop{}, "sources of the node and its pods",
					append(fromOutside(), to, nft.AddrIn{Prefix: src})...))
			}
			mark = append(mark, c.Rule(nft.AddMark{Bits: claims.MarkForwarded},
				"requests that the host forwards to pods", to, nft.CTOriginal))
		}
	}
	c.Base(node.ChainForwarded, "filter", "prerouting", node.HookMarks, mark)
	c.Base(node.ChainForwardedGuard, "filter", "forward", node.HookFilter,
		[]nft.Rule{c.Rule(nft.Drop{}, "they must pass NetworkPolicies", nft.OutInterface{Name: claims.ManagementPort},
			node.Forwarded())})
}

// hostAddresses returns the host's addresses that are not in the pod network.
func hostAddresses(e *node.Env, s *node.Stack) (list []netip.Prefix) {
	for _, a := range e.OwnAddresses(s) {
		if !node.InRanges(s.Cluster, a) {
			list = append(list, node.HostPrefix(a))
		}
	}
	return list
}

// toPods SNATs packets of the host to pods to the management port's address, whatever their source
// was: a pod on another node would send the reply elsewhere.
func toPods(c node.Chains) (rules []nft.Rule) {
	out := nft.OutInterface{Name: claims.ManagementPort}
	for i := range c.Env.Stacks {
		s := &c.Env.Stacks[i]
		// With another source, the pod's reply would not return through the management port.
		if c.Env.Mode.PodsByHost && !c.Env.Engine.ServiceBridge {
			rules = append(rules, c.Rule(nft.Return{}, "the client's source, under policy Local", out,
				nft.AddrIn{Dst: true, Prefix: node.HostPrefix(s.MasqLocal)}))
		}
		rules = append(rules, c.Rule(nft.SNAT{Addr: s.Management.Addr()}, "the host's source towards pods", out,
			nft.AddrIn{Not: true, Prefix: node.HostPrefix(s.Management.Addr())}))
	}
	return rules
}
