package plan

import (
	"net/netip"
	"strconv"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/datapath/nb"
)

// geneve is the UDP port of the tunnels.
const geneve = 6081

// Names in the node's zone; they are those of OVN-Kubernetes.
func routerToSwitch(node string) string   { return "rtos-" + node }
func switchToRouter(node string) string   { return "stor-" + node }
func gatewayRouter(node string) string    { return "GR_" + node }
func externalSwitch(node string) string   { return "ext_" + node }
func managementPort(node string) string   { return "k8s-" + node }
func routerToJoin(router string) string   { return "rtoj-" + router }
func joinToRouter(router string) string   { return "jtor-" + router }
func routerToExternal(node string) string { return "rtoe-" + gatewayRouter(node) }
func externalToRouter(node string) string { return "etor-" + gatewayRouter(node) }
func routerToTransit(node string) string  { return "rtots-" + node }
func transitToRouter(node string) string  { return "tstor-" + node }
func localnet(bridge, node string) string { return bridge + "_" + node }

// patchPort is the bridge's end of the patch that ovn-controller makes for the localnet port.
func patchPort(bridge, node string) string { return "patch-" + localnet(bridge, node) + "-to-br-int" }

// topology is the node's OVN zone without Pods and Services: cluster router, node switch, join switch, gateway router,
// external switch, and the transit switch to the other nodes' zones.
func topology(e Env) (datapath.State, []cluster.Problem) {
	z := zone{Env: e, rows: nb.State{}, owner: nodeOwner(e.Node.Name)}
	z.clusterRouter()
	z.nodeSwitch()
	z.gatewayRouter()
	z.external()
	z.nat()
	z.policies()
	s := datapath.State{NB: z.rows, Bridge: openVSwitch(&e)}
	z.transit(&s)
	return s, nil
}

// zone writes the rows of one node's OVN zone.
type zone struct {
	Env
	rows  nb.State
	owner cluster.Owner
}

// addresses picks a prefix of each IP version.
func (e *Env) addresses(pick func(*Stack) netip.Prefix) []netip.Prefix {
	list := make([]netip.Prefix, 0, len(e.Stacks))
	for i := range e.Stacks {
		list = append(list, pick(&e.Stacks[i]))
	}
	return list
}

// link joins a router port and its switch port; the router port's MAC follows from its first address.
func (z *zone) link(p nb.RouterPort, sw, peer string, options map[string]string) {
	if p.MAC == (cluster.MAC{}) {
		p.MAC = cluster.MACFor(p.Networks[0].Addr())
	}
	p.Owner = z.owner
	o := map[string]string{"router-port": p.Name}
	addresses := "router" // OVN takes the router port's own
	for k, v := range options {
		o[k] = v
	}
	if o["nat-addresses"] != "" {
		addresses = p.MAC.String()
	}
	z.rows.Add(&p, &nb.SwitchPort{Name: peer, Switch: sw, Type: "router", Addresses: []string{addresses}, Options: o, Owner: z.owner})
}

