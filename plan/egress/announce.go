package egress

import (
	"net/netip"

	"hairpin/cluster"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/plan/node"
)

// announce lets the planned node answer ARP requests and neighbor solicitations for a load balancer
// address. What arrives for the address is served as on every other node. On the gateway bridge's
// network, the gateway router answers for the addresses of its SNAT rows; this row matches no
// packet. On another link, the host has the address, and accepts no packet to it that is not for a
// Service (addAnnounced).
func announce(e *node.Env, part *egressPart, s *node.Stack, x *cluster.EgressIP, own netip.Addr) {
	switch link, primary := egressLink(e, x, own); {
	case primary:
		ip := node.Vocab(s.Family).Match
		part.rows.Add(&nb.NAT{
			Router: node.GatewayRouter(e.Node.Name), Type: nb.SNAT, External: own, Logical: node.HostPrefix(own),
			Owner: x.Owner, Match: ip + ".src == " + own.String() + " && " + ip + ".dst == " + own.String(),
		})
	case link != nil:
		part.hostEgress = append(part.hostEgress, hostEgress{address: own, link: link})
	}
}

// addAnnounced drops packets to a load balancer address of the host at a port that no Service has:
// programs that listen on all addresses would answer. ICMP passes, for neighbor discovery and ping.
func addAnnounced(k *node.Kernel, t node.Elements, owner cluster.Owner, a netip.Addr) {
	set := egressOf[cluster.FamilyOf(a)].announced
	elements := t.Set(set)
	if elements.Len() == 0 {
		c := t.Chains[node.ChainAnnounced]
		if c == nil {
			c = &nft.Chain{Name: node.ChainAnnounced, Type: "filter", Hook: "input", Priority: node.HookFilter,
				Owner: k.Owner}
			t.Chains[node.ChainAnnounced] = c
		}
		for _, p := range []cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP} {
			c.Rules = append(c.Rules, nft.Rule{Do: nft.Drop{}, Comment: "no port of a Service", Owner: k.Owner,
				Matches: []nft.Match{nft.InInterface{Name: "lo", Not: true}, nft.L4Proto{Protocol: p},
					nft.InSet{Set: set.Name}}})
		}
	}
	elements.Put(nft.Element{Addr: a}, owner)
}
