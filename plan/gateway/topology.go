package gateway

import (
	"net/netip"
	"strconv"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/nb"
	"hairpin/datapath/ovs"
	"hairpin/plan/node"
)

// Topology plans the node's OVN zone without Pods and Services: cluster router, node switch, join
// switch, gateway router, external switch, and the transit switch to the other nodes' zones.
func Topology(e node.Env) (datapath.State, []cluster.Problem) {
	z := node.NewZone(e)
	clusterRouter(z)
	nodeSwitch(z)
	gatewayRouter(z)
	external(z)
	nat(z)
	policies(z)
	s := datapath.State{NB: z.Rows, Bridge: openVSwitch(&e)}
	transit(z, &s)
	return s, nil
}

// clusterRouter adds the cluster router and its routes.
func clusterRouter(z *node.Zone) {
	name := z.Node.Name
	z.Rows.Add(
		// With an ACL, a switch would drop packets that conntrack calls invalid, such as a late
		// packet of a good connection.
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
		// Packets of pods (also foreign pods, on an egress node) to other destinations leave by the
		// gateway router, or by the host.
		exit := s.Join.Addr()
		if z.Mode.PodsByHost {
			exit = s.Management.Addr()
		}
		for _, c := range bySource(s) {
			z.Rows.Add(&nb.Route{Router: claims.ClusterRouter, Prefix: c, NextHop: exit, BySource: true,
				Owner: z.Owner})
		}
		// This route precedes those by source, so that packets to the gateway router's own address
		// reach it. With the Service engine openflow, connections that claims.ServiceBridge serves
		// have this address, so it is behind the pods' port.
		toJoin := &nb.Route{Router: claims.ClusterRouter, Prefix: node.HostPrefix(s.Join.Addr()),
			NextHop: s.Join.Addr(), Owner: z.Owner}
		if z.Engine.ServiceBridge {
			toJoin.NextHop, toJoin.OutPort = s.MasqNext, node.RouterToSwitch(name)
			z.Rows.Add(&nb.MACBinding{Port: node.RouterToSwitch(name), IP: s.MasqNext, MAC: node.MasqMAC(),
				Owner: z.Owner})
		}
		z.Rows.Add(toJoin)
	}
}

// nodeSwitch adds the node switch, with the ports of the host and of the cluster router.
func nodeSwitch(z *node.Zone) {
	name := z.Node.Name
	config := map[string]string{}
	management := []string{cluster.MACFor(z.Stacks[0].Management.Addr()).String()}
	for i := range z.Stacks {
		s := &z.Stacks[i]
		// OVN's keys for a switch's range differ by family.
		switch s.Family {
		case cluster.IPv4:
			config["subnet"] = s.Subnet.String()
		case cluster.IPv6:
			config["ipv6_prefix"] = s.Subnet.Addr().String()
		}
		management = append(management, s.Management.Addr().String())
	}
	if n := z.PodConnectionLimit(); n > 0 && z.Engine.PodPorts { // of the zone of each pod's port
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

// noDHCP drops packets of pods to the ports of DHCP clients, so that no pod is a DHCP server.
// Packets of routers and the host pass, by a second row, because OVN has no "inport !=". So do
// replies: on a switch with load balancers, OVN passes those before its ACLs.
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

// gatewayRouter adds the gateway router and its port to the join switch.
func gatewayRouter(z *node.Zone) {
	name, gr := z.Node.Name, node.GatewayRouter(z.Node.Name)
	options := map[string]string{
		"chassis": name,
		// The host's own conntrack zone, so that (on the kernel datapath) SNAT takes no port that
		// the host uses.
		"snat-ct-zone": "0",
		// Neighbors are configured, not learned: a first packet that waits for one would lose its
		// SNAT.
		"dynamic_neigh_routers":         "false",
		"always_learn_from_arp_request": "false",
		"mac_binding_age_threshold":     "300", // seconds
	}
	// replies of load-balanced connections come back here because the source is this router's
	if z.Engine.LoadBalancers {
		options["lb_force_snat_ip"] = "router_ip"
	}
	z.Rows.Add(&nb.Router{Name: gr, Groups: z.GroupsOf(node.GroupBoth, node.GroupRouter), Owner: z.Owner,
		Options: options})
	z.Link(nb.RouterPort{
		Name: node.RouterToJoin(gr), Router: gr, Options: podMTU(z),
		Networks: z.Addresses(func(s *node.Stack) netip.Prefix { return s.Join }),
	}, claims.JoinSwitch, node.JoinToRouter(gr), nil)
}

// podMTU makes the gateway router report the pods' smaller MTU to senders. TCP needs no report: the
// MSS of the pod is smaller. Nodes must get none: see noMTU. Where the host forwards, its routes
// have the MTU. But in mode local it does not forward replies to egress addresses.
func podMTU(z *node.Zone) map[string]string {
	if !z.Mode.Uplink {
		return nil
	}
	bypass := "tcp"
	if s := z.Stack(z.TunnelFamily()); s != nil && z.Engine.LoadBalancers {
		bypass += " || " + node.Vocab(s.Family).Match + ".src == $" + node.HostsSet(s.Family)
	}
	return map[string]string{"gateway_mtu": strconv.Itoa(z.Config.MTU), "gateway_mtu_bypass": bypass}
}

// external adds the external switch, and the gateway router's port to it with the node's own
// address and MAC.
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
	if z.Mode.Uplink { // otherwise there is no neighbor to announce addresses to
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
			z.Rows.Add(&nb.Route{Router: gr, Prefix: node.AllAddresses(s.Family), NextHop: hop, OutPort: rtoe,
				Owner: z.Owner})
		}
		secondary(z, gr, s)
	}
}

