package node

import (
	"hairpin/cluster"
	"hairpin/plan/admission"
)

// Changes holds the node's Pods, the served Frontends and the other nodes that were removed or
// added. A changed object is both. So is a node that is rejected now, or no longer.
type Changes struct {
	Pods      cluster.Changes[cluster.Pod]
	Frontends cluster.Changes[admission.Frontend]
	Nodes     cluster.Changes[cluster.Node]
}
