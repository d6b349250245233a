package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/conn"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
)

// The distributed gateway port of node-local-access-dgp.md. The host gets to Services by the management port and the load balancers of the
// node switch. What is for the host itself then comes back to it from another address, by a distributed gateway port and a network of
// its own: from the management port's address, the host would take it for a packet from itself. Nothing of it crosses
// zones, so its addresses are the same on every node.

// Names of the distributed gateway port.
const (
	routerToLocal = "rtos-" + claims.LocalSwitch
	localToRouter = "stor-" + claims.LocalSwitch
	localToHost   = "lnet-" + claims.LocalSwitch
)

// local is the node-local subnet of a family; its places have the subnet's mask. It is zero where the host gets to Services by the gateway bridge.
type local struct {
	host, router, management netip.Prefix
}

// localSubnets checks the subnets of the node's families. With a wrong one the node stays as it is.
func (c *checker) localSubnets(e *Env) {
	for _, p := range e.Node.PodCIDRs {
		f := cluster.FamilyOf(p.Addr())
		subnet, masquerade := cluster.PrefixOf(e.Config.Gateway.NodeLocalSubnets, f), cluster.PrefixOf(e.Config.Gateway.MasqueradeSubnets, f)
		if subnet.Overlaps(masquerade) {
			c.problem(localField(f), "%s overlaps the masquerade subnet %s", subnet, masquerade)
		} else {
			c.local(subnet, f)
		}
	}
}

func localField(f cluster.Family) string {
	return fmt.Sprintf("[gateway] v%s-node-local-subnet", words(f).digit)
}

func (c *checker) local(subnet netip.Prefix, f cluster.Family) local {
	return local{
		host: c.nth(subnet, claims.NodeLocalHost, localField(f)), router: c.nth(subnet, claims.NodeLocalRouter, localField(f)),
		management: c.nth(subnet, claims.NodeLocalManagement, localField(f)),
	}
}

// distributed makes port and network, and the host's end of that.
func distributed(e Env) (datapath.State, []cluster.Problem) {
	if !e.Node.Gateway.NodeLocal {
		return datapath.State{}, nil
	}
	z := zone{Env: e, rows: nb.State{}, owner: nodeOwner(e.Node.Name)}
	k := newKernel(&e)
	k.state.Links[claims.LocalPort] = host.Link{Name: claims.LocalPort, MAC: e.localMAC(placeHost), MTU: e.Config.MTU, Checksums: e.checksums(), Owner: z.owner}
	z.rows.Add(
		&nb.Switch{Name: claims.LocalSwitch, Owner: z.owner},
		&nb.SwitchPort{
			Name: localToHost, Switch: claims.LocalSwitch, Type: "localnet", Addresses: []string{"unknown"},
			Options: map[string]string{"network_name": claims.LocalNet}, Owner: z.owner,
		},
	)
	z.link(nb.RouterPort{
		Name: routerToLocal, Router: claims.ClusterRouter, Chassis: e.Node.Name, MAC: e.localMAC(placeRouter),
		Networks: z.addresses(placeRouter),
	}, claims.LocalSwitch, localToRouter, nil)
	ways := map[netip.Prefix]conn.Way{}
	for i := range e.Stacks {
		z.throughLocal(&e.Stacks[i])
		for _, c := range e.Stacks[i].Services {
			ways[c] = conn.Way{Source: e.Stacks[i].Management.Addr(), Owner: z.owner}
		}
		k.address(host.Address{AddressKey: host.AddressKey{Link: claims.LocalPort, Prefix: e.Stacks[i].Local.host}})
		k.neighbor(claims.LocalPort, e.Stacks[i].Local.management.Addr(), e.localMAC(placeManagement))
	}
	k.asymmetric(claims.LocalPort)
	k.sysctl("net/ipv6/conf/"+claims.LocalPort+"/accept_ra", "0")
	port := flow.Port{Name: claims.LocalPort, Bridge: claims.LocalBridge, Type: "internal", MAC: e.localMAC(placeHost), MTU: e.Config.MTU, Owner: z.owner}
	return datapath.State{NB: z.rows, Bridge: flow.State{Ports: map[string]flow.Port{port.Name: port}}, Host: k.state, Conn: conn.State{Ways: ways}}, nil
}

// The places of the node-local subnet.
func placeHost(s *Stack) netip.Prefix       { return s.Local.host }
func placeRouter(s *Stack) netip.Prefix     { return s.Local.router }
func placeManagement(s *Stack) netip.Prefix { return s.Local.management }

func (e *Env) localMAC(place func(*Stack) netip.Prefix) cluster.MAC {
	return cluster.MACFor(place(&e.Stacks[0]).Addr())
}

// throughLocal leads what the host must get by the port, and translates the management port's address there.
func (z *zone) throughLocal(s *Stack) {
	management, ip := s.Management.Addr(), words(s.Family).match
	from := ip + ".src == " + management.String() + " && " + ip + ".dst "
	policy := func(to string, action nb.Action, hops ...netip.Addr) {
		z.rows.Add(&nb.Policy{Router: claims.ClusterRouter, Priority: claims.PolicyDistributed, Match: from + to, Action: action, NextHops: hops, Owner: z.owner})
	}
	if z.Mode.ServicesByHost { // and so does the host's own, to endpoints elsewhere: it would be a packet from itself, too
		policy("!= {"+joined(slices.Concat(s.Cluster, s.Services, s.inside()))+"}", nb.Reroute, s.Local.host.Addr())
	} else {
		policy("== "+s.Address.Addr().String(), nb.Reroute, s.Local.host.Addr())
		if set := z.set("secondary_", s.Family, s.Others); len(set.Addresses) > 0 {
			policy("== $"+set.Name, nb.Reroute, s.Local.host.Addr())
		}
	}
	for _, c := range s.Services { // no load balancer took it, or not yet: the host would send it again
		policy("== "+c.String(), nb.Drop)
	}
	z.rows.Add(
		// Neighbours are written down: a first packet would wait for one.
		&nb.MACBinding{Port: routerToLocal, IP: s.Local.host.Addr(), MAC: z.localMAC(placeHost), Owner: z.owner},
		&nb.NAT{
			Router: claims.ClusterRouter, Type: nb.DNATAndSNAT, External: s.Local.management.Addr(), Logical: single(management),
			LogicalPort: managementPort(z.Node.Name), ExternalMAC: z.localMAC(placeManagement), GatewayPort: routerToLocal, Owner: z.owner,
		},
		// The port translates the host alone.
		&nb.Policy{
			Router: claims.ClusterRouter, Priority: claims.PolicyInternal, Match: ip + ".dst == " + s.Local.host.Masked().String(), Action: nb.Drop, Owner: z.owner,
		},
	)
}

func joined(list []netip.Prefix) string {
	texts := make([]string, 0, len(list))
	for _, p := range list {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ", ")
}
