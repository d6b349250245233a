package controller

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/api/v1alpha1"
)

// TestPrevious: the previous nodes of a load balancer address, and for how long the status has
// them.
func TestPrevious(t *testing.T) {
	const ip = "192.0.2.1"
	a := netip.MustParseAddr(ip)
	// is compares with "node: previous node/seconds left, …", and sets this status.
	status, now := v1alpha1.LoadBalancerPoolStatus{}, time.Unix(1000, 0)
	is := func(after time.Duration, node string, only bool, wants ...string) {
		t.Helper()
		now = now.Add(after)
		next := v1alpha1.LoadBalancerPoolStatus{Addresses: []v1alpha1.PoolAddress{{Address: ip, Node: node}}}
		again := addPrevious(&status, &next, map[netip.Addr]electedNode{a: {node: node, onlyAnnounced: only}}, now)
		var got []string
		var soonest time.Duration
		for _, p := range next.Addresses[0].Previous {
			left := p.Until.Sub(now)
			got = append(got, fmt.Sprintf("%s %v", p.Node, left))
			if soonest == 0 || left < soonest {
				soonest = left
			}
		}
		if !slices.Equal(got, wants) || again != soonest {
			t.Errorf("%q, not %q; again after %v", got, wants, again)
		}
		status = next
	}
	is(0, "a", true)
	is(time.Second, "a", true)
	is(0, "b", true, "a 5m0s")
	is(time.Minute, "b", true, "a 4m0s")
	is(time.Minute, "", true, "b 5m0s", "a 3m0s") // no node can have it
	is(time.Minute, "c", true, "b 4m0s", "a 2m0s")
	is(time.Minute, "a", true, "c 5m0s", "b 3m0s") // and it returns
	for _, n := range []string{"d", "e", "f"} {
		status.Addresses[0].Previous = append(status.Addresses[0].Previous,
			v1alpha1.PreviousNode{Node: n, Until: metav1.NewTime(now.Add(time.Minute))})
	}
	is(0, "b", true, "a 5m0s", "c 5m0s", "d 1m0s", "e 1m0s")
	is(time.Minute, "b", true, "a 4m0s", "c 4m0s")
	is(4*time.Minute, "b", true)
	is(0, "a", true, "b 5m0s")
	status.Addresses[0].Previous[0].Until = metav1.NewTime(now.Add(time.Hour)) // another clock
	is(0, "a", true)
	was, next := v1alpha1.LoadBalancerPoolStatus{}, v1alpha1.LoadBalancerPoolStatus{}
	at := map[netip.Addr]electedNode{}
	for i := range maxPreviousOfPool + 1 {
		a := netip.AddrFrom4([4]byte{192, 0, byte(i / 256), byte(i)})
		at[a] = electedNode{node: "b", onlyAnnounced: true}
		was.Addresses = append(was.Addresses, v1alpha1.PoolAddress{Address: a.String(), Node: "a"})
		next.Addresses = append(next.Addresses, v1alpha1.PoolAddress{Address: a.String(), Node: "b"})
	}
	addPrevious(&was, &next, at, now)
	if len(next.Addresses[maxPreviousOfPool-1].Previous) != 1 || next.Addresses[maxPreviousOfPool].Previous != nil {
		t.Error("a pool has another number of previous nodes")
	}
	is(0, "a", false) // pods leave with it: it is on both nodes for seconds
}
