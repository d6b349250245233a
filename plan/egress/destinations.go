package egress

import (
	"net/netip"
	"strconv"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/plan/node"
)

// destinationLimit is an EgressIP with destinations, in one family. Its pods' packets to other
// destinations are like those to nodes: a mark keeps them from the egress address, on the gateway
// bridge and in the host.
type destinationLimit struct {
	family       cluster.Family
	pods         []netip.Prefix // of this node
	to, excluded []netip.Prefix // to is nil: all
}

// limitDestinations lets packets of the node's own pods to destinations that an EgressIP does not
// serve continue as routed.
func (p *egressPart) limitDestinations(e *node.Env, s *node.Stack, x *cluster.EgressIP, local []netip.Prefix) {
	l := destinationLimit{s.Family, local, ofFamily(x.Destinations, s.Family), ofFamily(x.Excluded, s.Family)}
	m := node.Vocab(s.Family).Match
	match := m + ".src == $" + localPodsSet(x.Owner, s.Family)
	pass := func(priority int, match string) {
		p.rows.Add(&nb.Policy{
			Router: claims.ClusterRouter, Priority: priority, Action: nb.Allow, Match: match, Owner: x.Owner,
			Options: map[string]string{"pkt_mark": strconv.Itoa(claims.MarkNodeIP)},
		})
	}
	if len(l.excluded) > 0 {
		pass(claims.PolicyEastWest, match+" && "+m+".dst == "+node.MatchSet(l.excluded))
	}
	if len(l.to) > 0 {
		pass(claims.PolicyEgressOthers, match)
	}
	if len(l.to)+len(l.excluded) > 0 && e.Mode.PodsByHost && e.Node.Gateway.Userspace {
		p.limits = append(p.limits, l)
	}
}

// mark marks these packets in the host, where the mark that OVN sets does not arrive from the
// userspace datapath.
func (l *destinationLimit) mark(k *node.Kernel, t node.Elements, owner cluster.Owner) {
	c := t.Chains[node.ChainDestinations]
	if c == nil {
		c = &nft.Chain{Name: node.ChainDestinations, Type: "filter", Hook: "prerouting",
			Priority: node.HookDestinations, Owner: k.Owner}
		t.Chains[node.ChainDestinations] = c
	}
	for _, pod := range l.pods {
		rule := func(do nft.Statement, why string, more ...nft.Match) {
			c.Rules = append(c.Rules, nft.Rule{Do: do, Comment: why, Owner: owner,
				Matches: append([]nft.Match{nft.InInterface{Name: claims.ManagementPort}, nft.AddrIn{Prefix: pod}},
					more...)})
		}
		mark := nft.SetMark{Value: claims.MarkNodeIP}
		for _, p := range l.excluded {
			rule(mark, "excluded destinations", nft.AddrIn{Dst: true, Prefix: p})
		}
		for _, p := range l.to {
			rule(nft.Return{}, "destinations", nft.AddrIn{Dst: true, Prefix: p})
		}
		if len(l.to) > 0 {
			rule(mark, "other destinations")
		}
	}
}

// ofFamily returns the prefixes of a family.
func ofFamily(list []netip.Prefix, f cluster.Family) (out []netip.Prefix) {
	for _, p := range list {
		if cluster.FamilyOf(p.Addr()) == f {
			out = append(out, p)
		}
	}
	return out
}
