package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/plan/admission"
)

// balancing is what the node needs for load balancers, whichever there are: their groups, the SNAT of what they translate, the ways of the
// host and of what no load balancer took.
func balancing(e Env) (datapath.State, []cluster.Problem) {
	if e.Node.Gateway.OpenFlow {
		return datapath.State{}, nil
	}
	z := zone{Env: e, rows: nb.State{}, owner: nodeOwner(e.Node.Name)}
	b, k := newBridge(&e, claims.FeatureGateway), newKernel(&e)
	gr := gatewayRouter(e.Node.Name)
	z.groups()
	z.marks(gr)
	for i := range e.Stacks {
		s := &e.Stacks[i]
		z.retransmits(gr, s)
		z.toSecondary(gr, s)
		for _, c := range append(slices.Clone(s.Services), single(s.MasqLocal), single(s.MasqAll)) {
			z.noVIP(s, c)
		}
		z.toGuarded(s)
		b.hostToService(s)
		b.clientToService(s)
		k.toLoadBalancers(s, e.Node.Gateway.Bridge)
	}
	return datapath.State{NB: z.rows, Bridge: flow.State{Flows: b.flows}, Host: k.state}, nil
}

// groups makes the rows that load balancers need.
func (z *zone) groups() {
	for _, name := range z.groupsOf(groupBoth, groupSwitch, groupRouter) {
		z.rows.Add(&nb.Group{Name: name, Owner: z.owner})
	}
	z.placeholderLB()
}

// placeholderLB keeps connections to the proxy addresses of Services, even after the last Service using it is deleted: a
// gateway router translates only packets to addresses of a load balancer.
func (z *zone) placeholderLB() {
	row := &nb.LoadBalancer{
		Name: "held", Protocol: cluster.TCP, Owner: z.owner, Groups: []string{groupOf(groupRouter, z.owner)},
		Options: map[string]string{"reject": "true", "event": "false", "skip_snat": "true", "neighbor_responder": "none"},
	}
	for i := range z.Stacks {
		for _, a := range []netip.Addr{z.Stacks[i].MasqLocal, z.Stacks[i].MasqAll} {
			row.VIPs = append(row.VIPs, nb.VIP{Addr: netip.AddrPortFrom(a, admission.PlaceholderPort)})
		}
	}
	z.rows.Add(row)
}

// retransmits repeats what lb_force_snat_ip does. On the userspace datapath conntrack calls a packet
// invalid that is sent again, and what follows a loss; the load balancer's flags are only for those that are not. The
// mark of the connection is for all, see marks.
func (z *zone) retransmits(gr string, s *Stack) {
	z.rows.Add(
		&nb.NAT{
			Router: gr, Type: nb.SNAT, External: s.Join.Addr(), Logical: everything(s.Family),
			Match: `outport == "` + routerToJoin(gr) + `" && ` + forceSNATMark(), Owner: z.owner,
		},
		&nb.NAT{
			Router: gr, Type: nb.SNAT, External: s.Address.Addr(), Logical: everything(s.Family),
			Match: `outport == "` + routerToExternal(z.Node.Name) + `" && ` + forceSNATMark(), Owner: z.owner,
		},
	)
}

// toSecondary marks what load balancers send to a further address of the host.
func (z *zone) toSecondary(gr string, s *Stack) {
	if len(s.Others) == 0 || !z.Mode.Uplink || z.Mode.ServicesByHost { // else they are like any other
		return
	}
	set := z.set("secondary_", s.Family, s.Others)
	z.handOver(gr, s, claims.PolicyForceSNATLocal, loadBalanced+" && "+words(s.Family).match+".dst == $"+set.Name, markForceSNAT())
}

// loadBalanced is the match of connections that the gateway router's load balancers translate, and that leave with its address.
const loadBalanced = "ct_mark.force_snat == 1"

// forceSNATMark is the match of the packet mark that marks gives.
func forceSNATMark() string { return "pkt.mark == " + strconv.Itoa(claims.MarkForceSNAT) }

