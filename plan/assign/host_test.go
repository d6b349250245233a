package assign_test

import (
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/cluster"
	"hairpin/plan/assign"
)

// TestHosts: which node an EgressService gets, and why it has none.
func TestHosts(t *testing.T) {
	on := func(e *cluster.EgressIP, node string) {
		for _, a := range e.Addresses {
			e.Assigned = append(e.Assigned, cluster.Assignment{Address: a, Node: node})
		}
	}
	const both = "a: 172.18.0.55 node-%; fc00:f853:ccd::55 node-%"
	for _, c := range []struct {
		name string
		edit func(*cluster.Snapshot, *cluster.EgressIP, *assign.Observed)
		want string
	}{
		{"without the label of EgressIPs", func(s *cluster.Snapshot, _ *cluster.EgressIP, _ *assign.Observed) {
			for _, n := range s.Nodes {
				n.Egress.Assignable = false
			}
		}, strings.ReplaceAll(both, "%", "a")},
		{"stays", func(_ *cluster.Snapshot, e *cluster.EgressIP, _ *assign.Observed) { on(e, "node-c") },
			strings.ReplaceAll(both, "%", "c")},
		{"dies", func(_ *cluster.Snapshot, e *cluster.EgressIP, r *assign.Observed) {
			on(e, "node-a")
			r.Unreachable = map[string]bool{"node-a": true}
		}, strings.ReplaceAll(both, "%", "b")},
		{"leaves", func(s *cluster.Snapshot, e *cluster.EgressIP, _ *assign.Observed) {
			on(e, "node-a")
			s.Nodes[0].Egress.Leaving = true
		}, strings.ReplaceAll(both, "%", "b")},
		{"seems to be dead, and there is no other", func(s *cluster.Snapshot, e *cluster.EgressIP, r *assign.Observed) {
			on(e, "node-a")
			e.Service.OnlyOn = []string{"node-a"}
			r.Unreachable = map[string]bool{"node-a": true}
		}, strings.ReplaceAll(both, "%", "a") +
			"; NoMatchingNodeFound: 172.18.0.55 is on node node-a, which is not reachable: no other node is eligible" +
			"; NoMatchingNodeFound: fc00:f853:ccd::55 is on node node-a, which is not reachable: no " +
			"other node is eligible"},
		{"nodeSelector", func(s *cluster.Snapshot, e *cluster.EgressIP, _ *assign.Observed) {
			on(e, "node-a")
			e.Service.Nodes.Requirements = []cluster.Requirement{{Key: "edge", Operator: metav1.LabelSelectorOpExists}}
			s.Nodes[2].Egress.Labels = map[string]string{"edge": ""}
		}, strings.ReplaceAll(both, "%", "c")},
		{"none is selected", func(_ *cluster.Snapshot, e *cluster.EgressIP, _ *assign.Observed) {
			e.Addresses = e.Addresses[:1]
			e.Service.Nodes.Requirements = []cluster.Requirement{{Key: "edge", Operator: metav1.LabelSelectorOpExists}}
		}, "a: NoMatchingNodeFound: 172.18.0.55 fits no node: spec.nodeSelector selects none"},
		{"policy Local without endpoints", func(_ *cluster.Snapshot, e *cluster.EgressIP, _ *assign.Observed) {
			e.Addresses, e.Service.OnlyOn = e.Addresses[:1], []string{}
		},
			"a: NoMatchingNodeFound: 172.18.0.55 fits no node of spec.nodeSelector that has an endpoint " +
				"(externalTrafficPolicy: Local)"},
		{"of no network of a node", func(_ *cluster.Snapshot, e *cluster.EgressIP, _ *assign.Observed) {
			e.Addresses = []netip.Addr{addr("203.0.113.20")}
		}, "a: 203.0.113.20 node-a"},
		{"a node's own", func(_ *cluster.Snapshot, e *cluster.EgressIP, _ *assign.Observed) {
			e.Addresses = []netip.Addr{addr("172.18.0.2")}
		}, "a: UnsupportedRequest: 172.18.0.2 is an address of node node-a itself"},
		{"by network", func(_ *cluster.Snapshot, e *cluster.EgressIP, _ *assign.Observed) {
			e.Addresses, e.Service.Network = nil, true
		}, "a: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, observed := snapshot(egressNode("node-a", 1, 2), egressNode("node-b", 2, 3), egressNode("node-c", 3, 4)),
				assign.Observed{}
			e := egressIP("a", 0, "172.18.0.55", "fc00:f853:ccd::55")
			e.Owner, e.Service = cluster.Owner{Kind: "EgressService", Namespace: "default", Name: "a"},
				&cluster.EgressService{}
			s.EgressIPs = []*cluster.EgressIP{e}
			c.edit(s, e, &observed)
			if got := tellAssigned(assign.Addresses(s, observed)); got != c.want {
				t.Errorf("decided\n%s\nnot\n%s", got, c.want)
			}
		})
	}
}
