package plan_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/cluster/clustertest"
	"hairpin/plan"
)

// drawPeer draws another node. IDs, addresses and ranges are few, so that nodes' claims collide.
func drawPeer(t *rapid.T) *cluster.Node {
	name := rapid.SampledFrom([]string{"node-b", "node-c", "node-d", "node-e"}).Draw(t, "name")
	n := node(name, rapid.IntRange(0, 4).Draw(t, "ID"), rapid.IntRange(4, 7).Draw(t, "address"))
	if n.ID == 0 { // it has none yet
		n.PodCIDRs = nil
	}
	n.UID = rapid.SampledFrom([]string{"1", "2", "3"}).Draw(t, "UID")
	switch rapid.IntRange(0, 5).Draw(t, "what it lacks") {
	case 0:
		n.Addresses = nil
	case 1:
		n.Gateway.MAC = cluster.MAC{}
	case 2:
		n.PodCIDRs = n.PodCIDRs[:min(1, len(n.PodCIDRs))]
	}
	for _, a := range rapid.SliceOfN(rapid.SampledFrom([]string{"172.17.0.1/16", "192.168.0.1/24", "172.18.0.3/16",
		"169.254.169.2/29", "fd00:7::1/64"}), 0, 3).Draw(t, "host's") {
		n.HostAddresses = append(n.HostAddresses, prefix(a))
	}
	return n
}

// TestPlannerKnowsPeers: after other nodes were added, removed, rejected and accepted, a Planner
// returns the same as a new one.
func TestPlannerKnowsPeers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawNodes(t)
		s.Nodes = s.Nodes[:1]
		s.Namespaces = []*cluster.Namespace{{Name: "default"}}
		s.Pods = append(s.Pods, pod("node-a", "p", "10.244.1.9", "fd00:10:244:1::9"))
		for i, n := range []string{"node-b", "node-c", "node-a"} {
			e := egressIP(fmt.Sprintf("e%d", i), i, fmt.Sprintf("172.18.0.%d", 100+i))
			e.Assigned = []cluster.Assignment{{Node: n, Address: e.Addresses[0]}}
			s.EgressIPs = append(s.EgressIPs, e)
		}
		byName := (*cluster.Node).Compare
		p := plan.NewPlanner()
		for range rapid.IntRange(1, 10).Draw(t, "steps") {
			next := *s
			own := s.Node("node-a")
			next.Nodes = append(clustertest.Edit(t,
				slices.DeleteFunc(slices.Clone(s.Nodes), func(n *cluster.Node) bool { return n == own }), drawPeer,
				byName), own)
			slices.SortFunc(next.Nodes, byName)
			if rapid.IntRange(0, 4).Draw(t, "own") == 0 {
				own := new(*own)
				own.HostAddresses = append(slices.Clone(own.HostAddresses), netip.PrefixFrom(addr("192.0.2.9"), 32))
				next.Nodes[0] = own
			}
			s = &next
			sameText(t, text(p.Node(s, "node-a")), text(plan.Node(s, "node-a")))
		}
	})
}
