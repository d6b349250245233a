package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"hairpin/claims"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
)

// refused routes pods to their host for what no endpoint has: it rejects the connection.
func (z *zone) refused(s *Stack) {
	z.rows.Add(&nb.Policy{
		Router: claims.ClusterRouter, Priority: claims.PolicyServices, Action: nb.Reroute, NextHops: []netip.Addr{s.Management.Addr()}, Owner: z.owner,
		Match: `inport == "` + routerToSwitch(z.Node.Name) + `" && ` + words(s.Family).match + " && pkt.mark == " + strconv.Itoa(claims.MarkRefused),
	})
}

// toSwitchboard is the way to Services by claims.ServiceHost. The next hop is what the host sees clients of its own endpoints as; there is no address on
// that link. (The other engine's next hop is another one: IPv6 refuses a route by a next hop that has a route by another link.)
func (k *kernel) toSwitchboard(s *Stack) {
	mtu := k.env.Config.MTU
	k.toClients(s, claims.ServiceHost, k.env.clientMTU())
	k.route(host.Route{
		RouteKey: host.RouteKey{Table: mainTable, Prefix: single(s.MasqRouter)}, Link: k.env.Node.Gateway.Bridge, Src: s.Node, MTU: mtu,
	})
	for _, c := range append(slices.Clone(s.Services), single(s.MasqAll), single(s.MasqLocal)) {
		k.route(host.Route{RouteKey: host.RouteKey{Table: mainTable, Prefix: c}, Link: claims.ServiceHost, Via: s.MasqOVN, Src: s.Address.Addr(), MTU: mtu})
	}
	k.neighbor(claims.ServiceHost, s.MasqOVN, masqMAC())
	k.neighbor(k.env.Node.Gateway.Bridge, s.MasqRouter, k.env.Node.Gateway.MAC)
}

// serviceHost is the host's link to claims.ServiceBridge.
func (k *kernel) serviceHost() {
	link := claims.ServiceHost
	k.state.Links[link] = host.Link{Name: link, Checksums: k.env.Node.Gateway.Userspace, Owner: k.owner}
	k.asymmetric(link)
	k.sysctl(fmt.Sprintf("net/ipv6/conf/%s/accept_ra", link), "0")
	k.sysctl(fmt.Sprintf("net/ipv6/conf/%s/mtu", link), strconv.Itoa(k.env.Config.MTU))
}
