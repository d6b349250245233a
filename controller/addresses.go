package controller

import (
	"maps"
	"net/netip"
	"time"

	"hairpin/cluster"
	"hairpin/plan/assign"
)

// addressMeter measures the assignment of the addresses of EgressIPs.
type addressMeter struct {
	wanted  map[address]string    // the node that each address should have; empty: none can have it
	failed  map[address]bool      // those without a node, or with one that does not answer
	waiting map[address]time.Time // since when the status lacks the wanted node
}

// address is an address of an EgressIP. Several EgressIPs may have the same one.
type address struct {
	owner cluster.Owner
	ip    netip.Addr
}

func newAddressMeter() addressMeter { return addressMeter{waiting: map[address]time.Time{}} }

// recordDecisions records decisions, which are in the order of the EgressIPs.
func (a *addressMeter) recordDecisions(now time.Time, list []*cluster.EgressIP, decisions []assign.Decision) {
	a.wanted, a.failed = map[address]string{}, map[address]bool{}
	for i, d := range decisions {
		if d.EgressIP.Service != nil {
			continue
		}
		e := list[i]
		for _, item := range d.Items {
			a.wanted[address{e.Owner, item.Address}] = item.Node
		}
		for _, r := range d.Refused {
			a.failed[address{e.Owner, r.Address}] = true
		}
		for _, x := range e.Addresses {
			k := address{e.Owner, x}
			node := a.wanted[k]
			a.wanted[k] = node // also if it has none
			if _, waits := a.waiting[k]; !waits && (node == "" || e.NodeOf(x) != node) {
				a.waiting[k] = now
			}
		}
	}
	maps.DeleteFunc(a.waiting, func(k address, _ time.Time) bool { _, wanted := a.wanted[k]; return !wanted })
}

// recordWritten measures the addresses that now have their node.
func (a *addressMeter) recordWritten(now time.Time, list []*cluster.EgressIP, took func(time.Duration)) {
	for _, e := range list {
		for _, x := range e.Addresses {
			k := address{e.Owner, x}
			since, waits := a.waiting[k]
			if waits && a.wanted[k] != "" && e.NodeOf(x) == a.wanted[k] {
				took(now.Sub(since))
				delete(a.waiting, k)
			}
		}
	}
}

// count returns the numbers of addresses with a node that answers, and without.
func (a *addressMeter) count() (assigned, unassigned int) {
	for k, node := range a.wanted {
		if node != "" && !a.failed[k] {
			assigned++
		} else {
			unassigned++
		}
	}
	return assigned, unassigned
}
