package controller

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/plan/assign"
)

// TestAddressesAreMeasured checks the numbers of addresses, and the time until one has its node:
// from the loss of the former node, across rounds without a candidate, until the status shows it.
func TestAddressesAreMeasured(t *testing.T) {
	x, y := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	on := func(nodes ...string) *cluster.EgressIP {
		e := &cluster.EgressIP{Owner: cluster.Owner{Kind: "EgressIP", Name: "a"}, Addresses: []netip.Addr{x, y}}
		for i, n := range nodes {
			if n != "" {
				e.Assigned = append(e.Assigned, cluster.Assignment{Address: e.Addresses[i], Node: n})
			}
		}
		return e
	}
	a, begin, samples := newAddressMeter(), time.Now(), []time.Duration(nil)
	round := func(second int, has, should *cluster.EgressIP, refused ...netip.Addr) {
		t.Helper()
		now := begin.Add(time.Duration(second) * time.Second)
		d := assign.Decision{EgressIP: has, Items: should.Assigned}
		for _, r := range refused {
			d.Refused = append(d.Refused, assign.Refusal{Address: r})
		}
		a.recordDecisions(now, []*cluster.EgressIP{has}, []assign.Decision{d})
		a.recordWritten(now, []*cluster.EgressIP{has}, func(took time.Duration) { samples = append(samples, took) })
	}
	count := func(want string) {
		t.Helper()
		assigned, unassigned := a.count()
		if got := fmt.Sprint(assigned, unassigned, samples); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	round(0, on("m", "n"), on("m", "n"))
	count("2 0 []")
	round(10, on("m", "n"), on("", "n"), x) // no node can have it
	count("1 1 []")
	round(11, on("", "n"), on("o", "n"))
	round(12, on("o", "n"), on("o", "n"))
	count("2 0 [2s]")
	round(20, on("o", "n"), on("o", "n"), y) // its only node does not answer
	count("1 1 [2s]")
	a.recordDecisions(begin, nil, nil)
	count("0 0 [2s]")
}
