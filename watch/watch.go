// Package watch yields the newest cluster.Snapshot, from the Kubernetes API (Kube) or from a
// directory of manifests (Files). Both feed the same store.Store, so a manifest and the object
// that the API server makes of it give the same Snapshot.
//
// Kube reads Pods of other nodes only if something needs them (otherpods.go), and holds back a new
// Pod until the policies that are older have arrived (newpods.go).
package watch

import "hairpin/cluster"

// feed holds the newest Snapshot: a slow reader gets the last one, never a queue of old ones.
type feed chan *cluster.Snapshot

func newFeed() feed { return make(feed, 1) }

// put replaces a Snapshot that has not been read yet, and sets s.Received if that one is older.
// There is one writer.
func (f feed) put(s *cluster.Snapshot) {
	select {
	case unread := <-f:
		s.Received = unread.Received
	default:
	}
	f <- s
}
