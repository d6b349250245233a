package ovnlb

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
	"hairpin/datapath/ovs"
	"hairpin/pipeline"
	"hairpin/plan/admission"
	"hairpin/plan/node"
)

// Base plans what the node needs for any load balancers: their groups, the SNAT of translated
// packets, and the paths of the host and of packets that no load balancer translated.
func Base(e node.Env) (datapath.State, []cluster.Problem) {
	if !e.Engine.LoadBalancers {
		return datapath.State{}, nil
	}
	z := node.NewZone(e)
	b, k := node.NewBridge(&e, claims.FeatureGateway), node.NewKernel(&e)
	gr := node.GatewayRouter(e.Node.Name)
	groups(z)
	copyMark(z, gr)
	for i := range e.Stacks {
		s := &e.Stacks[i]
		retransmitSNAT(z, gr, s)
		markSecondary(z, gr, s)
		for _, c := range append(slices.Clone(s.Services), node.HostPrefix(s.MasqLocal), node.HostPrefix(s.MasqAll)) {
			dropWithoutVIP(z, s, c)
		}
		routeRestricted(z, s)
		hostToServices(b, s, append(slices.Clone(s.Services), node.HostPrefix(s.MasqAll)))
		clientToService(b, s)
		toLoadBalancers(k, s, e.Node.Gateway.Bridge)
	}
	return datapath.State{NB: z.Rows, Bridge: ovs.State{Flows: b.Flows}, Host: k.State}, nil
}

// groups adds the rows that load balancers need.
func groups(z *node.Zone) {
	for _, name := range z.GroupsOf(node.GroupBoth, node.GroupSwitch, node.GroupRouter) {
		z.Rows.Add(&nb.Group{Name: name, Owner: z.Owner})
	}
	placeholderLB(z)
}

// placeholderLB keeps connections to the proxy addresses of Services, even after the last Service
// using it is deleted: a gateway router translates only packets to addresses of a load balancer.
func placeholderLB(z *node.Zone) {
	row := &nb.LoadBalancer{
		Name: "held", Protocol: cluster.TCP, Owner: z.Owner, Groups: []string{node.GroupOf(node.GroupRouter, z.Owner)},
		Options: map[string]string{"reject": "true", "event": "false", "skip_snat": "true",
			"neighbor_responder": "none"},
	}
	for i := range z.Stacks {
		for _, a := range []netip.Addr{z.Stacks[i].MasqLocal, z.Stacks[i].MasqAll} {
			row.VIPs = append(row.VIPs, nb.VIP{Addr: netip.AddrPortFrom(a, admission.PlaceholderPort)})
		}
	}
	z.Rows.Add(row)
}

// retransmitSNAT repeats what lb_force_snat_ip does. On the userspace datapath, conntrack calls
// retransmitted packets and those after a loss invalid. The load balancer's flags exist only for
// valid packets. The mark of the connection exists for all, see copyMark.
func retransmitSNAT(z *node.Zone, gr string, s *node.Stack) {
	z.Rows.Add(
		&nb.NAT{
			Router: gr, Type: nb.SNAT, External: s.Join.Addr(), Logical: node.AllAddresses(s.Family),
			Match: `outport == "` + node.RouterToJoin(gr) + `" && ` + forceSNATMark(), Owner: z.Owner,
		},
		&nb.NAT{
			Router: gr, Type: nb.SNAT, External: s.Address.Addr(), Logical: node.AllAddresses(s.Family),
			Match: `outport == "` + node.RouterToExternal(z.Node.Name) + `" && ` + forceSNATMark(), Owner: z.Owner,
		},
	)
}

// markSecondary marks load-balanced packets to a secondary address of the host.
func markSecondary(z *node.Zone, gr string, s *node.Stack) {
	if len(s.Secondary) == 0 || !z.Mode.Uplink || z.Mode.ServicesByHost { // else they are like any other
		return
	}
	set := z.AddressSet("secondary_", s.Family, s.Secondary)
	z.RouterToHost(gr, s, claims.PolicyForceSNATLocal,
		loadBalanced+" && "+node.Vocab(s.Family).Match+".dst == $"+set.Name, markForceSNAT())
}

// loadBalanced matches connections that the gateway router's load balancers translate, and that
// leave with its address.
const loadBalanced = "ct_mark.force_snat == 1"