func (z *zone) clusterRouter() {
	name := z.Node.Name
	z.rows.Add(
		// With an ACL, a switch would drop what conntrack calls invalid, which a late packet of a good connection may be.
		&nb.Global{Name: name, Options: map[string]string{"name": name, "use_ct_inv_match": "false"}, Owner: z.owner},
		&nb.Router{Name: claims.ClusterRouter, Owner: z.owner},
		&nb.Switch{Name: claims.JoinSwitch, Owner: z.owner},
	)
	z.link(nb.RouterPort{
		Name: routerToJoin(claims.ClusterRouter), Router: claims.ClusterRouter,
		Networks: z.addresses(func(s *Stack) netip.Prefix { return s.JoinRouter }),
	}, claims.JoinSwitch, joinToRouter(claims.ClusterRouter), nil)

	for i := range z.Stacks {
		s := &z.Stacks[i]
		// Whatever the pods (and foreign pods, on an egress node) send elsewhere leaves by the gateway router, or by the host.
		exit := s.Join.Addr()
		if z.Mode.PodsByHost {
			exit = s.Management.Addr()
		}
		for _, c := range s.bySource() {
			z.rows.Add(&nb.Route{Router: claims.ClusterRouter, Prefix: c, NextHop: exit, BySource: true, Owner: z.owner})
		}
		// More specific than any route by source, so that what goes to the gateway router itself is not turned away.
		// With flows of the switchboard it is the address of what that serves: behind the pods' port.
		toJoin := &nb.Route{Router: claims.ClusterRouter, Prefix: single(s.Join.Addr()), NextHop: s.Join.Addr(), Owner: z.owner}
		if z.Node.Gateway.OpenFlow {
			toJoin.NextHop, toJoin.OutPort = s.MasqNext, routerToSwitch(name)
			z.rows.Add(&nb.MACBinding{Port: routerToSwitch(name), IP: s.MasqNext, MAC: masqMAC(), Owner: z.owner})
		}
		z.rows.Add(toJoin)
	}
}

func (z *zone) nodeSwitch() {
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
	if n := z.podConnections(); n > 0 && !z.Node.Gateway.OpenFlow { // of the zone of each pod's port
		config["ct-zone-limit"] = strconv.Itoa(n)
	}
	z.rows.Add(
		&nb.Switch{Name: name, OtherConfig: config, Groups: z.groupsOf(groupBoth, groupSwitch), Owner: z.owner},
		&nb.SwitchPort{Name: managementPort(name), Switch: name, Addresses: []string{strings.Join(management, " ")}, Owner: z.owner},
	)
	z.link(nb.RouterPort{
		Name: routerToSwitch(name), Router: claims.ClusterRouter, Chassis: name,
		Networks: z.addresses(func(s *Stack) netip.Prefix { return s.Router }),
	}, name, switchToRouter(name), nil)
	z.noDHCP()
}

// noDHCP drops what pods send to the ports of DHCP clients, whose other fields a pod can choose. Not what routers and the host send (OVN
// has no "inport !=", hence a second row), nor replies: on a switch with load balancers, OVN passes those before its ACLs.
func (z *zone) noDHCP() {
	var ports []string
	for i := range z.Stacks {
		w := words(z.Stacks[i].Family)
		ports = append(ports, "("+w.match+" && udp.dst == "+strconv.Itoa(int(w.dhcp))+")")
	}
	match := strings.Join(ports, " || ")
	others := `inport == {"` + switchToRouter(z.Node.Name) + `", "` + managementPort(z.Node.Name) + `"}`
	z.rows.Add(
		&nb.ACL{Switch: z.Node.Name, Priority: claims.ACLExcept, Match: others + " && (" + match + ")", Action: nb.Allow, Owner: z.owner},
		&nb.ACL{Switch: z.Node.Name, Priority: claims.ACLDrop, Match: match, Action: nb.Drop, Owner: z.owner},
	)
}

func (z *zone) gatewayRouter() {
	name, gr := z.Node.Name, gatewayRouter(z.Node.Name)
	options := map[string]string{
		"chassis": name,
		// The host's own conntrack zone, so that (on the kernel datapath) SNAT takes no port that the host uses.
		"snat-ct-zone": "0",
		// Neighbours are written down, not learned: a first packet that waits for one would lose its SNAT (lab-notes.md).
		"dynamic_neigh_routers":         "false",
		"always_learn_from_arp_request": "false",
		"mac_binding_age_threshold":     "300", // seconds
	}
	if !z.Node.Gateway.OpenFlow { // replies of load-balanced connections come back here because the source is this router's
		options["lb_force_snat_ip"] = "router_ip"
	}
	z.rows.Add(&nb.Router{Name: gr, Groups: z.groupsOf(groupBoth, groupRouter), Owner: z.owner, Options: options})
	z.link(nb.RouterPort{
		Name: routerToJoin(gr), Router: gr, Options: z.podMTU(),
		Networks: z.addresses(func(s *Stack) netip.Prefix { return s.Join }),
	}, claims.JoinSwitch, joinToRouter(gr), nil)
}

