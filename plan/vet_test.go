package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/nb"
	"hairpin/plan"
)

// threeNodes returns a, which reports false facts, b, and c, which is planned. a is the youngest.
func threeNodes(lie func(*cluster.Node)) *cluster.Snapshot {
	a, b, c := node("a", 9, 9), node("b", 3, 3), node("c", 4, 4)
	for i, n := range []*cluster.Node{c, b, a} {
		n.Created = time.Unix(int64(1000+i), 0)
	}
	lie(a)
	return snapshot(a, b, c)
}

// wayTo returns the flows of the tunnel bridge that node c has for another node.
func wayTo(s *cluster.Snapshot, node string) string {
	state, _ := plan.Node(s, "c")
	var lines []string
	for _, f := range state.Bridge.Flows.All() {
		if f.Bridge == claims.TunnelBridge && f.Owner.Name == node {
			lines = append(lines, f.String())
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestFalseReportsAffectOnlyTheirNode: whatever a reports, c's path to b is the same, and c sends
// nothing to a.
func TestFalseReportsAffectOnlyTheirNode(t *testing.T) {
	honest := threeNodes(func(*cluster.Node) {})
	want := wayTo(honest, "b")
	if !strings.Contains(want, "tun_src=172.18.0.3") || !strings.Contains(want, "nw_dst=10.244.3.0/24") ||
		wayTo(honest, "a") == "" {
		t.Fatalf("the way to b is\n%s\nto a\n%s", want, wayTo(honest, "a"))
	}
	for name, lie := range map[string]func(*cluster.Node){
		"number":               func(n *cluster.Node) { n.ID = 3 },
		"the reader's number":  func(n *cluster.Node) { n.ID = 4 },
		"address":              func(n *cluster.Node) { n.Addresses[0] = addr("172.18.0.3") },
		"second address":       func(n *cluster.Node) { n.Addresses[1] = addr("fc00:f853:ccd::3") },
		"range within b's":     func(n *cluster.Node) { n.PodCIDRs[0] = prefix("10.244.3.0/28") },
		"range within c's":     func(n *cluster.Node) { n.PodCIDRs[0] = prefix("10.244.4.128/25") },
		"range around b's":     func(n *cluster.Node) { n.PodCIDRs[0] = prefix("10.244.2.0/23") },
		"second range":         func(n *cluster.Node) { n.PodCIDRs[1] = prefix("fd00:10:244:3::/80") },
		"a range of the world": func(n *cluster.Node) { n.PodCIDRs[0] = prefix("8.8.8.0/24") },
		"the cluster IPs":      func(n *cluster.Node) { n.PodCIDRs[0] = prefix("10.96.0.0/16") },
	} {
		s := threeNodes(lie)
		if got := wayTo(s, "b"); got != want {
			t.Errorf("%s: the way to b is\n%s\nwant\n%s", name, got, want)
		}
		if got := wayTo(s, "a"); got != "" {
			t.Errorf("%s: there is a way to a:\n%s", name, got)
		}
	}
}

// TestExternalNodeAddressesAreNoNodes: such packets leave with the egress address.
func TestExternalNodeAddressesAreNoNodes(t *testing.T) {
	s := threeNodes(func(n *cluster.Node) {
		n.HostAddresses = append(n.HostAddresses, prefix("8.8.8.8/32"), prefix("9.9.9.9/24"), prefix("172.18.0.77/16"))
	})
	s.Namespaces = []*cluster.Namespace{{Name: "default"}}
	s.Pods = []*cluster.Pod{pod("c", "p", "10.244.4.5")}
	e := egressIP("e", 0, "172.18.0.99")
	e.Assigned = []cluster.Assignment{{Address: addr("172.18.0.99"), Node: "b"}}
	s.EgressIPs = []*cluster.EgressIP{e}
	state, _ := plan.Node(s, "c")
	for _, name := range []string{"node_ips_ip4", "hosts_ip4"} {
		set, ok := state.NB[nb.Key{Table: nb.TableAddressSet, Name: name}].(*nb.AddressSet)
		if !ok {
			t.Fatalf("there is no set %s", name)
		}
		if got := fmt.Sprint(set.Addresses); got != "[172.18.0.3/32 172.18.0.4/32 172.18.0.9/32 172.18.0.77/32]" {
			t.Errorf("%s is %s", name, got)
		}
	}
}
