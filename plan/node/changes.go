package node

import (
	"hairpin/cluster"
)

// Changes are the node's Pods, the Frontends that are served, and other nodes, that went and that
// came. What changed did both, and so did a node that is refused now, or no longer.
type Changes struct {
	Pods      cluster.Changes[cluster.Pod]
	Frontends cluster.Changes[cluster.Frontend]
	Nodes     cluster.Changes[cluster.Node]
}
