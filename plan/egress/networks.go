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

// networkChoice holds the destinations to which pods leave with some of the addresses of an
// EgressIP.
type networkChoice struct {
	to       []netip.Prefix // sorted
	assigned []cluster.Assignment
}

// networkChoices groups the assigned addresses of an EgressIP by networks. A destination in a
// network of the host that has the address, or with a route by the link of that network, uses
// addresses of that network (choices): with another one the packet would leave by another link.
// Other destinations use the usual addresses: those of the gateway bridge's network, or else of
// links with a default route, or else all. If all addresses are of one network, choices is empty.
func networkChoices(e *node.Env, x *cluster.EgressIP,
	assigned []cluster.Assignment) (usual []cluster.Assignment, choices []networkChoice) {
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
	usual = assigned
	if len(primary) > 0 {
		usual = primary
	} else if len(defaults) > 0 {
		usual = defaults
	}
	shared := map[string]int{}
	for p, list := range by {
		slices.SortFunc(list, cluster.Assignment.Compare)
		key := fmt.Sprint(list)
		i, known := shared[key]
		if !known {
			i = len(choices)
			shared[key] = i
			choices = append(choices, networkChoice{assigned: list})
		}
		choices[i].to = append(choices[i].to, p)
	}
	for i := range choices {
		slices.SortFunc(choices[i].to, netip.Prefix.Compare)
	}
	slices.SortFunc(choices,
		func(a, b networkChoice) int { return slices.CompareFunc(a.to, b.to, netip.Prefix.Compare) })
	if len(choices) < 2 && len(usual) == len(assigned) {
		return usual, nil
	}
	return usual, choices
}

// chooseNetwork sends packets of the node's own pods to a network of some of the addresses to the
// nodes that carry these.
func chooseNetwork(e *node.Env, rows nb.State, s *node.Stack, x *cluster.EgressIP, choices []networkChoice) {
	m := node.Vocab(s.Family).Match
	for i, choice := range choices {
		hops, _ := carriers(e, s, x, choice.assigned)
		if len(hops) == 0 {
			continue // as to any destination
		}
		match := fromPods(s, x) + " && " + m + ".dst == " + node.MatchSet(choice.to)
		var except []netip.Prefix // longer prefixes of other choices
		for j, other := range choices {
			if i == j {
				continue
			}
			for _, p := range other.to {
				if slices.ContainsFunc(choice.to,
					func(q netip.Prefix) bool { return q.Bits() < p.Bits() && q.Contains(p.Addr()) }) {
					except = append(except, p)
				}
			}
		}
		if len(except) > 0 {
			slices.SortFunc(except, netip.Prefix.Compare)
			match += " && " + m + ".dst != " + node.MatchSet(except)
		}
		rows.Add(rerouteTo(e, s, x, claims.PolicyEgressNetwork, match, hops))
	}
}
