package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "hairpin/api/v1"
	"hairpin/cluster"
	"hairpin/report"
)

// Report returns the node of each egress address: seen has the actual one, base the API's.
func Report(seen, base *cluster.Snapshot) []report.Egress {
	var list []report.Egress
	for _, e := range seen.EgressIPs {
		said := e
		if base != nil {
			said = cmp.Or(find(base.EgressIPs, e.Owner), e)
		}
		if e.Service != nil && e.Service.Network {
			list = append(list, report.Egress{EgressIP: e.Word(), Address: "-", Node: e.Service.Host,
				Why: "each pod with its node's address"})
		}
		for _, x := range e.Addresses {
			r := report.Egress{EgressIP: e.Word(), Address: x.String(), Node: e.NodeOf(x)}
			m := slices.IndexFunc(e.Moving, func(m cluster.Move) bool { return m.Address == x })
			switch status := said.NodeOf(x); {
			case r.Node == "":
				r.Why = cmp.Or(saidOf(e, x.String()), "the controller has not said why")
				if e.OnlyAnnounced() {
					r.Why = cmp.Or(e.Service.Announced.Message, "the controller has not said why")
				} else if e.Service != nil { // an EgressService has no conditions
					r.Why = "no host: kubectl get events -n " + e.Owner.Namespace
				}
			case r.Node != status:
				r.Why = "the status still says " + cmp.Or(status, "nobody")
			case m >= 0:
				r.Why = fmt.Sprintf("moves from %s to %s", e.Moving[m].From, e.Moving[m].To)
			default: // may have no endpoint
				r.Why = saidOf(e, x.String())
			}
			list = append(list, r)
		}
	}
	return list
}

// saidOf returns the condition's message about an address without a node, or that does not reply.
func saidOf(e *cluster.EgressIP, address string) string {
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
