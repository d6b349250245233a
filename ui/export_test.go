package ui

import (
	"context"
	"io"

	"hairpin/cluster"
	"hairpin/config"
	"hairpin/ui/page"
	"hairpin/walk"
	"hairpin/walk/explain"
)

// Planned exports planned.
func Planned(errw io.Writer, s *cluster.Snapshot) walk.World { return planned(errw, s) }

// WithOwn exports withOwn.
func WithOwn(s, agent *cluster.Snapshot, node string) *cluster.Snapshot {
	return withOwn(s, agent, node)
}

// ServeWith exports serve, which takes a connection to the API.
var ServeWith = serve

// Health returns the method health of pages for this node.
func Health(c config.Config) func(context.Context) *page.Health { return (&ui{c: c}).health }

// Prove sends the packet of an explanation, with ask in place of the agents of nodes.
func Prove(ctx context.Context, ask func(ctx context.Context, node, path string) ([]byte, error), nodes []string,
	e *explain.Explanation) error {
	p := &prover{ask: ask, errw: io.Discard, s: &cluster.Snapshot{}, facts: map[string]*nodeFacts{}}
	for _, node := range nodes {
		p.facts[node] = &nodeFacts{}
	}
	_, err := p.prove(ctx, e)
	return err
}
