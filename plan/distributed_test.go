package plan_test

import (
	"net/netip"
	"testing"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/host"
	"hairpin/plan"
)

// The node is not planned if the distributed gateway port has no subnet, or if that subnet overlaps
// the masquerade subnet.
func TestNodeLocalSubnets(t *testing.T) {
	n := nodeIn(cluster.ModeShared)
	n.Gateway.NodeLocal = true
	for want, change := range map[string]func(*cluster.GatewayConfig){
		"Node/node-a: [gateway] v4-node-local-subnet: 169.254.0.0/20 overlaps the masquerade subnet 169.254.0.0/17": func(g *cluster.GatewayConfig) {
			g.MasqueradeSubnets = []netip.Prefix{prefix("169.254.0.0/17"), g.MasqueradeSubnets[1]}
		},
		"Node/node-a: [gateway] v6-node-local-subnet: is not set, but spec.podCIDRs has a range of this IP version": func(g *cluster.GatewayConfig) {
			g.NodeLocalSubnets = g.NodeLocalSubnets[:1]
		},
	} {
		s := snapshot(n)
		change(&s.Config.Gateway)
		if state, problems := plan.Node(s, "node-a"); state.NB != nil || len(problems) == 0 ||
			problems[0].Error() != want {
			t.Errorf("problems are %v, want %s", problems, want)
		}
	}
}

// The host's path to cluster IPs is either the management port or the gateway bridge.
func TestNodeLocalRoutes(t *testing.T) {
	for _, mode := range modes {
		for dgp, link := range map[bool]string{false: "breth0", true: claims.ManagementPort} {
			n := nodeIn(mode)
			n.Gateway.NodeLocal = dgp
			state, problems := plan.Node(snapshot(n), "node-a")
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			for _, to := range []string{"10.96.0.0/16", "fd00:10:96::/112"} {
				if r := state.Host.Routes[host.RouteKey{Table: 254, Prefix: prefix(to)}]; r.Link != link {
					t.Errorf("%s, dgp %t: %s goes by %q, want %q", mode, dgp, to, r.Link, link)
				}
			}
			if _, there := state.Bridge.Ports[claims.LocalPort]; there != dgp {
				t.Errorf("%s, dgp %t: port %s: %t", mode, dgp, claims.LocalPort, there)
			}
		}
	}
}
