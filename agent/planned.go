package agent

import (
	"reflect"
	"slices"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/hostnet"
	"hairpin/plan"
	"hairpin/plan/egress"
)

// inputs are what the plan of this node depends on.
type inputs struct {
	snapshot *cluster.Snapshot
	found    hostnet.Found
	pods     []*cluster.Pod
}

// same reports whether the plan of o is that of i.
func (i *inputs) same(o *inputs) bool {
	return i.snapshot == o.snapshot && reflect.DeepEqual(i.found, o.found) && slices.Equal(i.pods, o.pods)
}

// planned is the node's desired state, and what it was planned from.
type planned struct {
	planner  *plan.Planner
	inputs   inputs
	all      *cluster.Snapshot // the Snapshot of inputs, with what this node knows better; nil before the first plan
	want     datapath.State
	problems []cluster.Problem // of the Snapshot and of this node's plan
	fresh    bool              // want is another than that of the last pass
}

// update plans the node from all, the Snapshot of now with what this node knows better.
func (p *planned) update(now inputs, all *cluster.Snapshot, node string) {
	want, problems := p.planner.Node(all, node)
	p.want = egress.WithMoves(want, all, node)
	p.inputs, p.all, p.fresh = now, all, true
	p.problems = cluster.SortProblems(slices.Concat(now.snapshot.Problems, problems))
}
