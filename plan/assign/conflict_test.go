package assign_test

import (
	"fmt"
	"testing"

	"hairpin/cluster"
	"hairpin/cluster/clustertest"
	"hairpin/plan/assign"
)

func TestConflicts(t *testing.T) {
	s := snapshot(clustertest.Pod("node-a", "p", "10.244.1.3"), clustertest.Pod("node-a", "q", "10.244.1.4"))
	s.Pods[1].Labels = map[string]string{"app": "web"}
	s.Namespaces = []*cluster.Namespace{{Name: "default"}}
	web := egressIP("web", 0, "172.18.0.44")
	web.Pods = cluster.Selector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{"web"}}}}
	s.EgressIPs = []*cluster.EgressIP{egressIP("all", 1, "172.18.0.33"), egressIP("late", 2, "172.18.0.55"), web}
	r := assign.NewConflicts()
	want := "[{EgressIP/web EgressIP/all 1 Pod/default/q} {EgressIP/all EgressIP/late 1 Pod/default/p} {EgressIP/web EgressIP/late 1 Pod/default/q}]"
	if got := fmt.Sprint(r.Of(s)); got != want {
		t.Errorf("%s, wanted %s", got, want)
	}
	without := *s
	without.EgressIPs = s.EgressIPs[2:]
	if got := r.Of(&without); len(got) > 0 {
		t.Errorf("still %v", got)
	}
}
