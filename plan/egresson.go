package plan

import (
	"hairpin/cluster"
)

// SelectsOn reports whether an EgressIP selects a pod of a node.
func SelectsOn(s *cluster.Snapshot, node string) bool {
	spaces := map[string]*cluster.Namespace{}
	for _, n := range s.Namespaces {
		spaces[n.Name] = n
	}
	for _, p := range s.Pods {
		n := spaces[p.Owner.Namespace]
		if p.Node != node || n == nil {
			continue
		}
		for _, e := range s.EgressIPs {
			if e.Pods.Matches(p.Labels) && e.Namespaces.Matches(n.Labels) {
				return true
			}
		}
	}
	return false
}
