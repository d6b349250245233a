package plan_test

import (
	"net/netip"
	"slices"
	"testing"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/plan"
)

// TestEgressServiceTable: pods of an EgressService with spec.network leave by that table on the
// node that translates, with the node's address on each of the table's links. If the node has no
// such table, they cannot leave.
func TestEgressServiceTable(t *testing.T) {
	table := cluster.RouteTable{Name: "blue", Number: 1042, VRF: true, Links: []string{"eth1", "eth9"}}
	of := func(network, known bool) *cluster.Snapshot {
		n := node("node-a", 1, 3)
		n.Links = []cluster.HostLink{{Name: "eth1", Index: 3, Table: 1042,
			Addresses: []netip.Prefix{prefix("10.10.10.3/24")}}}
		if known {
			n.Tables = []cluster.RouteTable{table}
		}
		s := snapshot(n, node("node-b", 2, 4), pod("node-a", "p", "10.244.1.3"), pod("node-b", "q", "10.244.2.3"))
		e := &cluster.EgressIP{
			Owner: cluster.Owner{Kind: "EgressService", Namespace: "default", Name: "web"},
			Service: &cluster.EgressService{
				Network: network, Table: "blue", Host: "node-a", ClusterIPs: []netip.Addr{addr("10.96.0.9")},
				Endpoints: []netip.Addr{addr("10.244.1.3"), addr("10.244.2.3")},
			},
		}
		s.Namespaces = []*cluster.Namespace{{Name: "default"}}
		if !network {
			e.Addresses = []netip.Addr{addr("203.0.113.20")}
			e.Assigned = []cluster.Assignment{{Address: addr("203.0.113.20"), Node: "node-a"}}
		}
		s.EgressIPs = []*cluster.EgressIP{e}
		return s
	}
	for _, c := range []struct {
		name           string
		network, known bool
		rules          []string // sources
		source         string   // of pod p on eth1
		hop            string   // next hop of this node's pods
	}{
		{"load balancer's address", false, true, []string{"10.96.0.9/32", "10.244.1.3/32", "10.244.2.3/32"},
			"203.0.113.20", "10.244.1.2"},
		{"address of the network", true, true, []string{"10.96.0.9/32", "10.244.1.3/32"}, "10.10.10.3", "10.244.1.2"},
		{"load balancer's address, no table", false, false, nil, "", ""},
		{"address of the network, no table", true, false, nil, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			state, _ := plan.Node(of(c.network, c.known), "node-a")
			var rules []string
			for r := range state.Host.Rules {
				if r.Priority == claims.RuleEgress && r.Table == 1042 {
					rules = append(rules, r.From.String())
				}
			}
			slices.Sort(rules)
			slices.Sort(c.rules)
			if !slices.Equal(rules, c.rules) {
				t.Errorf("rules from %v, not %v", rules, c.rules)
			}
			source := ""
			if m := state.NFT[nft.Inet].Maps["egress4"]; m != nil {
				if x, ok := m.Elements.Get(nft.Element{Src: prefix("10.244.1.3/32"), Out: "eth1"}); ok {
					source = x.Addr.Addr().String()
				}
			}
			if source != c.source {
				t.Errorf("the pod leaves with %q, not %q", source, c.source)
			}
			_, back := state.Host.Routes[host.RouteKey{Table: 1042, Prefix: prefix("10.244.0.0/16")}]
			if back != c.known {
				t.Errorf("the table has a route to pods: %v", back)
			}
			hop := ""
			for _, r := range state.NB {
				if p, ok := r.(*nb.Policy); ok && p.Owner.Kind == "EgressService" &&
					p.Priority == claims.PolicyEgress && len(p.NextHops) > 0 {
					hop = p.NextHops[0].String()
				}
			}
			if hop != c.hop {
				t.Errorf("this node's pods are led to %q, not %q", hop, c.hop)
			}
		})
	}
}
