package agent

import (
	"reflect"
	"slices"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/hostnet"
	"hairpin/plan"
)

// inputs are the inputs of this node's plan.
type inputs struct {
	snapshot *cluster.Snapshot
	found    hostnet.Found
	pods     []*cluster.Pod
}

// same reports whether i and o have the same plan.
func (i *inputs) same(o *inputs) bool {
	return i.snapshot == o.snapshot && reflect.DeepEqual(i.found, o.found) && slices.Equal(i.pods, o.pods)
}

// planned is the node's desired state, and the inputs it was planned from.
type planned struct {
	planner  *plan.Planner
	inputs   inputs
	all      *cluster.Snapshot // the Snapshot of inputs, with this node's own facts; nil before the first plan
	pods     []*cluster.Pod    // the pods of inputs, as in all
	want     datapath.State
	problems []cluster.Problem // of the Snapshot and of this node's plan
	changed  bool              // want differs from that of the last pass
}

// update plans the node from all: the Snapshot of now with this node's own facts.
func (p *planned) update(now inputs, all *cluster.Snapshot, node string) {
	var problems []cluster.Problem
	p.want, problems = p.planner.Node(all, node)
	p.inputs, p.all, p.changed, p.pods = now, all, true, nil
	for _, x := range all.Pods {
		if x.Node == node {
			p.pods = append(p.pods, x)
		}
	}
	p.problems = cluster.SortProblems(slices.Concat(now.snapshot.Problems, problems))
}
