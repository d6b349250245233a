package gateway

import (
	"net/netip"
	"strconv"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/datapath/nb"
	"hairpin/plan/node"
)

// Topology is the node's OVN zone without Pods and Services: cluster router, node switch, join
// switch, gateway router, external switch, and the transit switch to the other nodes' zones.
func Topology(e node.Env) (datapath.State, []cluster.Problem) {
	z := node.Zone{Env: e, Rows: nb.State{}, Owner: node.OwnerOf(e.Node.Name)}
	clusterRouter(&z)
	nodeSwitch(&z)
	gatewayRouter(&z)
	external(&z)
	nat(&z)
	policies(&z)
	s := datapath.State{NB: z.Rows, Bridge: openVSwitch(&e)}
	transit(&z, &s)
	return s, nil
}

func clusterRouter(z *node.Zone) {
	name := z.Node.Name
	z.Rows.Add(
		// With an ACL, a switch would drop what conntrack calls invalid, which a late packet of a
		// good connection may be.
		&nb.Global{Name: name, Options: map[string]string{"name": name, "use_ct_inv_match": "false"}, Owner: z.Owner},
		&nb.Router{Name: claims.ClusterRouter, Owner: z.Owner},
		&nb.Switch{Name: claims.JoinSwitch, Owner: z.Owner},
	)
	z.Link(nb.RouterPort{
		Name: node.RouterToJoin(claims.ClusterRouter), Router: claims.ClusterRouter,
		Networks: z.Addresses(func(s *node.Stack) netip.Prefix { return s.JoinRouter }),
	}, claims.JoinSwitch, node.JoinToRouter(claims.ClusterRouter), nil)

	for i := range z.Stacks {
		s := &z.Stacks[i]
		// Whatever the pods (and foreign pods, on an egress node) send elsewhere leaves by the
		// gateway router, or by the host.
		exit := s.Join.Addr()
		if z.Mode.PodsByHost {
			exit = s.Management.Addr()
		}
		for _, c := range bySource(s) {
			z.Rows.Add(&nb.Route{Router: claims.ClusterRouter, Prefix: c, NextHop: exit, BySource: true,
				Owner: z.Owner})
		}
		// More specific than any route by source, so that what goes to the gateway router itself is
		// not turned away. With Services as flows it is the address of what claims.ServiceBridge
		// serves, behind the pods' port.
		toJoin := &nb.Route{Router: claims.ClusterRouter, Prefix: node.HostPrefix(s.Join.Addr()),
			NextHop: s.Join.Addr(), Owner: z.Owner}
		if z.Node.Gateway.OpenFlow {
			toJoin.NextHop, toJoin.OutPort = s.MasqNext, node.RouterToSwitch(name)
			z.Rows.Add(&nb.MACBinding{Port: node.RouterToSwitch(name), IP: s.MasqNext, MAC: node.MasqMAC(),
				Owner: z.Owner})
		}
		z.Rows.Add(toJoin)
	}
}

func nodeSwitch(z *node.Zone) {
	name := z.Node.Name
	config := map[string]string{}
	management := []string{cluster.MACFor(z.Stacks[0].Management.Addr()).String()}
	for i := range z.Stacks {
		s := &z.Stacks[i]
		// OVN's words for a switch's range differ by family.
		switch s.Family {
		case cluster.IPv4:
			config["subnet"] = s.Subnet.String()
		case cluster.IPv6:
			config["ipv6_prefix"] = s.Subnet.Addr().String()
		}
		management = append(management, s.Management.Addr().String())
	}
	if n := z.PodConnectionLimit(); n > 0 && !z.Node.Gateway.OpenFlow { // of the zone of each pod's port
		config["ct-zone-limit"] = strconv.Itoa(n)
	}
	z.Rows.Add(
		&nb.Switch{Name: name, OtherConfig: config, Groups: z.GroupsOf(node.GroupBoth, node.GroupSwitch),
			Owner: z.Owner},
		&nb.SwitchPort{Name: node.ManagementPort(name), Switch: name,
			Addresses: []string{strings.Join(management, " ")}, Owner: z.Owner},
	)
	z.Link(nb.RouterPort{
		Name: node.RouterToSwitch(name), Router: claims.ClusterRouter, Chassis: name,
		Networks: z.Addresses(func(s *node.Stack) netip.Prefix { return s.Router }),
	}, name, node.SwitchToRouter(name), nil)
	noDHCP(z)
}