// forceSNATMark returns the match of the packet mark that copyMark sets.
func forceSNATMark() string { return "pkt.mark == " + strconv.Itoa(claims.MarkForceSNAT) }

// markForceSNAT returns the options of a policy that sets that mark.
func markForceSNAT() map[string]string {
	return map[string]string{"pkt_mark": strconv.Itoa(claims.MarkForceSNAT)}
}

// copyMark copies a connection's mark to the packet, for the rows of retransmitSNAT: before these,
// the userspace datapath has looked up the connection again, without the VIP. The join switch
// clears the mark: a tunnel of the userspace datapath finds no route for a marked packet.
func copyMark(z *node.Zone, gr string) {
	if z.Mode.Uplink && z.Mode.ServicesByHost {
		for i := range z.Stacks {
			routeLoadBalanced(z, gr, &z.Stacks[i])
		}
	} else {
		z.Rows.Add(&nb.Policy{Router: gr, Priority: claims.PolicyForceSNAT, Match: loadBalanced, Action: nb.Allow,
			Options: markForceSNAT(), Owner: z.Owner})
	}
	z.Rows.Add(&nb.QoS{
		Switch: claims.JoinSwitch, Priority: claims.PolicyForceSNAT, Match: `inport == "` + node.JoinToRouter(gr) +
			`" && ` + forceSNATMark(), Owner: z.Owner,
	})
}

// routeLoadBalanced applies the gateway router's own routes to load-balanced packets for pods and
// the host. All others use the host's routes, even to the host's own network: the host may have a
// better route (docs/design/origins.md#host-to-service). Packets with an egress address are not
// load-balanced. Two policies without negation need fewer flows than one that excludes the ranges:
// OVN's flows of a negated range multiply those of the others.
func routeLoadBalanced(z *node.Zone, gr string, s *node.Stack) {
	ip := node.Vocab(s.Family).Match
	inside := append(slices.Clone(s.Cluster), s.Join.Masked(), s.Masquerade)
	z.Rows.Add(&nb.Policy{
		Router: gr, Priority: claims.PolicyForceSNATLocal, Match: loadBalanced + " && " + ip + ".dst == " +
			node.MatchSet(inside),
		Action: nb.Allow, Options: markForceSNAT(), Owner: z.Owner,
	})
	z.RouterToHost(gr, s, claims.PolicyForceSNAT, loadBalanced+" && "+ip, markForceSNAT())
}

// dropWithoutVIP drops packets to a Service that the gateway router does not know (yet), before it
// commits the connection. Else it would not translate later packets of that connection, and a UDP
// client that keeps sending would never be served.
func dropWithoutVIP(z *node.Zone, s *node.Stack, services netip.Prefix) {
	z.Rows.Add(&nb.Policy{
		Router: node.GatewayRouter(z.Node.Name), Priority: claims.PolicyServices, Action: nb.Drop, Owner: z.Owner,
		Match: node.Vocab(s.Family).Match + ".dst == " + services.String(),
	})
}

// routeRestricted routes pods' packets to addresses with source ranges to the host, which checks
// the source: these have no load balancer on the node switch. Each port has a set and a policy.
func routeRestricted(z *node.Zone, s *node.Stack) {
	list := slices.DeleteFunc(slices.Clone(z.RestrictedPorts),
		func(g node.RestrictedPort) bool { return cluster.FamilyOf(g.Addr) != s.Family })
	for len(list) > 0 {
		first, n := list[0], 1
		for n < len(list) && list[n].Protocol == first.Protocol && list[n].Port == first.Port {
			n++
		}
		set := &nb.AddressSet{
			Name:  fmt.Sprintf("guarded_%s_%s_%d", node.Vocab(s.Family).Match, first.Protocol, first.Port),
			Owner: z.Owner,
		}
		for _, g := range list[:n] {
			set.Addresses = append(set.Addresses, node.HostPrefix(g.Addr))
		}
		z.Rows.Add(set)
		z.PodsToHost(s, claims.PolicyServices, "$"+set.Name,
			fmt.Sprintf(" && %s.dst == %d", first.Protocol, first.Port))
		list = list[n:]
	}
}

