package view

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "hairpin/api/v1"
	"hairpin/api/v1alpha1"
	"hairpin/cluster"
	"hairpin/report"
)

// TestEgressStatus: every address is reported, with its node or the reason why it has none.
func TestEgressStatus(t *testing.T) {
	s := newSeen(t, "c")
	base := decidedBy(first+" a", second)
	base.EgressIPs[0].Conditions = []metav1.Condition{{Type: v1.ConditionAssigned,
		Message: "172.18.0.4 is gone; every node that 172.18.0.44 fits has another address of EgressIP/e"}}
	s.is(0, base, first+" a")
	want := []report.Egress{{EgressIP: "e", Address: "172.18.0.33", Node: "a", Next: "b"},
		{EgressIP: "e", Address: "172.18.0.44",
			Why: "every node that 172.18.0.44 fits has another address of EgressIP/e"}}
	if got := Report(s.out, s.Base); !slices.Equal(got, want) {
		t.Error(got)
	}
	s.out.Advertisements = []*cluster.Advertisement{{EgressIP: true, Status: v1alpha1.BGPAdvertisementStatus{Nodes: 1}}}
	if r := Report(s.out, s.Base); r[0].BGP != "a" || r[1].BGP != "" {
		t.Error(r)
	}
	s.out.Advertisements[0].Status.Nodes = 0
	if r := Report(s.out, s.Base); r[0].BGP != "" {
		t.Errorf("announced without a neighbor: %v", r)
	}
	base.EgressIPs[0].Conditions[0].Message = "172.18.0.33 is on node a, which is not reachable: no " +
		"other node is eligible"
	if r := Report(s.out, s.Base); r[0].Node != "a" || r[0].Why != base.EgressIPs[0].Conditions[0].Message {
		t.Error(r)
	}
	s.lose("a")
	s.is(0, base, first+" b, "+second+" c, "+first+" a>b")
	if r := Report(s.out, s.Base); len(r) != 2 || r[0].Node != "b" || r[0].Why != "the status still says a" ||
		r[1].Why != "the status still says no node" {
		t.Error(r)
	}
}
