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
	web.Pods = cluster.Selector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In",
		Values: []string{"web"}}}}
	s.EgressIPs = []*cluster.EgressIP{egressIP("all", 1, "172.18.0.33"), egressIP("late", 2, "172.18.0.55"), web}
	r := assign.NewConflicts()
	want := "[{EgressIP/web EgressIP/all 1 Pod/default/q} {EgressIP/all EgressIP/late 1 Pod/default/p} " +
		"{EgressIP/web EgressIP/late 1 Pod/default/q}]"
	if got := fmt.Sprint(r.Of(s)); got != want {
		t.Errorf("%s, wanted %s", got, want)
	}
	without := *s
	without.EgressIPs = s.EgressIPs[2:]
	if got := r.Of(&without); len(got) > 0 {
		t.Errorf("still %v", got)
	}
}

// An older EgressIP without an address of a family, or without an assigned one, does not conflict
// for it. A younger one without pods is reported with the one that has them.
func TestConflictsByFamily(t *testing.T) {
	s := snapshot(clustertest.Pod("node-a", "p", "10.244.1.3", "fd00:10:244:1::3"))
	s.Namespaces = []*cluster.Namespace{{Name: "default"}}
	on := func(e *cluster.EgressIP, addresses ...string) *cluster.EgressIP {
		for _, a := range addresses {
			e.Assigned = append(e.Assigned, cluster.Assignment{Address: addr(a), Node: "node-a"})
		}
		return e
	}
	for name, c := range map[string]struct {
		list []*cluster.EgressIP
		want string
	}{
		"one of each family": {[]*cluster.EgressIP{egressIP("a", 0, "172.18.0.33"),
			egressIP("b", 1, "fc00:f853:ccd::33")}, "[]"},
		"the older has no node": {[]*cluster.EgressIP{egressIP("a", 0, "172.18.0.33"),
			on(egressIP("b", 1, "172.18.0.44"), "172.18.0.44")}, "[]"},
		"neither has a node": {[]*cluster.EgressIP{egressIP("a", 0, "172.18.0.33"), egressIP("b", 1, "172.18.0.44")},
			"[{EgressIP/a EgressIP/b 1 Pod/default/p}]"},
		"the younger has more": {[]*cluster.EgressIP{on(egressIP("a", 0, "172.18.0.33"), "172.18.0.33"),
			on(egressIP("b", 1, "172.18.0.44", "fc00:f853:ccd::33"), "172.18.0.44", "fc00:f853:ccd::33")},
			"[{EgressIP/a EgressIP/b 1 Pod/default/p}]"},
	} {
		s.EgressIPs = c.list
		if got := fmt.Sprint(assign.NewConflicts().Of(s)); got != c.want {
			t.Errorf("%s: %s, wanted %s", name, got, c.want)
		}
	}
}
