package view

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "hairpin/api/v1"
	"hairpin/cluster"
	"hairpin/plan/assign"
	"hairpin/plan/bgp"
	"hairpin/report"
)

// Report returns the node of each egress address, and the one that would take over: seen has the
// actual one, base the API's.
func Report(seen, base *cluster.Snapshot) []report.Egress {
	var list []report.Egress
	after := successors(seen)
	for _, e := range seen.EgressIPs {
		published := e
		if base != nil {
			published = cmp.Or(find(base.EgressIPs, e.Owner), e)
		}
		if e.Service != nil && e.Service.Network {
			list = append(list, report.Egress{EgressIP: e.DisplayName(), Address: "-", Node: e.Service.Host,
				Why: "each pod with its node's address"})
		}
		for _, x := range e.Addresses {
			r := report.Egress{EgressIP: e.DisplayName(), Address: x.String(), Node: e.NodeOf(x)}
			m := slices.IndexFunc(e.Moving, func(m cluster.Move) bool { return m.Address == x })
			switch status := published.NodeOf(x); {
			case r.Node == "":
				r.Why = whyUnassigned(e, x)
			case r.Node != status:
				r.Why = "the status still says " + cmp.Or(status, noNode)
			case m >= 0 && e.OnlyAnnounced():
				r.Why = continuing(e, x)
			case m >= 0:
				r.Why = fmt.Sprintf("moves from %s to %s", e.Moving[m].From, e.Moving[m].To)
			default: // may have no endpoint
				r.Why = conditionMessage(e, x.String())
			}
			if n := after[r.Node][x]; n != r.Node {
				r.Next = n
			}
			r.BGP = advertised(seen, e, x)
			list = append(list, r)
		}
	}
	return list
}

// whyUnassigned returns why an address has no node.
func whyUnassigned(e *cluster.EgressIP, x netip.Addr) string {
	const unknown = "the controller has not said why"
	switch {
	case e.OnlyAnnounced():
		return cmp.Or(e.Service.Announced.Message, unknown)
	case e.Service != nil: // an EgressService has no conditions
		return "no host: kubectl get events -n " + e.Owner.Namespace
	}
	return cmp.Or(conditionMessage(e, x.String()), unknown)
}

// continuing returns which nodes continue their open connections to a load balancer address; empty
// if none.
func continuing(e *cluster.EgressIP, x netip.Addr) string {
	var nodes []string
	for _, m := range e.Moving {
		if m.Address == x && !m.Lost {
			nodes = append(nodes, m.From)
		}
	}
	if len(nodes) == 0 {
		return ""
	}
	return "its open connections continue on " + strings.Join(nodes, ",")
}

// advertised returns the nodes that announce an address by BGP, or how many if they are many.
func advertised(s *cluster.Snapshot, e *cluster.EgressIP, x netip.Addr) string {
	const most = 3
	var nodes []string
	for _, a := range bgp.Announcements(s, e, x) {
		if a.By.Status.Nodes > 0 {
			nodes = append(nodes, a.Nodes...)
		}
	}
	slices.Sort(nodes)
	if nodes = slices.Compact(nodes); len(nodes) > most {
		return fmt.Sprintf("%d nodes", len(nodes))
	}
	return strings.Join(nodes, ",")
}

// successors returns, for each node with addresses, where each address is if that node does not
// answer.
func successors(s *cluster.Snapshot) map[string]map[netip.Addr]string {
	after := map[string]map[netip.Addr]string{}
	for _, e := range s.EgressIPs {
		for _, a := range e.Assigned {
			if after[a.Node] == nil {
				after[a.Node] = assign.Successors(s, a.Node)
			}
		}
	}
	return after
}

// conditionMessage returns what the condition Assigned says about an address: why it has no node,
// or that its node does not reply.
func conditionMessage(e *cluster.EgressIP, address string) string {
	for _, c := range e.Conditions {
		if c.Type != v1.ConditionAssigned {
			continue
		}
		for part := range strings.SplitSeq(c.Message, "; ") {
			if slices.Contains(strings.Fields(part), address) {
				return part
			}
		}
	}
	return ""
}
