package plan_test

import (
	"fmt"
	"net/netip"
	"testing"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/nb"
	"hairpin/plan"
)

// TestManyNodes: the default ranges of the transit and join networks are sufficient for 5 000
// nodes, and for the node with the last ID. Each node has its own address.
func TestManyNodes(t *testing.T) {
	objects := []any{node("node-a", 1, 3)}
	ids := []int{32767}
	for id := 2; id <= 5000; id++ {
		ids = append(ids, id)
	}
	for _, id := range ids {
		n := node(fmt.Sprintf("n-%05d", id), 2, 3+id)
		n.ID = id
		n.PodCIDRs = []netip.Prefix{ // a /24 of 10.0.0.0/8 for each
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(128 + id>>8), byte(id), 0}), 24),
			prefix(fmt.Sprintf("fd00:10:244:%x::/64", id)),
		}
		objects = append(objects, n)
	}
	objects[0].(*cluster.Node).PodCIDRs[0] = prefix("10.128.1.0/24")
	s := snapshot(objects...)
	s.Config.ClusterSubnets[0] = cluster.ClusterSubnet{CIDR: prefix("10.128.0.0/9"), HostLength: 24}
	state, problems := plan.Node(s, "node-a")
	if len(problems) > 0 {
		t.Fatalf("%d problems, the first: %v", len(problems), problems[0])
	}
	keys, macs, flows := map[uint32]bool{}, map[cluster.MAC]bool{}, 0 // six flows per node, and two more
	for _, f := range state.Bridge.Flows.All() {
		if f.Bridge == claims.TunnelBridge {
			keys[f.Match.Tunnel.Ports], macs[f.Match.EthDst] = true, true
			flows++
			if err := f.Check(); err != nil {
				t.Error(err)
			}
		}
	}
	if len(keys) != len(ids)+1 || len(macs) != len(ids)+1 || flows != 6*len(ids)+2 {
		t.Errorf("%d nodes have %d keys, %d MACs, %d flows", len(ids), len(keys)-1, len(macs)-1, flows)
	}
	for k, row := range state.NB {
		if nb.OwnerOf(row) != (cluster.Owner{Kind: "Node", Name: "node-a"}) {
			t.Errorf("OVN has %s of another node", k)
		}
	}
}
