package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/host"
	"hairpin/datapath/nft"
)

// mainTable is the kernel's main routing table.
const mainTable = 254

// kernel writes the host's links, addresses, routes and neighbours.
type kernel struct {
	env   *Env
	state host.State
	owner cluster.Owner
}

func newKernel(e *Env) *kernel {
	return &kernel{env: e, owner: nodeOwner(e.Node.Name), state: host.State{
		Links: map[string]host.Link{}, Addresses: map[host.AddressKey]host.Address{}, Routes: map[host.RouteKey]host.Route{},
		Neighbors: map[host.NeighborKey]host.Neighbor{}, Sysctls: map[string]host.Sysctl{},
	}}
}

// hostSide is the host's way to Services (through the gateway bridge) and to pods (through the management port).
func hostSide(e *Env) host.State {
	k := newKernel(e)
	bridge := e.Node.Gateway.Bridge
	k.state.Links[bridge] = host.Link{Name: bridge, Checksums: e.checksums(), Owner: k.owner}
	k.state.Links[claims.ManagementPort] = host.Link{
		Name: claims.ManagementPort, Checksums: e.checksums() && e.Node.Gateway.NodeLocal, MAC: cluster.MACFor(e.Stacks[0].Management.Addr()), MTU: e.Config.MTU, Owner: k.owner,
	}
	for i := range e.Stacks {
		k.management(&e.Stacks[i])
		if e.Mode.Uplink {
			k.borrowed(&e.Stacks[i], bridge)
		} else {
			k.address(host.Address{AddressKey: host.AddressKey{Link: bridge, Prefix: e.Stacks[i].Address}})
		}
	}
	k.sysctls(bridge)
	if x, ok := newEncap(e); ok {
		x.links(k)
	}
	return k.state
}

// checksums reports whether the host computes checksums of what it gives to Open vSwitch: what the userspace datapath sends back to it, and the
// host or a program on to a link, would have a wrong one.
func (e *Env) checksums() bool {
	return e.Node.Gateway.Userspace && (e.Mode.ClientsByHost || len(e.Redirect) > 0 || slices.ContainsFunc(e.Stacks, func(s Stack) bool { return e.byHost(&s) }))
}

// management is the way between host and pods.
func (k *kernel) management(s *Stack) {
	mp0 := claims.ManagementPort
	k.address(host.Address{AddressKey: host.AddressKey{Link: mp0, Prefix: s.Management}})
	for _, c := range s.Cluster {
		k.route(host.Route{RouteKey: host.RouteKey{Table: mainTable, Prefix: c}, Link: mp0, Via: s.Router.Addr()})
	}
}

// toClients is the route to clients of endpoints on this host. Their TCP segments fit the routes by which the host forwards
// what comes by other links to Services.
func (k *kernel) toClients(s *Stack, link string, mtu int) {
	r := host.Route{RouteKey: host.RouteKey{Table: mainTable, Prefix: single(s.MasqOVN)}, Link: link, Src: s.Node, MTU: mtu}
	if pods := k.env.Config.MTU; mtu > pods {
		r.AdvMSS = pods - words(s.Family).tcpHeaders
	}
	k.route(r)
}

// serviceLink is the link by which the host gets to Services.
func (e *Env) serviceLink() string {
	if e.Node.Gateway.OpenFlow {
		return claims.ServiceHost
	}
	return e.Node.Gateway.Bridge
}

// serviceHop is the next hop on that link.
func (e *Env) serviceHop(s *Stack) netip.Addr {
	if e.Node.Gateway.OpenFlow {
		return s.MasqOVN
	}
	return s.MasqNext
}

// borrowed is the machine's own: its addresses and default route on the gateway bridge. Packets take them; they are not
// written.
func (k *kernel) borrowed(s *Stack, bridge string) {
	for _, p := range k.env.Node.Gateway.Addresses {
		if cluster.FamilyOf(p.Addr()) == s.Family {
			k.address(host.Address{AddressKey: host.AddressKey{Link: bridge, Prefix: p}, Borrowed: true})
		}
	}
	if len(s.NextHops) > 0 { // of several, the first: what is there stays as it is
		k.route(host.Route{RouteKey: host.RouteKey{Table: mainTable, Prefix: everything(s.Family)}, Link: bridge, Via: s.NextHops[0], Borrowed: true})
	}
}

