package ovnlb

import (
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/conn"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/ovs"
	"hairpin/plan/node"
)

// The distributed gateway port (docs/design/origins.md#node-local-access). The host reaches
// Services by the management port and the load balancers of the node switch. Packets for the host
// itself return to it with another source, through a distributed gateway port and a network of its
// own. With the management port's address, the host would take them for packets from itself.
// Nothing of this crosses zones, so its addresses are the same on every node.

// Names of the distributed gateway port.
const (
	routerToLocal = "rtos-" + claims.LocalSwitch
	localToRouter = "stor-" + claims.LocalSwitch
	localnetPort  = "lnet-" + claims.LocalSwitch
)

// Distributed plans the port, its network, and the host's end of it.
func Distributed(e node.Env) (datapath.State, []cluster.Problem) {
	if !e.Node.Gateway.NodeLocal {
		return datapath.State{}, nil
	}
	z := node.NewZone(e)
	k := node.NewKernel(&e)
	k.State.Links[claims.LocalPort] = host.Link{Name: claims.LocalPort, MAC: localMAC(&e, localHost), MTU: e.Config.MTU,
		Checksums: e.Checksums(), Owner: z.Owner}
	z.Rows.Add(
		&nb.Switch{Name: claims.LocalSwitch, Owner: z.Owner},
		&nb.SwitchPort{
			Name: localnetPort, Switch: claims.LocalSwitch, Type: "localnet", Addresses: []string{"unknown"},
			Options: map[string]string{"network_name": claims.LocalNet}, Owner: z.Owner,
		},
	)
	z.Link(nb.RouterPort{
		Name: routerToLocal, Router: claims.ClusterRouter, Chassis: e.Node.Name, MAC: localMAC(&e, localRouter),
		Networks: z.Addresses(localRouter),
	}, claims.LocalSwitch, localToRouter, nil)
	ways := map[netip.Prefix]conn.Way{}
	for i := range e.Stacks {
		throughLocal(z, &e.Stacks[i])
		for _, c := range e.Stacks[i].Services {
			ways[c] = conn.Way{Source: e.Stacks[i].Management.Addr(), Owner: z.Owner}
		}
		k.Address(host.Address{AddressKey: host.AddressKey{Link: claims.LocalPort, Prefix: e.Stacks[i].Local.Host}})
		k.Neighbor(claims.LocalPort, e.Stacks[i].Local.Management.Addr(), localMAC(&e, localManagement))
	}
	k.Asymmetric(claims.LocalPort)
	k.Sysctl("net/ipv6/conf/"+claims.LocalPort+"/accept_ra", "0")
	port := ovs.Port{Name: claims.LocalPort, Bridge: claims.LocalBridge, Type: "internal",
		MAC: localMAC(&e, localHost), MTU: e.Config.MTU, Owner: z.Owner}
	return datapath.State{NB: z.Rows, Bridge: ovs.State{Ports: map[string]ovs.Port{port.Name: port}}, Host: k.State,
		Conn: conn.State{Ways: ways}}, nil
}

// Addresses of the node-local subnet.
func localHost(s *node.Stack) netip.Prefix { return s.Local.Host }

func localRouter(s *node.Stack) netip.Prefix { return s.Local.Router }

func localManagement(s *node.Stack) netip.Prefix { return s.Local.Management }

// localMAC returns the MAC of an address of the node-local subnet. It follows from that of the
// first family.
func localMAC(e *node.Env, of func(*node.Stack) netip.Prefix) cluster.MAC {
	return cluster.MACFor(of(&e.Stacks[0]).Addr())
}

// throughLocal routes packets that must reach the host through the port, and translates the
// management port's address there.
func throughLocal(z *node.Zone, s *node.Stack) {
	management, ip := s.Management.Addr(), node.Vocab(s.Family).Match
	from := ip + ".src == " + management.String() + " && " + ip + ".dst "
	policy := func(to string, action nb.Action, hops ...netip.Addr) {
		z.Rows.Add(&nb.Policy{Router: claims.ClusterRouter, Priority: claims.PolicyDistributed, Match: from + to,
			Action: action, NextHops: hops, Owner: z.Owner})
	}
	// Packets of the host to endpoints outside the pod network take the same path: the host would
	// take these for packets from itself, too.
	if z.Mode.ServicesByHost {
		policy("!= "+node.MatchSet(slices.Concat(s.Cluster, s.Services, s.InternalRanges())), nb.Reroute,
			s.Local.Host.Addr())
	} else {
		policy("== "+s.Address.Addr().String(), nb.Reroute, s.Local.Host.Addr())
		if set := z.AddressSet("secondary_", s.Family, s.Secondary); len(set.Addresses) > 0 {
			policy("== $"+set.Name, nb.Reroute, s.Local.Host.Addr())
		}
	}
	for _, c := range s.Services { // no load balancer translated it (yet): the host would send it again
		policy("== "+c.String(), nb.Drop)
	}
	z.Rows.Add(
		// Static neighbor entries: a first packet would wait for resolution.
		&nb.MACBinding{Port: routerToLocal, IP: s.Local.Host.Addr(), MAC: localMAC(&z.Env, localHost), Owner: z.Owner},
		&nb.NAT{
			Router: claims.ClusterRouter, Type: nb.DNATAndSNAT, External: s.Local.Management.Addr(),
			Logical:     node.HostPrefix(management),
			LogicalPort: node.ManagementPort(z.Node.Name), ExternalMAC: localMAC(&z.Env, localManagement),
			GatewayPort: routerToLocal, Owner: z.Owner,
		},
		// The port translates packets of the host only.
		&nb.Policy{
			Router: claims.ClusterRouter, Priority: claims.PolicyInternal, Match: ip + ".dst == " +
				s.Local.Host.Masked().String(), Action: nb.Drop, Owner: z.Owner,
		},
	)
}
