package gateway

import (
	"net/netip"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/plan/node"
)

// dropInternal drops pods' packets to masquerade, join and transit addresses: through these, pods
// would reach hosts with another source address. Of packets to join addresses it drops only pings,
// because replies to load-balanced clients have these destinations. The routers accept nothing else
// there.
func dropInternal(z *node.Zone, s *node.Stack) {
	ip := node.Vocab(s.Family).Match
	from := `inport == "` + node.RouterToSwitch(z.Node.Name) + `" && ` + ip + ".dst == "
	for _, match := range []string{
		from + s.Masquerade.String(), from + s.Transit.Masked().String(), from + s.Join.Masked().String() + " && " +
			node.Vocab(s.Family).Ping,
	} {
		z.Rows.Add(&nb.Policy{Router: claims.ClusterRouter, Priority: claims.PolicyInternal, Match: match,
			Action: nb.Drop, Owner: z.Owner})
	}
}

// podGuard checks packets from the pod network to the host. Only pods send there, and the routers
// between them, whose ICMP errors have transit addresses. Port security has already checked the
// packets of pods; podGuard checks all others.
func podGuard(c node.Chains) (rules []nft.Rule) {
	e, in := c.Env, nft.InInterface{Name: claims.ManagementPort}
	for i := range e.Stacks {
		s := &e.Stacks[i]
		if e.Node.Gateway.NodeLocal {
			for _, r := range s.Services {
				rules = append(rules, c.Rule(nft.Return{}, "Services' answers to the host", in, nft.AddrIn{Prefix: r},
					nft.AddrIn{Dst: true, Prefix: node.HostPrefix(s.Management.Addr())}))
			}
		}
		ranges := append([]netip.Prefix{s.Transit.Masked(), node.HostPrefix(s.MasqLocal)}, s.Cluster...)
		if s.Family == cluster.IPv6 { // neighbor discovery
			ranges = append(ranges, node.Vocab(s.Family).LinkLocal, node.HostPrefix(netip.IPv6Unspecified()))
		}
		foreign := []nft.Match{in}
		for _, r := range ranges {
			foreign = append(foreign, nft.AddrIn{Not: true, Prefix: r})
		}
		rules = append(rules, c.Rule(nft.Drop{}, "no address of the pod network", foreign...))
		to := s.InternalRanges()
		if x, ok := newEncap(e); ok && cluster.FamilyOf(x.end) == s.Family {
			to = append(to, x.host.Masked())
		}
		for _, r := range to {
			rules = append(rules, c.Rule(nft.Drop{}, "addresses of the datapath itself", in,
				nft.AddrIn{Dst: true, Prefix: r}))
		}
	}
	return rules
}

// foreignSources drops packets from outside whose source is an address of the pod network or of the
// host: the host forwards requests of external clients to Services, and NetworkPolicies decide by
// their source. Where claims.ServiceBridge gets them from the gateway bridge, its flows do the
// same. For IPv4, the kernel itself drops packets with the host's addresses. Packets to multicast
// groups pass: those that the host sends may return to it.
func foreignSources(c node.Chains) (rules []nft.Rule) {
	for i := range c.Env.Stacks {
		s := &c.Env.Stacks[i]
		drop := func(src netip.Prefix, comment string, further ...nft.Match) {
			rules = append(rules,
				c.Rule(nft.Drop{}, comment, append(append(fromOutside(), nft.AddrIn{Prefix: src}), further...)...))
		}
		for _, r := range s.Cluster {
			drop(r, "sources of the pod network")
		}
		if s.Family == cluster.IPv6 {
			for _, a := range hostAddresses(c.Env, s) {
				drop(a, "sources of the host",
					nft.AddrIn{Dst: true, Not: true, Prefix: node.Vocab(s.Family).Multicast})
			}
		}
	}
	return rules
}

// fromOutside matches packets that come neither from pods nor from the host itself.
func fromOutside() (list []nft.Match) {
	for _, link := range []string{claims.ManagementPort, claims.ServiceHost, "lo"} {
		list = append(list, nft.InInterface{Name: link, Not: true})
	}
	return list
}