// podMTU makes the gateway router report to senders that pods have a smaller MTU. TCP knows that from the pod. Nodes get no
// report (bridge.noMTU), by a flow for each where OVN has no load balancers. Where the host forwards, its routes have the
// MTU; in mode local it does not forward what answers egress addresses.
func (z *zone) podMTU() map[string]string {
	if !z.Mode.Uplink {
		return nil
	}
	bypass := "tcp"
	if s := z.stack(z.tunnelFamily()); s != nil && !z.Node.Gateway.OpenFlow {
		bypass += " || " + words(s.Family).match + ".src == $" + hostsSet(s.Family)
	}
	return map[string]string{"gateway_mtu": strconv.Itoa(z.Config.MTU), "gateway_mtu_bypass": bypass}
}

// hostsSet is the address set of all nodes' addresses.
func hostsSet(f cluster.Family) string { return "hosts_" + words(f).match }

// external is the gateway router's port to the external network: it has the node's own address and MAC.
func (z *zone) external() {
	name, gr, sw := z.Node.Name, gatewayRouter(z.Node.Name), externalSwitch(z.Node.Name)
	z.rows.Add(
		&nb.Switch{Name: sw, Owner: z.owner},
		&nb.SwitchPort{
			Name: localnet(z.Node.Gateway.Bridge, name), Switch: sw, Type: "localnet", Addresses: []string{"unknown"},
			Options: map[string]string{"network_name": claims.PhysicalNet}, Owner: z.owner,
		},
	)
	rtoe := routerToExternal(name)
	var options map[string]string
	if z.Mode.Uplink { // otherwise there is no neighbour to announce addresses to
		options = map[string]string{"nat-addresses": "router", "exclude-lb-vips-from-garp": "true"}
	}
	z.link(nb.RouterPort{
		Name: rtoe, Router: gr, MAC: z.Node.Gateway.MAC,
		Networks: z.addresses(func(s *Stack) netip.Prefix { return s.Address }),
	}, sw, externalToRouter(name), options)

	for i := range z.Stacks {
		s := &z.Stacks[i]
		for _, c := range s.Cluster {
			z.rows.Add(&nb.Route{Router: gr, Prefix: c, NextHop: s.JoinRouter.Addr(), Owner: z.owner})
		}
		// The path to the host: an unused next hop, with a MAC that the bridge's flows know.
		z.rows.Add(
			&nb.Route{Router: gr, Prefix: s.Masquerade, NextHop: s.MasqNext, OutPort: rtoe, Owner: z.owner},
			&nb.MACBinding{Port: rtoe, IP: s.MasqNext, MAC: masqMAC(), Owner: z.owner},
		)
		next := s.NextHops
		if len(next) == 0 { // by the host (detached-gateway.md)
			next = []netip.Addr{s.MasqNext}
		}
		for _, hop := range next {
			z.rows.Add(&nb.Route{Router: gr, Prefix: everything(s.Family), NextHop: hop, OutPort: rtoe, Owner: z.owner})
		}
		z.secondary(gr, s)
	}
}

// secondary leads what the gateway router has for the host's further addresses to the host, whether a default gateway answers or
// not, and although the host would answer for them with the router's own MAC. An address that comes or goes changes a set only.
func (z *zone) secondary(gr string, s *Stack) {
	if len(s.Others) == 0 || !z.Mode.Uplink {
		return
	}
	set := z.set("secondary_", s.Family, s.Others)
	to := words(s.Family).match + ".dst == $" + set.Name
	z.rows.Add(set)
	z.handOver(gr, s, claims.PolicyNodeLocal, to, nil)
}

