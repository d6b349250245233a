// Package plan computes a node's desired state, a datapath.State, from a cluster.Snapshot.
//
// It is pure: no I/O, no clock, no goroutine. The same Snapshot gives the same State, in whatever
// order its objects became known. An invalid object becomes a Problem and does not affect other
// objects.
//
// The State is merged from features, each a function of the same Env. Features do not depend on
// each other: what two of them share is a name or a number in package claims, or an address in the
// Env.
package plan

import (
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/plan/egress"
	"hairpin/plan/gateway"
	"hairpin/plan/node"
	"hairpin/plan/ovnlb"
	"hairpin/plan/service"
	"hairpin/plan/svcbridge"
)

// Problem is something that plan could not do for one object.
type Problem = cluster.Problem

// Node computes the State of the node of that name. It is NewPlanner().Node for callers that plan
// once.
func Node(s *cluster.Snapshot, name string) (datapath.State, []Problem) {
	return NewPlanner().Node(s, name)
}

// feature plans one part of a node's State from the Env.
//
// A feature that reads Env.Pods, Env.Frontends or Env.Peers is additive in Pods, Services and other
// nodes: for two halves of the list it returns two States without a common key, whose union is the
// State of the whole list. So the Planner can plan only the objects that changed.
type feature func(node.Env) (datapath.State, []Problem)

// incremental is a feature with an index of its own, so that only changes cost time.
type incremental interface {
	// Update takes a new Snapshot and returns what to remove and what to add; an unchanged part may
	// be in both. With all, facts of the Env changed that the Changes do not list, and the feature
	// plans everything again.
	Update(s *cluster.Snapshot, env *node.Env, c node.Changes, all bool) (gone, come datapath.State)
}

// newIncrementals returns all incremental features, with an empty index.
func newIncrementals() []incremental {
	return []incremental{egress.New(), egress.NewMoves(), svcbridge.NewShared(), svcbridge.NewPolicies(),
		gateway.NewHosts()}
}

// base features read no single Pod, Frontend or peer. They run again when Env.RestrictedPorts
// change. objects features run only for the objects that changed, so they do not read
// Env.RestrictedPorts.
var (
	base = []feature{gateway.Topology, gateway.Bridge, ovnlb.Distributed, gateway.Redirection, svcbridge.Base,
		ovnlb.Base, service.Chains, egress.Chains}
	objects = []feature{gateway.Pods, frontends, svcbridge.Pods, gateway.Peers}
)

// frontends plans Services with the node's engine.
func frontends(e node.Env) (datapath.State, []Problem) {
	if e.Engine.LoadBalancers {
		return service.Plan(e, ovnlb.NewEngine(&e))
	}
	return service.Plan(e, svcbridge.NewEngine(&e))
}
