package egress

import (
	"fmt"
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/nb"
	"hairpin/plan/node"
)

// egressWay holds the destinations to which pods leave with some of the addresses of an EgressIP.
type egressWay struct {
	to       []netip.Prefix // sorted
	assigned []cluster.Assignment
}

// egressWays groups the assigned addresses of an EgressIP by networks. A destination in a network
// of the host that has the address, or with a route by the link of that network, uses addresses of
// that network: with another one the packet would leave by another link. Other destinations use
// addresses of the gateway bridge's network, or else of links with a default route, or else all. If
// all addresses are of one network, there is no choice: ways is empty.
func egressWays(e *node.Env, x *cluster.EgressIP,
	assigned []cluster.Assignment) (others []cluster.Assignment, ways []egressWay) {
	if x.ByTable() {
		return assigned, nil
	}
	by := map[netip.Prefix][]cluster.Assignment{}
	var primary, defaults []cluster.Assignment
	for _, a := range assigned {
		n := cluster.NodeNamed(e.Nodes, a.Node)
		if n == nil {
			continue
		}
		network, ok := x.NetworkFor(n, n.Networks(e.Config), a.Address)
		if !ok {
			continue
		}
		by[network.Prefix] = append(by[network.Prefix], a)
		if network.Primary {
			primary = append(primary, a)
		}
		if network.Link == nil {
			continue
		}
		for _, r := range network.Link.Routes {
			switch {
			case cluster.FamilyOf(r.Prefix.Addr()) != cluster.FamilyOf(a.Address) || r.Prefix == network.Prefix:
			case r.Prefix.Bits() == 0:
				defaults = append(defaults, a)
			default:
				by[r.Prefix.Masked()] = append(by[r.Prefix.Masked()], a)
			}
		}
	}
	others = assigned
	if len(primary) > 0 {
		others = primary
	} else if len(defaults) > 0 {
		others = defaults
	}
	shared := map[string]int{}
	for p, list := range by {
		slices.SortFunc(list, cluster.Assignment.Compare)
		key := fmt.Sprint(list)
		i, there := shared[key]
		if !there {
			i = len(ways)
			shared[key] = i
			ways = append(ways, egressWay{assigned: list})
		}
		ways[i].to = append(ways[i].to, p)
	}
	for i := range ways {
		slices.SortFunc(ways[i].to, netip.Prefix.Compare)
	}
	slices.SortFunc(ways, func(a, b egressWay) int { return slices.CompareFunc(a.to, b.to, netip.Prefix.Compare) })
	if len(ways) < 2 && len(others) == len(assigned) {
		return others, nil
	}
	return others, ways
}

// chooseNetwork sends packets of the node's own pods to a network of some of the addresses to the
// nodes that carry these.
func chooseNetwork(e *node.Env, rows nb.State, s *node.Stack, x *cluster.EgressIP, ways []egressWay) {
	m := node.Vocab(s.Family).Match
	for i, w := range ways {
		hops, _ := carriers(e, s, x, w.assigned)
		if len(hops) == 0 {
			continue // as others
		}
		match := fromPods(s, x) + " && " + m + ".dst == " + node.MatchSet(w.to)
		var except []netip.Prefix // longer prefixes of other ways
		for j, v := range ways {
			if i == j {
				continue
			}
			for _, p := range v.to {
				if slices.ContainsFunc(w.to,
					func(q netip.Prefix) bool { return q.Bits() < p.Bits() && q.Contains(p.Addr()) }) {
					except = append(except, p)
				}
			}
		}
		if len(except) > 0 {
			slices.SortFunc(except, netip.Prefix.Compare)
			match += " && " + m + ".dst != " + node.MatchSet(except)
		}
		rows.Add(&nb.Policy{
			Router: claims.ClusterRouter, Priority: claims.PolicyEgressNetwork, Match: match, Action: nb.Reroute,
			NextHops: hops, Owner: x.Owner,
		})
	}
}