// markForceSNAT are the options of a policy that gives it.
func markForceSNAT() map[string]string {
	return map[string]string{"pkt_mark": strconv.Itoa(claims.MarkForceSNAT)}
}

// marks tells the retransmit SNAT rows of a connection's mark. Where they are, conntrack was asked once more on the userspace
// datapath, for the connection without the VIP. Beyond the gateway router there is no mark: a tunnel finds no route with one.
func (z *zone) marks(gr string) {
	if z.Mode.Uplink && z.Mode.ServicesByHost {
		for i := range z.Stacks {
			z.byHostsRoutes(gr, &z.Stacks[i])
		}
	} else {
		z.rows.Add(&nb.Policy{Router: gr, Priority: claims.PolicyForceSNAT, Match: loadBalanced, Action: nb.Allow, Options: markForceSNAT(), Owner: z.owner})
	}
	z.rows.Add(&nb.QoS{
		Switch: claims.JoinSwitch, Priority: claims.PolicyForceSNAT, Match: `inport == "` + joinToRouter(gr) + `" && ` + forceSNATMark(), Owner: z.owner,
	})
}

// byHostsRoutes leaves pods, and the host itself, to the gateway router's own routes, and all else that its load balancers have to those of
// the host, its own network included: the host may have a better route (host-to-service.md). What leaves with an egress address is not load-balanced.
// The ranges are not negated: each would multiply the flows of the others.
func (z *zone) byHostsRoutes(gr string, s *Stack) {
	ip := words(s.Family).match
	inside := append(slices.Clone(s.Cluster), s.Join.Masked(), s.Masquerade)
	z.rows.Add(&nb.Policy{
		Router: gr, Priority: claims.PolicyForceSNATLocal, Match: loadBalanced + " && " + ip + ".dst == {" + joined(inside) + "}",
		Action: nb.Allow, Options: markForceSNAT(), Owner: z.owner,
	})
	z.handOver(gr, s, claims.PolicyForceSNAT, loadBalanced+" && "+ip, markForceSNAT())
}

// noVIP drops what the gateway router gets for a Service that it does not know, or not yet, before it remembers the connection:
// it would not translate what follows of that one, and a UDP client that goes on sending would never be served.
func (z *zone) noVIP(s *Stack, services netip.Prefix) {
	z.rows.Add(&nb.Policy{
		Router: gatewayRouter(z.Node.Name), Priority: claims.PolicyServices, Action: nb.Drop, Owner: z.owner,
		Match: words(s.Family).match + ".dst == " + services.String(),
	})
}

// toGuarded routes pods to their host for guarded addresses, which have no load balancer on the node switch: the host
// checks the source. It adds an address set and a policy for each port.
func (z *zone) toGuarded(s *Stack) {
	list := slices.DeleteFunc(slices.Clone(z.Guarded), func(g guarded) bool { return cluster.FamilyOf(g.addr) != s.Family })
	for len(list) > 0 {
		first, n := list[0], 1
		for n < len(list) && list[n].protocol == first.protocol && list[n].port == first.port {
			n++
		}
		set := &nb.AddressSet{
			Name:  fmt.Sprintf("guarded_%s_%s_%d", words(s.Family).match, first.protocol, first.port),
			Owner: z.owner,
		}
		for _, g := range list[:n] {
			set.Addresses = append(set.Addresses, single(g.addr))
		}
		z.rows.Add(set)
		z.toHost(s, claims.PolicyServices, "$"+set.Name, fmt.Sprintf(" && %s.dst == %d", first.protocol, first.port))
		list = list[n:]
	}
}

// hostToService leads the host's packets for Services to the gateway router, and the replies back. On the way the host
// gets its masquerade address, because the gateway router has the host's own.
func (b *bridge) hostToService(s *Stack) {
	b.hostToServices(s, append(slices.Clone(s.Services), single(s.MasqAll)))
}