func (k *kernel) sysctls(bridge string) {
	k.sysctl("net/ipv4/ip_forward", "1")
	k.sysctl("net/ipv6/conf/all/forwarding", "1")
	// A packet and its reply take different ways here: loose reverse-path checks, and no redirects to "better" ones.
	k.sysctl("net/ipv4/conf/all/send_redirects", "0")
	for _, link := range []string{bridge, claims.ManagementPort} {
		k.asymmetric(link)
	}
	// In the pod network the host has no router but the one that routes name.
	k.sysctl(fmt.Sprintf("net/ipv6/conf/%s/accept_ra", claims.ManagementPort), "0")
	k.conntrack(&k.env.Config.Conntrack)
	if s := k.env.stack(cluster.IPv6); s != nil && k.env.loopbackPorts(cluster.IPv6) {
		// The twin of route_localnet: the answer, translated back to ::1, is for the host.
		k.route(host.Route{RouteKey: host.RouteKey{Table: host.LocalTable, Prefix: words(s.Family).loopback}, Link: k.env.serviceLink()})
	}
	if k.env.stack(cluster.IPv4) != nil {
		value := "0" // not what an earlier configuration has left: without chainLoopbackIn, others could reach 127.0.0.1
		if k.env.loopbackPorts(cluster.IPv4) {
			value = "1"
		}
		k.sysctl(fmt.Sprintf("net/ipv4/conf/%s/route_localnet", k.env.serviceLink()), value)
	}
	if g := &k.env.Node.Gateway; g.Userspace && k.env.Mode.Uplink {
		// The kernel sees the uplink's frames too, and would answer router advertisements there.
		k.sysctl(fmt.Sprintf("net/ipv6/conf/%s/disable_ipv6", g.Uplink), "1")
	}
}

// asymmetric allows a packet and its reply to take different links.
func (k *kernel) asymmetric(link string) {
	k.sysctl(fmt.Sprintf("net/ipv4/conf/%s/rp_filter", link), "2")
	k.sysctl(fmt.Sprintf("net/ipv4/conf/%s/send_redirects", link), "0")
}

// conntrack writes what the administrator wants of the kernel's connection tracking.
func (k *kernel) conntrack(c *cluster.ConntrackConfig) {
	set := func(name string, value int) {
		if value != 0 {
			k.sysctl("net/netfilter/"+name, strconv.Itoa(value))
		}
	}
	set("nf_conntrack_max", c.Max())
	set("nf_conntrack_tcp_timeout_established", int(c.TCPEstablished.Seconds()))
	set("nf_conntrack_tcp_timeout_close_wait", int(c.TCPCloseWait.Seconds()))
	// What the kernel calls invalid it does not translate: with flows, a pod would get a late answer from the endpoint's own address, and
	// end the connection (kubernetes #74839).
	if g := &k.env.Node.Gateway; c.TCPLiberal || g.OpenFlow && !g.Userspace {
		set("nf_conntrack_tcp_be_liberal", 1)
	}
}

func (k *kernel) address(a host.Address) {
	a.Owner = k.owner
	k.state.Addresses[a.AddressKey] = a
}

func (k *kernel) route(r host.Route) {
	r.Owner = k.owner
	k.state.Routes[r.RouteKey] = r
}

func (k *kernel) neighbor(link string, ip netip.Addr, mac cluster.MAC) {
	n := host.NeighborKey{Link: link, IP: ip}
	k.state.Neighbors[n] = host.Neighbor{NeighborKey: n, MAC: mac, Owner: k.owner}
}

func (k *kernel) sysctl(path, value string) {
	k.state.Sysctls[path] = host.Sysctl{Path: path, Value: value, Owner: k.owner}
}

