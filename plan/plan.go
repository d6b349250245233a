// Package plan computes a node's desired state, a datapath.State, from a cluster.Snapshot.
//
// It is pure: no I/O, no clock, no goroutine. The same Snapshot gives the same State, in whatever
// order its objects became known. A bad object becomes a Problem and stops no other object.
//
// The State is merged from features, each a function of the same Env. Features do not know each
// other: what two of them must agree on is a name or a number in package claims, or an address in
// the Env.
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

// Problem is what plan could not do for one object.
type Problem = cluster.Problem

// Node computes the State of the node of that name. It is NewPlanner().Node for callers that plan
// once.
func Node(s *cluster.Snapshot, name string) (datapath.State, []Problem) {
	return NewPlanner().Node(s, name)
}

// feature is one part of what a node does. It reads the Env and writes a State of its own.
//
// A feature that reads Env.Pods, Env.Frontends or Env.Peers is additive in Pods, Services and other
// nodes: for two halves of the list it gives two States without a common key, whose union is the
// State of the whole list. So the Planner may ask for the State of just those objects that changed.
type feature func(node.Env) (datapath.State, []Problem)

// incremental is a feature that keeps an index of its own, so that a change costs what it touches.
type incremental interface {
	// Update takes a new Snapshot and gives what goes and what comes; what is in both may be the
	// same. When not only objects have changed but what the Env says of the node, it plans all
	// again.
	Update(s *cluster.Snapshot, env *node.Env, c node.Changes, again bool) (gone, come datapath.State)
}

// newIncrementals returns those that there are. They know nothing yet.
func newIncrementals() []incremental {
	return []incremental{egress.New(), svcbridge.NewShared(), gateway.NewHosts()}
}

// base features do not look at single Pods, Services and other nodes, objects features look at
// nothing else that changes often.
var (
	base = []feature{gateway.Topology, gateway.Bridge, ovnlb.Distributed, gateway.Redirection, svcbridge.Base,
		ovnlb.Base, service.Chains, egress.Chains}
	objects = []feature{gateway.Pods, frontends, svcbridge.Pods, gateway.Peers}
)

// frontends plans Services with the node's engine.
func frontends(e node.Env) (datapath.State, []Problem) {
	if e.Node.Gateway.OpenFlow {
		return service.Plan(e, svcbridge.NewEngine(&e))
	}
	return service.Plan(e, ovnlb.NewEngine(&e))
}
