package node

import (
	"hairpin/cluster"
	"hairpin/plan/admission"
)

// Changes holds the node's Pods, the served Frontends and the other nodes that were removed
// or added. A changed object is in both, and so is a node with a changed acceptance.
type Changes struct {
	Pods      cluster.Changes[cluster.Pod]
	Frontends cluster.Changes[admission.Frontend]
	Nodes     cluster.Changes[cluster.Node]
}
