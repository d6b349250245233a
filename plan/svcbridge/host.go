package svcbridge

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/plan/node"
)

// routeRejected routes pods' packets to addresses without endpoints to the host, which rejects
// them.
func routeRejected(z *node.Zone, s *node.Stack) {
	z.Rows.Add(&nb.Policy{
		Router: claims.ClusterRouter, Priority: claims.PolicyServices, Action: nb.Reroute,
		NextHops: []netip.Addr{s.Management.Addr()}, Owner: z.Owner,
		Match: `inport == "` + node.RouterToSwitch(z.Node.Name) + `" && ` + node.Vocab(s.Family).Match +
			" && pkt.mark == " + strconv.Itoa(claims.MarkRejected),
	})
}

// hostRoutes routes the host's packets to Services through claims.ServiceHost, and packets to pods
// that the host forwards (claims.ForwardTable). The next hop is the address that clients of the
// host's own endpoints have for the host; the link has no subnet. (The other engine's next hop is
// different: IPv6 rejects a route if its next hop has a route on another link.)
func hostRoutes(k *node.Kernel, s *node.Stack) {
	mtu := k.Env.Config.MTU
	k.RouteToClients(s, claims.ServiceHost, k.Env.ClientMTU())
	k.Route(host.Route{
		RouteKey: host.RouteKey{Table: node.MainTable, Prefix: node.HostPrefix(s.MasqRouter)},
		Link:     k.Env.Node.Gateway.Bridge, Src: s.Node, MTU: mtu,
	})
	for _, c := range append(slices.Clone(s.Services), node.HostPrefix(s.MasqAll), node.HostPrefix(s.MasqLocal)) {
		k.Route(host.Route{RouteKey: host.RouteKey{Table: node.MainTable, Prefix: c}, Link: claims.ServiceHost,
			Via: s.MasqOVN, Src: s.Address.Addr(), MTU: mtu})
	}
	if s.Family == cluster.IPv4 {
		// Without an address, a reverse-path check of the link drops replies of pods, loose or not.
		// The node's own would be there twice: programs that bind to each address would fail.
		k.Address(host.Address{AddressKey: host.AddressKey{Link: claims.ServiceHost,
			Prefix: node.HostPrefix(s.MasqServiceHost)}})
	}
	k.State.Rules[host.Rule{Family: s.Family, Priority: claims.RuleForwarded, Mark: claims.MarkForwarded,
		Mask: claims.MarkForwarded, Table: claims.ForwardTable}] = k.Owner
	for _, c := range s.Cluster {
		k.Route(host.Route{RouteKey: host.RouteKey{Table: claims.ForwardTable, Prefix: c}, Link: claims.ServiceHost,
			Via: s.MasqOVN, MTU: mtu})
	}
	k.Neighbor(claims.ServiceHost, s.MasqOVN, node.MasqMAC())
	k.Neighbor(k.Env.Node.Gateway.Bridge, s.MasqRouter, k.Env.Node.Gateway.MAC)
}

// hostLink plans the host's link to claims.ServiceBridge.
func hostLink(k *node.Kernel) {
	link := claims.ServiceHost
	k.State.Links[link] = host.Link{Name: link, Checksums: k.Env.Node.Gateway.Userspace, Owner: k.Owner}
	k.Asymmetric(link)
	k.Sysctl(fmt.Sprintf("net/ipv6/conf/%s/accept_ra", link), "0")
	k.Sysctl(fmt.Sprintf("net/ipv6/conf/%s/mtu", link), strconv.Itoa(k.Env.Config.MTU))
}