// noDHCP drops what pods send to the ports of DHCP clients, whose other fields a pod can choose.
// Not what routers and the host send (OVN has no "inport !=", hence a second row), nor replies: on
// a switch with load balancers, OVN passes those before its ACLs.
func noDHCP(z *node.Zone) {
	var ports []string
	for i := range z.Stacks {
		w := node.Vocab(z.Stacks[i].Family)
		ports = append(ports, "("+w.Match+" && udp.dst == "+strconv.Itoa(int(w.DHCP))+")")
	}
	match := strings.Join(ports, " || ")
	others := `inport == {"` + node.SwitchToRouter(z.Node.Name) + `", "` + node.ManagementPort(z.Node.Name) + `"}`
	z.Rows.Add(
		&nb.ACL{Switch: z.Node.Name, Priority: claims.ACLExcept, Match: others + " && (" + match + ")",
			Action: nb.Allow, Owner: z.Owner},
		&nb.ACL{Switch: z.Node.Name, Priority: claims.ACLDrop, Match: match, Action: nb.Drop, Owner: z.Owner},
	)
}

func gatewayRouter(z *node.Zone) {
	name, gr := z.Node.Name, node.GatewayRouter(z.Node.Name)
	options := map[string]string{
		"chassis": name,
		// The host's own conntrack zone, so that (on the kernel datapath) SNAT takes no port that
		// the host uses.
		"snat-ct-zone": "0",
		// Neighbours are written down, not learned: a first packet that waits for one would lose
		// its SNAT.
		"dynamic_neigh_routers":         "false",
		"always_learn_from_arp_request": "false",
		"mac_binding_age_threshold":     "300", // seconds
	}
	// replies of load-balanced connections come back here because the source is this router's
	if !z.Node.Gateway.OpenFlow {
		options["lb_force_snat_ip"] = "router_ip"
	}
	z.Rows.Add(&nb.Router{Name: gr, Groups: z.GroupsOf(node.GroupBoth, node.GroupRouter), Owner: z.Owner,
		Options: options})
	z.Link(nb.RouterPort{
		Name: node.RouterToJoin(gr), Router: gr, Options: podMTU(z),
		Networks: z.Addresses(func(s *node.Stack) netip.Prefix { return s.Join }),
	}, claims.JoinSwitch, node.JoinToRouter(gr), nil)
}

// podMTU makes the gateway router report to senders that pods have a smaller MTU. TCP knows that
// from the pod. Nodes get no report (bridge.noMTU), by a flow for each where OVN has no load
// balancers. Where the host forwards, its routes have the MTU; in mode local it does not forward
// what answers egress addresses.
func podMTU(z *node.Zone) map[string]string {
	if !z.Mode.Uplink {
		return nil
	}
	bypass := "tcp"
	if s := z.Stack(z.TunnelFamily()); s != nil && !z.Node.Gateway.OpenFlow {
		bypass += " || " + node.Vocab(s.Family).Match + ".src == $" + node.HostsSet(s.Family)
	}
	return map[string]string{"gateway_mtu": strconv.Itoa(z.Config.MTU), "gateway_mtu_bypass": bypass}
}

// external is the gateway router's port to the external network: it has the node's own address and
// MAC.
func external(z *node.Zone) {
	name, gr, sw := z.Node.Name, node.GatewayRouter(z.Node.Name), node.ExternalSwitch(z.Node.Name)
	z.Rows.Add(
		&nb.Switch{Name: sw, Owner: z.Owner},
		&nb.SwitchPort{
			Name: node.Localnet(z.Node.Gateway.Bridge, name), Switch: sw, Type: "localnet",
			Addresses: []string{"unknown"},
			Options:   map[string]string{"network_name": claims.PhysicalNet}, Owner: z.Owner,
		},
	)
	rtoe := node.RouterToExternal(name)
	var options map[string]string
	if z.Mode.Uplink { // otherwise there is no neighbour to announce addresses to
		options = map[string]string{"nat-addresses": "router", "exclude-lb-vips-from-garp": "true"}
	}
	z.Link(nb.RouterPort{
		Name: rtoe, Router: gr, MAC: z.Node.Gateway.MAC,
		Networks: z.Addresses(func(s *node.Stack) netip.Prefix { return s.Address }),
	}, sw, node.ExternalToRouter(name), options)

	for i := range z.Stacks {
		s := &z.Stacks[i]
		for _, c := range s.Cluster {
			z.Rows.Add(&nb.Route{Router: gr, Prefix: c, NextHop: s.JoinRouter.Addr(), Owner: z.Owner})
		}
		// The path to the host: an unused next hop, with a MAC that the bridge's flows know.
		z.Rows.Add(
			&nb.Route{Router: gr, Prefix: s.Masquerade, NextHop: s.MasqNext, OutPort: rtoe, Owner: z.Owner},
			&nb.MACBinding{Port: rtoe, IP: s.MasqNext, MAC: node.MasqMAC(), Owner: z.Owner},
		)
		next := s.NextHops
		if len(next) == 0 { // by the host (docs/design/origins.md#detached-gateway)
			next = []netip.Addr{s.MasqNext}
		}
		for _, hop := range next {
			z.Rows.Add(&nb.Route{Router: gr, Prefix: node.Everything(s.Family), NextHop: hop, OutPort: rtoe,
				Owner: z.Owner})
		}
		secondary(z, gr, s)
	}
}