// hostToServices sends the host's packets to some ranges of Services to the gateway router, and the
// replies back. Their source is the host's masquerade address, because the gateway router has the
// host's own.
func hostToServices(b *node.Bridge, s *node.Stack, ranges []netip.Prefix) {
	ip, host := node.Vocab(s.Family).IP, node.HostPrefix(s.MasqHost)
	for _, services := range ranges {
		b.Classify(node.PrioService, flow.Match{InPort: flow.Local, Protocol: ip, Dst: services},
			flow.CT{Commit: true, Table: pipeline.GatewayToRouter, Zone: claims.ZoneHost,
				NAT: flow.NAT{Kind: flow.NATSrc, Addr: s.MasqHost}})
		b.Classify(node.PrioService, flow.Match{InPort: b.OVN, Protocol: ip, Src: services, Dst: host},
			flow.CT{Table: pipeline.GatewayToHost, Zone: claims.ZoneHost, NAT: flow.NAT{Kind: flow.NATUndo}})
		// A packet that returns untranslated from the gateway router has no Service: an unused
		// ClusterIP. It must not go to the uplink.
		b.Classify(node.PrioNoVIP, flow.Match{InPort: b.OVN, Protocol: ip, Dst: services}, flow.Drop{})
	}
}

// clientToService sends packets of external clients that come through the host, under policy Local,
// to the gateway router unchanged, and the replies back. It applies where pods' replies come
// through that router. These replies have a source from which nothing else sends.
func clientToService(b *node.Bridge, s *node.Stack) {
	if b.Env.Mode.PodsByHost {
		return
	}
	ip, local := node.Vocab(s.Family).IP, node.HostPrefix(s.MasqLocal)
	b.Classify(node.PrioService, flow.Match{InPort: flow.Local, Protocol: ip, Dst: local},
		flow.Resubmit{Table: pipeline.GatewayToRouter})
	b.Classify(node.PrioService, flow.Match{InPort: b.OVN, Protocol: ip, Src: local},
		flow.Resubmit{Table: pipeline.GatewayToHost})
	b.Classify(node.PrioNoVIP, flow.Match{InPort: b.OVN, Protocol: ip, Dst: local}, flow.Drop{})
}

// toLoadBalancers routes the host's packets to Services through an unused next hop on the gateway
// bridge (docs/design/origins.md#host-to-service).
func toLoadBalancers(k *node.Kernel, s *node.Stack, bridge string) {
	own, mtu := s.Address.Addr(), k.Env.Config.MTU
	k.Address(host.Address{
		AddressKey: host.AddressKey{Link: bridge, Prefix: netip.PrefixFrom(s.MasqHost, s.Masquerade.Bits())},
		// The host must not choose it as a source by itself (docs/design/origins.md#pitfalls). IPv4
		// has no deprecated addresses; there, the routes below and the next hops' subnets decide.
		Deprecated: s.Family == cluster.IPv6,
	})
	toBridge := []netip.Prefix{node.HostPrefix(s.MasqAll)}
	for _, c := range s.Services {
		if k.Env.Node.Gateway.NodeLocal {
			k.Route(host.Route{RouteKey: host.RouteKey{Table: node.MainTable, Prefix: c}, Link: claims.ManagementPort,
				Via: s.Router.Addr(), Src: s.Management.Addr(), MTU: mtu})
		} else {
			toBridge = append(toBridge, c)
		}
	}
	if k.Env.Mode.PodsByHost { // the load balancer for external clients that come by the host is on the node switch
		k.Route(host.Route{RouteKey: host.RouteKey{Table: node.MainTable, Prefix: node.HostPrefix(s.MasqLocal)},
			Link: claims.ManagementPort, Via: s.Router.Addr()})
	} else { // it is on the gateway router, through which a pod's reply comes
		toBridge = append(toBridge, node.HostPrefix(s.MasqLocal))
	}
	for _, c := range toBridge {
		k.Route(host.Route{RouteKey: host.RouteKey{Table: node.MainTable, Prefix: c}, Link: bridge, Via: s.MasqNext,
			Src: own, MTU: mtu})
	}
	// Replies of endpoints on this host, for connections from the gateway router.
	if k.Env.Mode.Uplink { // the bridge has the uplink's MTU
		mtu = k.Env.ClientMTU()
	}
	k.RouteToClients(s, bridge, mtu)
	k.Neighbor(bridge, s.MasqNext, node.MasqMAC())
	k.Neighbor(bridge, s.MasqOVN, k.Env.Node.Gateway.MAC)
}
