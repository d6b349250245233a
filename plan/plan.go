// Package plan computes what one node must have: a datapath.State, from a cluster.Snapshot.
//
// It is pure: no I/O, no clock, no goroutine. The same Snapshot gives the same State, in whatever order its
// objects became known. A bad object becomes a Problem and stops no other object.
package plan

import (
	"hairpin/cluster"
	"hairpin/datapath"
)

// Problem is what plan could not do for one object.
type Problem = cluster.Problem

// Node computes the State of the node of that name. It is NewPlanner().Node for callers that plan once.
func Node(s *cluster.Snapshot, name string) (datapath.State, []Problem) {
	return NewPlanner().Node(s, name)
}
