package knft_test

import (
	"testing"

	"hairpin/apply"
	"hairpin/apply/applytest"
	"hairpin/cluster"
	"hairpin/datapath/nft"
	"hairpin/plan"
	"hairpin/watch"
)

// TestPlannedStates checks that nft accepts plan's States of the demo's nodes, from the Target and
// as the printed file. A new Target on it writes nothing.
func TestPlannedStates(t *testing.T) {
	snapshot, err := watch.ReadFiles("../../examples/demo", cluster.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	each(t, func(t *testing.T, s system) {
		s.run(t, "", "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "wire")
		for i, n := range snapshot.Nodes {
			n.Gateway.OpenFlow = i > 0 // one node with OVN's load balancers
			state, _ := plan.Node(snapshot, n.Name)
			if state.NFT[nft.Inet] == nil {
				t.Fatalf("%s: no table planned", n.Name)
			}
			first, again := apply.NewPass(apply.Targets{NFT: s.target(t)}),
				apply.NewPass(apply.Targets{NFT: s.target(t)})
			for _, pass := range []*apply.Pass{first, again, again} {
				applytest.Run(t, pass, state)
			}
			if st := again.Status()[0]; st.Applies != 0 || st.Drift != 0 || !st.InSync {
				t.Errorf("%s: on an unchanged node, %+v", n.Name, st)
			}
			s.hand(t, "flush ruleset")
			s.hand(t, nft.Print(state.NFT))
			have, err := s.target(t).Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if d := nft.Diff(state.NFT, have); !d.Empty() {
				t.Errorf("%s: the printed file makes another table:\n%s", n.Name, d)
			}
		}
	})
}