// secondary leads what the gateway router has for the host's further addresses to the host, whether
// a default gateway answers or not, and although the host would answer for them with the router's
// own MAC. An address that comes or goes changes a set only.
func secondary(z *node.Zone, gr string, s *node.Stack) {
	if len(s.Secondary) == 0 || !z.Mode.Uplink {
		return
	}
	set := z.Set("secondary_", s.Family, s.Secondary)
	to := node.Vocab(s.Family).Match + ".dst == $" + set.Name
	z.Rows.Add(set)
	z.HandOver(gr, s, claims.PolicyNodeLocal, to, nil)
}

// snatPorts are the ports that OVN gives to pods' connections on the userspace datapath. There, OVN
// and the host do not share a conntrack zone, and a pod's connection could take the 5-tuple of one
// of the host's. These ports are neither the host's ephemeral ones (net.ipv4.ip_local_port_range
// starts at 32768) nor NodePorts. There must be many of them: one that was used is not free again
// for 10 s. The kernel datapath shares zone 0 with the host and needs no range.
const snatPorts = "1024-29999"

// nat hides this node's pods behind the node's address, where they leave by the gateway router.
// Foreign pods have no row: without the SNAT of an egress IP they meet the bridge's drop flow and
// do not leak.
func nat(z *node.Zone) {
	gr := node.GatewayRouter(z.Node.Name)
	ports := ""
	if z.Node.Gateway.Userspace {
		ports = snatPorts
	}
	for i := range z.Stacks {
		s := &z.Stacks[i]
		if !z.Mode.PodsByHost {
			z.Rows.Add(&nb.NAT{Router: gr, Type: nb.SNAT, External: s.Address.Addr(), Logical: s.Subnet,
				PortRange: ports, Owner: z.Owner})
		}
	}
}

// policies lead pods to all addresses of their own host through the management port: the gateway
// router shares the primary one, and could not deliver it. The same with what no load balancer
// took.
func policies(z *node.Zone) {
	for i := range z.Stacks {
		s := &z.Stacks[i]
		dropInternal(z, s)
		for _, c := range s.Services {
			z.ToHost(s, claims.PolicyServices, c.String(), "")
		}
		z.ToHost(s, claims.PolicyNodeLocal, s.Address.Addr().String(), "")
		// A further address that comes or goes changes a member of a set: northd would compute all
		// again for a policy.
		if set := z.Set("secondary_", s.Family, s.Secondary); len(set.Addresses) > 0 {
			z.Rows.Add(set)
			z.ToHost(s, claims.PolicyNodeLocal, "$"+set.Name, "")
		}
	}
}

// openVSwitch is what ovn-controller reads, and the host's port into the pod network.
func openVSwitch(e *node.Env) flow.State {
	name, g := e.Node.Name, &e.Node.Gateway
	s := flow.State{
		Bridge: g.Bridge,
		Settings: map[string]string{
			"system-id":           name,
			"hostname":            name,
			"ovn-remote":          "unix:/run/ovn/ovnsb_db.sock",
			"ovn-encap-type":      "geneve",
			"ovn-encap-ip":        e.Node.Addresses[0].String(),
			"ovn-bridge-mappings": claims.PhysicalNet + ":" + g.Bridge,
			"ovn-monitor-all":     "true", // the zone is this node's alone
			// 209 instead of 349 MB at 10 000 load balancers, no slower.
			"ovn-enable-lflow-cache": "false",
		},
		Ports: map[string]flow.Port{
			claims.ManagementPort: {
				Name: claims.ManagementPort, Bridge: claims.IntegrationBridge, Type: "internal",
				MAC: cluster.MACFor(e.Stacks[0].Management.Addr()), MTU: e.Config.MTU,
				ExternalIDs: map[string]string{"iface-id": node.ManagementPort(name)}, Owner: node.OwnerOf(name),
			},
		},
	}
	if g.NodeLocal {
		s.Settings["ovn-bridge-mappings"] += "," + claims.LocalNet + ":" + claims.LocalBridge
	}
	if g.Userspace {
		s.Settings["ovn-bridge-datapath-type"] = "netdev"
	}
	return s
}
