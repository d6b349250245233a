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

// Lead opens lead. Package lab imports run, so tests that use it stand outside.
func Lead(ctx context.Context, client *kubeapi.Client, identity string, known cluster.Config, log *slog.Logger) error {
	c := config.DefaultConfig()
	c.Cluster = known
	c.Process.Egress.Timeout = 0 // its Nodes are not there
	return lead(ctx, client, identity, c, newWatched(&kube.Reach{}, log), log)
}

// Numbers opens numbers.
type Numbers struct {
	n   idAllocator
	now time.Time
}

// Wait lets so much time pass that the watch shows whatever was written.
func (n *Numbers) Wait() { n.now = n.now.Add(watchLag + 1) }

// Missing returns what is to be written, as node → number; write tells whether it was.
func (n *Numbers) Missing(write func(node, uid string, id int) bool, nodes ...*cluster.Node) map[string]int {
	if n.n == nil {
		n.n = idAllocator{}
	}
	out := map[string]int{}
	for _, g := range n.n.missing(n.now, nodes) {
		out[g.node] = g.id
		g.written, g.until = write(g.node, g.uid, g.id), n.now.Add(watchLag)
	}
	return out
}

// Assigned returns what an EgressIP's assignment is taken for: wrote was written when the watch had
// shown saw, and now it shows another.
func Assigned(saw *cluster.EgressIP, wrote []cluster.Assignment, shows *cluster.EgressIP) []cluster.Assignment {
	g := egressIPs{written: map[cluster.Owner]writtenStatus{saw.Owner: {saw.UID, saw.Assigned, wrote}}}
	return g.withWritten(&cluster.Snapshot{EgressIPs: []*cluster.EgressIP{shows}}).EgressIPs[0].Assigned
}
