package ui

import (
	"io"

	"hairpin/cluster"
	"hairpin/walk"
)

// Planned exports planned.
func Planned(errw io.Writer, s *cluster.Snapshot) walk.World { return planned(errw, s) }

// WithOwn exports withOwn.
func WithOwn(s, agent *cluster.Snapshot, node string) *cluster.Snapshot {
	return withOwn(s, agent, node)
}

// ServeWith exports serve, which takes a connection to the API.
var ServeWith = serve
