package bgp

import (
	"net/netip"
	"slices"

	"hairpin/cluster"
)

// prefixes returns the prefixes that each node should announce, by its name:
//   - a load balancer address: each node that may announce it. With externalTrafficPolicy Local,
//     that is each with a ready endpoint. With an EgressService, it is its host only.
//   - an address of an EgressIP: the node that has it.
//   - pod ranges: each node its own.
func (p *planner) prefixes(a *cluster.Advertisement) map[string][]netip.Prefix {
	out := map[string][]netip.Prefix{}
	add := func(n *cluster.Node, x netip.Prefix) {
		if n != nil && a.Nodes.Matches(n.Egress.Labels) {
			out[n.Name] = append(out[n.Name], x)
		}
	}
	for _, e := range p.EgressIPs {
		for _, x := range e.Addresses {
			host := netip.PrefixFrom(x, x.BitLen())
			switch {
			case e.Service == nil && !a.EgressIP, e.Service != nil && !(a.LoadBalancer && p.pooled(a, x)):
			case e.OnlyAnnounced():
				for _, n := range p.announcers(a, e) {
					add(n, host)
				}
			default:
				add(p.Node(e.NodeOf(x)), host)
			}
		}
	}
	if a.PodNetwork {
		if p.vetted == nil {
			p.vetted = cluster.Vet(p.Nodes, "", &p.Config)
		}
		for _, n := range p.Nodes {
			for _, x := range n.PodCIDRs {
				if len(p.vetted.Rejected[n.Name]) == 0 {
					add(n, x)
				}
			}
		}
	}
	return out
}

// pooled reports whether an address is of a pool that an Advertisement selects.
func (p *planner) pooled(a *cluster.Advertisement, x netip.Addr) bool {
	return slices.ContainsFunc(p.Pools, func(q *cluster.Pool) bool { return a.Pools.Matches(q.Labels) && q.Has(x) })
}

// announcers returns the nodes that announce a Service's load balancer addresses: those that are
// ready, and leaving ones only if there is no other.
func (p *planner) announcers(a *cluster.Advertisement, e *cluster.EgressIP) (list []*cluster.Node) {
	for _, n := range p.Nodes {
		if n.ID != 0 && n.Egress.Ready && e.MayBeOn(n) && a.Nodes.Matches(n.Egress.Labels) {
			list = append(list, n)
		}
	}
	leaves := func(n *cluster.Node) bool { return n.Egress.Leaving }
	if all := slices.ContainsFunc(list, func(n *cluster.Node) bool { return !leaves(n) }); all {
		list = slices.DeleteFunc(list, leaves)
	}
	return list
}
