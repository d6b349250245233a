package plan_test

import (
	"slices"
	"strings"
	"testing"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/nb"
	"hairpin/plan"
)

// beyond returns the ranges that the cluster router routes to other nodes.
func beyond(t *testing.T, s *cluster.Snapshot) []string {
	t.Helper()
	state, problems := plan.Node(s, "node-a")
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	var list []string
	for _, row := range state.NB {
		if r, ok := row.(*nb.Route); ok && r.Router == claims.ClusterRouter &&
			slices.Contains([]string{"100.88.0.1", "fd97::1"}, r.NextHop.String()) {
			list = append(list, r.Prefix.String())
		}
	}
	slices.Sort(list)
	return list
}

// Routes to other nodes have priority over those by source, even if the sender's range is smaller
// than the receiver's.
func TestRoutesToOtherNodes(t *testing.T) {
	s := snapshot(node("node-a", 1, 3), node("node-b", 2, 4))
	want := []string{"10.244.0.0/16", "100.64.0.0/17", "100.64.128.0/17", "fd00:10:244::/48", "fd98::/112"}
	if got := beyond(t, s); !slices.Equal(got, want) {
		t.Errorf("routes to %v, want %v", got, want)
	}
	s.Config.ClusterSubnets = append(s.Config.ClusterSubnets,
		cluster.ClusterSubnet{CIDR: prefix("10.128.0.0/18"), HostLength: 24})
	want = []string{"10.128.0.0/18", "10.244.0.0/18", "10.244.128.0/18", "10.244.192.0/18", "10.244.64.0/18",
		"100.64.0.0/18", "100.64.128.0/18", "100.64.192.0/18", "100.64.64.0/18", "fd00:10:244::/48", "fd98::/112"}
	if got := beyond(t, s); !slices.Equal(got, want) {
		t.Errorf("with a smaller range routes to %v, want %v", got, want)
	}
	s.Config.ClusterSubnets[len(s.Config.ClusterSubnets)-1].CIDR = prefix("10.128.0.0/25")
	if _, problems := plan.Node(s, "node-a"); len(problems) != 1 ||
		!strings.Contains(problems[0].Message, "differ by more than 8 bits") {
		t.Errorf("ranges that are too different: %v", problems)
	}
}

// TestRoutesToOtherNodesAreFew: small ranges of the cluster need few routes. No route to other
// nodes is shorter than a route by source, which would have priority then.
func TestRoutesToOtherNodesAreFew(t *testing.T) {
	for _, ranges := range [][]string{{"10.244.0.0/20", "10.128.0.0/28"}, {"10.244.0.0/21"},
		{"10.244.0.0/22", "10.244.5.0/26"}} {
		s := snapshot(node("node-a", 1, 3), node("node-b", 2, 4))
		s.Config.ClusterSubnets = []cluster.ClusterSubnet{{CIDR: prefix("fd00:10:244::/48"), HostLength: 64}}
		for _, r := range ranges {
			s.Config.ClusterSubnets = append(s.Config.ClusterSubnets,
				cluster.ClusterSubnet{CIDR: prefix(r), HostLength: 29})
		}
		others := beyond(t, s)
		if len(others) > 1<<6 {
			t.Errorf("%v: %d routes to other nodes", ranges, len(others))
		}
		state, _ := plan.Node(s, "node-a")
		for _, row := range state.NB {
			r, ok := row.(*nb.Route)
			if !ok || r.Router != claims.ClusterRouter || !r.BySource {
				continue
			}
			for _, o := range others {
				if p := prefix(o); p.Addr().Is4() == r.Prefix.Addr().Is4() && p.Bits() < r.Prefix.Bits() {
					t.Errorf("%v: the route to %s comes after that from %s", ranges, p, r.Prefix)
				}
			}
		}
	}
}

// An added or removed node changes only members of address sets in OVN, which OVN handles
// incrementally.
func TestOtherNodesAreSetMembersInOVN(t *testing.T) {
	alone, _ := plan.Node(snapshot(node("node-a", 1, 3)), "node-a")
	with, _ := plan.Node(snapshot(node("node-a", 1, 3), node("node-b", 2, 4), node("node-c", 3, 5)), "node-a")
	d := nb.Diff(with.NB, alone.NB)
	for k := range d.Change {
		if k.Table == nb.TableAddressSet {
			delete(d.Change, k)
		}
	}
	if !d.Empty() {
		t.Errorf("two more nodes change %+v", d)
	}
}
