package controller

import (
	"maps"
	"time"

	"hairpin/cluster"
	"hairpin/plan/assign"
)

// idAllocator remembers the IDs that were assigned to nodes until the watch shows them. The watch
// lags behind, and an assigned ID must neither be assigned to another node nor be released.
type idAllocator map[string]*pendingID

// pendingID is an ID for a node.
type pendingID struct {
	node, uid string
	seen      int // the node's ID in the Snapshot of the decision
	id        int
	written   bool
	until     time.Time // if written: the watch should show it by then, unless another program has removed it
}

// toWrite returns the IDs to write now.
func (a idAllocator) toWrite(now time.Time, nodes []*cluster.Node) []*pendingID {
	withIDs := make([]*cluster.Node, 0, len(nodes)) // the nodes, with the IDs that were assigned since
	present := make(map[string]bool, len(nodes))
	for _, x := range nodes {
		present[x.Name] = true
		if p := a[x.Name]; p != nil {
			if x.ID != p.seen || x.UID != p.uid {
				delete(a, x.Name) // the watch shows the ID or another change, or the Node was replaced
			} else {
				p.written = p.written && now.Before(p.until) // if late, write it again: no other node may get it
				with := *x
				with.ID = p.id
				x = &with
			}
		}
		withIDs = append(withIDs, x)
	}
	maps.DeleteFunc(a, func(name string, _ *pendingID) bool { return !present[name] })
	ids := assign.NodeIDs(withIDs)
	var list []*pendingID
	for i, x := range withIDs {
		if id := ids[x.Name]; id != x.ID {
			a[x.Name] = &pendingID{node: x.Name, uid: x.UID, seen: nodes[i].ID, id: id}
		}
		if p := a[x.Name]; p != nil && !p.written {
			list = append(list, p)
		}
	}
	return list
}
