package plan

import (
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/cluster/annotation"
)

// podsOn returns the pods of a node. Of two pods with the same address, it keeps the first. Of a
// pod's extra addresses, it keeps those that are no pod's own address.
func podsOn(node string, all []*cluster.Pod) (list []*cluster.Pod, problems []cluster.Problem) {
	owners := map[netip.Addr]cluster.Owner{}
	for _, p := range all {
		if p.Node != node {
			continue
		}
		free := true
		for _, ip := range p.IPs {
			if other, ok := owners[ip]; ok {
				problems = append(problems,
					cluster.Problem{Owner: p.Owner, Field: "status.podIPs", Message: ip.String() +
						" is the address of " + other.String() + " already"})
				free = false
			}
		}
		if !free {
			continue
		}
		for _, ip := range p.IPs {
			owners[ip] = p.Owner
		}
		list = append(list, p)
	}
	return list, append(problems, removeTakenExtra(list, owners)...)
}

// removeTakenExtra replaces each pod in the list that has another pod's address as an extra one by
// a copy without it.
func removeTakenExtra(list []*cluster.Pod, owners map[netip.Addr]cluster.Owner) (problems []cluster.Problem) {
	for i, p := range list {
		taken := func(a netip.Addr) bool { o, ok := owners[a]; return ok && o != p.Owner }
		if !slices.ContainsFunc(p.Extra, taken) {
			continue
		}
		c := *p
		c.Extra = nil
		for _, a := range p.Extra {
			if taken(a) {
				problems = append(problems,
					cluster.Problem{Owner: p.Owner, Field: annotation.Field(annotation.ExtraAddresses),
						Message: a.String() + " is the address of " + owners[a].String()})
			} else {
				c.Extra = append(c.Extra, a)
			}
		}
		list[i] = &c
	}
	return problems
}