// secondary routes packets for the host's other addresses from the gateway router to the host, even
// when no default gateway answers, and although the host would answer for them with the router's
// own MAC. A new or removed address changes only a set.
func secondary(z *node.Zone, gr string, s *node.Stack) {
	if len(s.Secondary) == 0 || !z.Mode.Uplink {
		return
	}
	set := z.AddressSet("secondary_", s.Family, s.Secondary)
	to := node.Vocab(s.Family).Match + ".dst == $" + set.Name
	z.Rows.Add(set)
	z.RouterToHost(gr, s, claims.PolicyNodeLocal, to, nil)
}

// snatPorts is the port range of OVN's SNAT for pods on the userspace datapath. There, OVN and the
// host do not share a conntrack zone, and a pod's connection could take the 5-tuple of a connection
// of the host. The range has no ephemeral ports of the host (net.ipv4.ip_local_port_range starts at
// 32768) and no NodePorts. It must be large: a used port is free again only after 10 s. The kernel
// datapath shares zone 0 with the host and needs no range.
const snatPorts = "1024-29999"

// nat SNATs this node's pods to the node's address, if they leave by the gateway router. Foreign
// pods have no row: without the SNAT of an egress IP, the bridge drops their packets, and they do
// not leak.
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

// policies routes pods' packets to all addresses of their own host through the management port: the
// gateway router has the primary address itself, and could not deliver them. Packets to Services
// that no load balancer has translated use the same path.
func policies(z *node.Zone) {
	for i := range z.Stacks {
		s := &z.Stacks[i]
		dropInternal(z, s)
		for _, c := range s.Services {
			z.PodsToHost(s, claims.PolicyServices, c.String(), "")
		}
		z.PodsToHost(s, claims.PolicyNodeLocal, s.Address.Addr().String(), "")
		// An address that is added or removed changes a member of a set: for a policy, northd would
		// recompute everything.
		if set := z.AddressSet("secondary_", s.Family, s.Secondary); len(set.Addresses) > 0 {
			z.Rows.Add(set)
			z.PodsToHost(s, claims.PolicyNodeLocal, "$"+set.Name, "")
		}
	}
}

// openVSwitch returns the settings of ovn-controller, and the host's port in the pod network.
func openVSwitch(e *node.Env) ovs.State {
	name, g := e.Node.Name, &e.Node.Gateway
	s := ovs.State{
		Bridge: g.Bridge,
		Named:  map[string]bool{"": true},
		Settings: map[string]string{
			"system-id":           name,
			"hostname":            name,
			"ovn-remote":          "unix:/run/ovn/ovnsb_db.sock",
			"ovn-encap-type":      "geneve",
			"ovn-encap-ip":        e.Node.Addresses[0].String(),
			"ovn-bridge-mappings": claims.PhysicalNet + ":" + g.Bridge,
			"ovn-monitor-all":     "true", // the zone is this node's alone
			// Without the cache: 209 instead of 349 MB at 10 000 load balancers, and not slower.
			"ovn-enable-lflow-cache": "false",
		},
		Ports: map[string]ovs.Port{
			claims.ManagementPort: {
				Name: claims.ManagementPort, Bridge: claims.IntegrationBridge, Type: "internal",
				MAC: cluster.MACFor(e.Stacks[0].Management.Addr()), MTU: e.Config.MTU,
				ExternalIDs: map[string]string{"iface-id": node.ManagementPort(name)}, Owner: cluster.NodeOwner(name),
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
