package controller

import (
	"context"
	"log/slog"
	"time"

	"hairpin/cluster"
	"hairpin/config"
	"hairpin/kube"
	"hairpin/kubeapi"
)

// Lead exports lead, with the configuration known.
func Lead(ctx context.Context, client *kubeapi.Client, identity string, known cluster.Config, log *slog.Logger) error {
	c := config.DefaultConfig()
	c.Cluster = known
	c.Process.Egress.Timeout = 0 // its Nodes do not exist
	return lead(ctx, client, identity, c, newMonitoring(&kube.Reach{}, log), log)
}

// IDAllocator exports idAllocator.
type IDAllocator struct {
	n   idAllocator
	now time.Time
}

// Wait advances the time until the watch must show every write.
func (n *IDAllocator) Wait() { n.now = n.now.Add(watchLag + 1) }

// ToWrite returns the IDs to write, by node; write reports whether a write succeeded.
func (n *IDAllocator) ToWrite(write func(node, uid string, id int) bool, nodes ...*cluster.Node) map[string]int {
	if n.n == nil {
		n.n = idAllocator{}
	}
	out := map[string]int{}
	for _, g := range n.n.toWrite(n.now, nodes) {
		out[g.node] = g.id
		g.written, g.until = write(g.node, g.uid, g.id), n.now.Add(watchLag)
	}
	return out
}

// Rewritten returns the assignments before each of two writes of the same assignment, while the
// watch shows e.
func Rewritten(e *cluster.EgressIP, items []cluster.Assignment) (first, second []cluster.Assignment) {
	g := egressIPs{written: map[cluster.Owner]writtenStatus{}}
	c := statusChange{e: e, items: items}
	return g.recordStatus(c), g.recordStatus(c)
}

// Assigned returns the assignment that counts for an EgressIP: wrote was written when the watch
// showed saw, and now it shows shows.
func Assigned(saw *cluster.EgressIP, wrote []cluster.Assignment, shows *cluster.EgressIP) []cluster.Assignment {
	g := egressIPs{written: map[cluster.Owner]writtenStatus{saw.Owner: {saw.UID, saw.Assigned, wrote}}}
	return g.withWritten(&cluster.Snapshot{EgressIPs: []*cluster.EgressIP{shows}}).EgressIPs[0].Assigned
}
