package svcbridge

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/plan/node"
)

// Each node chooses other endpoints for a full group: each is chosen by some node, none by many
// more than another. A removed endpoint changes at most one choice on each node.
func TestSampleEndpoints(t *testing.T) {
	const nodes = 100
	var all []netip.AddrPort
	for i := range 5000 {
		all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 7), byte(i & 127)}), 8080))
	}
	shares := map[netip.AddrPort]int{}
	for n := range nodes {
		e := node.Env{Node: &cluster.Node{Name: fmt.Sprintf("node-%d", n)}}
		chosen := sampleEndpoints(&e, all)
		for _, a := range chosen {
			shares[a]++
		}
		left := sampleEndpoints(&e, all[1:])
		if kept := len(slices.DeleteFunc(left,
			func(a netip.AddrPort) bool { return !slices.Contains(chosen, a) })); kept < flow.MaxBuckets-1 {
			t.Errorf("one endpoint goes, and on %s %d stay of %d", e.Node.Name, kept, flow.MaxBuckets)
		}
	}
	counts := slices.Collect(maps.Values(shares))
	least, most := slices.Min(counts), slices.Max(counts)
	if len(shares) != len(all) || most > 4*nodes*flow.MaxBuckets/len(all) {
		t.Errorf("%d of %d endpoints are chosen, by %d to %d of %d nodes", len(shares), len(all), least, most, nodes)
	}
	t.Logf("endpoints are chosen by %d to %d of %d nodes", least, most, nodes)
}