// hostToServices is hostToService for some ranges of addresses.
func (b *bridge) hostToServices(s *Stack, ranges []netip.Prefix) {
	ip, host := words(s.Family).ip, single(s.MasqHost)
	for _, services := range ranges {
		b.classify(prioService, flow.Match{InPort: flow.Local, Protocol: ip, Dst: services},
			flow.CT{Commit: true, Table: claims.TableToOVN, Zone: claims.ZoneHost, NAT: flow.NAT{Kind: flow.NATSrc, Addr: s.MasqHost}})
		b.classify(prioService, flow.Match{InPort: b.ovn, Protocol: ip, Src: services, Dst: host},
			flow.CT{Table: claims.TableToHost, Zone: claims.ZoneHost, NAT: flow.NAT{Kind: flow.NATUndo}})
		// What comes back from the gateway router untranslated has no Service: an unused ClusterIP. Not to the uplink.
		b.classify(prioNoVIP, flow.Match{InPort: b.ovn, Protocol: ip, Dst: services}, flow.Drop{})
	}
}

// clientToService leads clients outside that come by the host, under policy Local, to the gateway router as they are, and the
// replies back, where pods' replies come by that: these have an address that nothing else sends from.
func (b *bridge) clientToService(s *Stack) {
	if b.env.Mode.PodsByHost {
		return
	}
	ip, local := words(s.Family).ip, single(s.MasqLocal)
	b.classify(prioService, flow.Match{InPort: flow.Local, Protocol: ip, Dst: local}, flow.Resubmit{Table: claims.TableToOVN})
	b.classify(prioService, flow.Match{InPort: b.ovn, Protocol: ip, Src: local}, flow.Resubmit{Table: claims.TableToHost})
	b.classify(prioNoVIP, flow.Match{InPort: b.ovn, Protocol: ip, Dst: local}, flow.Drop{})
}

// toLoadBalancers is the way to Services: by an unused next hop on the gateway bridge (host-to-service.md).
func (k *kernel) toLoadBalancers(s *Stack, bridge string) {
	own, mtu := s.Address.Addr(), k.env.Config.MTU
	k.address(host.Address{
		AddressKey: host.AddressKey{Link: bridge, Prefix: netip.PrefixFrom(s.MasqHost, s.Masquerade.Bits())},
		// The host must not choose it as a source by itself (gateway-pitfalls.md). IPv4 knows no such address; there,
		// the routes below and the next hops' subnets decide.
		Deprecated: s.Family == cluster.IPv6,
	})
	by := []netip.Prefix{single(s.MasqAll)}
	for _, c := range s.Services {
		if k.env.Node.Gateway.NodeLocal {
			k.route(host.Route{RouteKey: host.RouteKey{Table: mainTable, Prefix: c}, Link: claims.ManagementPort, Via: s.Router.Addr(), Src: s.Management.Addr(), MTU: mtu})
		} else {
			by = append(by, c)
		}
	}
	if k.env.Mode.PodsByHost { // the load balancer for external clients that come by the host is on the node switch
		k.route(host.Route{RouteKey: host.RouteKey{Table: mainTable, Prefix: single(s.MasqLocal)}, Link: claims.ManagementPort, Via: s.Router.Addr()})
	} else { // it is on the gateway router, by which a pod's answer comes
		by = append(by, single(s.MasqLocal))
	}
	for _, c := range by {
		k.route(host.Route{RouteKey: host.RouteKey{Table: mainTable, Prefix: c}, Link: bridge, Via: s.MasqNext, Src: own, MTU: mtu})
	}
	// Replies of endpoints on this host, to connections that the gateway router brought.
	if k.env.Mode.Uplink { // whose MTU the bridge has
		mtu = k.env.clientMTU()
	}
	k.toClients(s, bridge, mtu)
	k.neighbor(bridge, s.MasqNext, masqMAC())
	k.neighbor(bridge, s.MasqOVN, k.env.Node.Gateway.MAC)
}
