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
	merged   *cluster.Snapshot // the Snapshot of inputs, with this node's own facts; nil before the first plan
	pods     []*cluster.Pod    // this node's pods of merged
	want     datapath.State
	problems []cluster.Problem // of the Snapshot and of this node's plan
	changed  bool              // want differs from that of the last pass
}

// update plans the node from new inputs. merged is their Snapshot with this node's own facts.
func (p *planned) update(in inputs, merged *cluster.Snapshot, node string) {
	var problems []cluster.Problem
	p.want, problems = p.planner.Node(merged, node)
	p.inputs, p.merged, p.changed, p.pods = in, merged, true, nil
	for _, x := range merged.Pods {
		if x.Node == node {
			p.pods = append(p.pods, x)
		}
	}
	p.problems = cluster.SortProblems(slices.Concat(in.snapshot.Problems, problems))
}