// handOver is a policy of the gateway router's, by which a packet goes to the host. A policy's next hop must be in a network of the
// router's: the router's own address stands for the dummy next hop.
func (z *zone) handOver(gr string, s *Stack, priority int, match string, options map[string]string) {
	own := s.Address.Addr()
	z.rows.Add(
		&nb.MACBinding{Port: routerToExternal(z.Node.Name), IP: own, MAC: masqMAC(), Owner: z.owner},
		&nb.Policy{Router: gr, Priority: priority, Match: match, Action: nb.Reroute, NextHops: []netip.Addr{own}, Options: options, Owner: z.owner},
	)
}

// snatPorts are the ports that OVN gives to pods' connections on the userspace datapath. There, OVN and the host do not
// share a conntrack zone, and a pod's connection could take the 5-tuple of one of the host's. These ports are neither the
// host's ephemeral ones (net.ipv4.ip_local_port_range starts at 32768) nor NodePorts. There must be many of them: one
// that was used is not free again for 10 s. The kernel datapath shares zone 0 with the host and needs no range.
const snatPorts = "1024-29999"

// nat hides this node's pods behind the node's address, where they leave by the gateway router. Foreign pods have no row:
// without the SNAT of an egress IP they meet the bridge's drop flow and do not leak.
func (z *zone) nat() {
	gr := gatewayRouter(z.Node.Name)
	ports := ""
	if z.Node.Gateway.Userspace {
		ports = snatPorts
	}
	for i := range z.Stacks {
		s := &z.Stacks[i]
		if !z.Mode.PodsByHost {
			z.rows.Add(&nb.NAT{Router: gr, Type: nb.SNAT, External: s.Address.Addr(), Logical: s.Subnet, PortRange: ports, Owner: z.owner})
		}
	}
}

// toHost routes pods to the node's host through the management port, for destinations that match.
func (z *zone) toHost(s *Stack, priority int, to, and string) {
	name := z.Node.Name
	z.rows.Add(&nb.Policy{
		Router: claims.ClusterRouter, Priority: priority,
		Match:  `inport == "` + routerToSwitch(name) + `" && ` + words(s.Family).match + `.dst == ` + to + and + ` /* ` + name + ` */`,
		Action: nb.Reroute, NextHops: []netip.Addr{s.Management.Addr()}, Owner: z.owner,
	})
}

// policies lead pods to all addresses of their own host through the management port: the gateway router shares the
// primary one, and could not deliver it. The same with what no load balancer took.
func (z *zone) policies() {
	for i := range z.Stacks {
		s := &z.Stacks[i]
		z.noInside(s)
		for _, c := range s.Services {
			z.toHost(s, claims.PolicyServices, c.String(), "")
		}
		z.toHost(s, claims.PolicyNodeLocal, s.Address.Addr().String(), "")
		// A further address that comes or goes changes a member of a set: northd would compute all again for a policy.
		if set := z.set("secondary_", s.Family, s.Others); len(set.Addresses) > 0 {
			z.rows.Add(set)
			z.toHost(s, claims.PolicyNodeLocal, "$"+set.Name, "")
		}
	}
}

// set returns the addresses of one family as an address set.
func (z *zone) set(prefix string, f cluster.Family, list []netip.Addr) *nb.AddressSet {
	set := &nb.AddressSet{Name: prefix + words(f).match, Owner: z.owner}
	for _, a := range list {
		if cluster.FamilyOf(a) == f {
			set.Addresses = append(set.Addresses, single(a))
		}
	}
	return set
}

// openVSwitch is what ovn-controller reads, and the host's port into the pod network.
func openVSwitch(e *Env) flow.State {
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
			// 209 instead of 349 MB at 10 000 load balancers, no slower (lab-notes.md).
			"ovn-enable-lflow-cache": "false",
		},
		Ports: map[string]flow.Port{
			claims.ManagementPort: {
				Name: claims.ManagementPort, Bridge: claims.IntegrationBridge, Type: "internal",
				MAC: cluster.MACFor(e.Stacks[0].Management.Addr()), MTU: e.Config.MTU,
				ExternalIDs: map[string]string{"iface-id": managementPort(name)}, Owner: nodeOwner(name),
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
