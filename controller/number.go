package controller

import (
	"maps"
	"time"

	"hairpin/cluster"
	"hairpin/plan/assign"
)

// idAllocator remembers the small numbers that were given to nodes, until the watch shows them: it
// lags behind, and what was given must be neither given again nor taken back.
type idAllocator map[string]*pendingID

// pendingID is a number for a node.
type pendingID struct {
	node, uid string
	seen      int // the node's number in the Snapshot that it was given for
	id        int
	written   bool
	until     time.Time // if written: the watch shows it by then, or is late, or somebody has removed it since
}

// missing returns the numbers that are to be written now.
func (n idAllocator) missing(now time.Time, nodes []*cluster.Node) []*pendingID {
	known := make([]*cluster.Node, 0, len(nodes))
	present := make(map[string]bool, len(nodes))
	for _, x := range nodes {
		present[x.Name] = true
		if g := n[x.Name]; g != nil {
			if x.ID != g.seen || x.UID != g.uid {
				delete(n, x.Name) // the watch shows it, or it was changed since, or it is another Node
			} else {
				g.written = g.written && now.Before(g.until) // else once more, and the same: no other node may get it
				with := *x
				with.ID = g.id
				x = &with
			}
		}
		known = append(known, x)
	}
	maps.DeleteFunc(n, func(name string, _ *pendingID) bool { return !present[name] })
	ids := assign.NodeIDs(known)
	var list []*pendingID
	for i, x := range known {
		g := n[x.Name]
		if id := ids[x.Name]; id != x.ID {
			g = &pendingID{node: x.Name, uid: x.UID, seen: nodes[i].ID, id: id}
			n[x.Name] = g
		}
		if g != nil && !g.written {
			list = append(list, g)
		}
	}
	return list
}