// Names and priorities of our nft chains.
const (
	chainNodePortIn     = "nodeport-prerouting"
	chainNodePortOut    = "nodeport-output"
	chainGuarded        = "load-balancer-sources"
	chainMasquerade     = "masquerade-prerouting"
	chainLoopbackIn     = "loopback-prerouting"
	chainLoopbackOut    = "loopback-postrouting"
	chainRefuseForward  = "services-forward"
	chainRefuseOut      = "services-output"
	chainToPods         = "to-pods"
	chainEgress         = "egress"
	chainEgressMarks    = "egress-marks"
	chainEgressGuard    = "egress-guard"
	chainMoves          = "egress-moves"
	chainUplink         = "uplink"
	chainPods           = "pods"
	chainTunnels        = "tunnels"
	chainTunnelsIn      = "tunnels-input"
	chainTunnelsForward = "tunnels-forward"
	chainFromPods       = "from-pods"

	hookFilter  = 0    // filter
	hookMoves   = -150 // behind what looks up connections
	hookDNAT    = -100 // dstnat
	hookMarks   = -90  // behind that
	hookSNAT    = 100  // srcnat
	hookLeaks   = 110  // behind that
	hookGuard   = -500 // before anything else sees the frame
	hookTunnels = 0    // behind a filter of the administrator's, if there is one
)

// copied says why the kernel need not hear what comes in on a port of a userspace switch.
const copied = "Open vSwitch has its own copy of the frame"

// hostFilter is the host's nft: NodePorts of the host's own clients, the source of what the host sends to pods, and, on
// the userspace datapath, deafness of the kernel on the uplink and on the host's ends of pods.
func hostFilter(e *Env) nft.State {
	owner := nodeOwner(e.Node.Name)
	t := &nft.Table{
		Maps: map[string]*nft.Map{}, Sets: map[string]*nft.Set{},
		Chains: map[string]*nft.Chain{
			chainToPods: {Name: chainToPods, Type: "nat", Hook: "postrouting", Priority: hookSNAT, Rules: toPods(e, owner), Owner: owner},
		},
	}
	tunnelChains(e, t, owner)
	t.Chains[chainFromPods] = podGuard(e, owner)
	s := nft.State{nft.Inet: t}
	if g := &e.Node.Gateway; g.Userspace {
		frames := &nft.Table{Chains: map[string]*nft.Chain{}}
		s[nft.Netdev] = frames
		if x, ok := newEncap(e); ok {
			x.chains(frames, owner)
		} else {
			frames.Chains[chainUplink] = &nft.Chain{
				Name: chainUplink, Type: "filter", Hook: "ingress", Device: g.Uplink, Priority: hookGuard, Owner: owner,
				Rules: []nft.Rule{{Do: nft.Drop{}, Comment: copied, Owner: owner}},
			}
		}
		t.Chains[chainPods] = &nft.Chain{
			Name: chainPods, Type: "filter", Hook: "prerouting", Priority: hookGuard, Owner: owner,
			Rules: []nft.Rule{{Matches: []nft.Match{nft.InInterface{Name: claims.PodInterface + "*"}}, Do: nft.Drop{}, Comment: copied, Owner: owner}},
		}
	}
	return s
}

// toPods returns what the host sends to pods the management port's address, whatever its source was: a pod on another node
// would send the reply elsewhere.
func toPods(e *Env, owner cluster.Owner) []nft.Rule {
	var rules []nft.Rule
	for i := range e.Stacks {
		a := e.Stacks[i].Management.Addr()
		if e.Mode.PodsByHost && !e.Node.Gateway.OpenFlow { // else the pod's answer does not come by the management port
			rules = append(rules, nft.Rule{
				Matches: []nft.Match{nft.OutInterface{Name: claims.ManagementPort}, nft.AddrIn{Dst: true, Prefix: single(e.Stacks[i].MasqLocal)}},
				Do:      nft.Return{}, Comment: "the client's source, under policy Local", Owner: owner,
			})
		}
		rules = append(rules, nft.Rule{
			Matches: []nft.Match{nft.OutInterface{Name: claims.ManagementPort}, nft.AddrIn{Not: true, Prefix: single(a)}},
			Do:      nft.SNAT{Addr: a}, Comment: "the host's source towards pods", Owner: owner,
		})
	}
	return rules
}
