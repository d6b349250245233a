// Package demotest plans clusters and asks questions about packets, as the commands of package ui
// do, for tests of the packages that these commands use.
package demotest

import (
	"testing"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/plan"
	"hairpin/walk"
	"hairpin/walk/explain"
	"hairpin/walk/explain/question"
	"hairpin/watch"
)

// Read returns the cluster of a folder of manifests, such as examples/demo, with a Service engine.
func Read(t testing.TB, dir, engine string) *cluster.Snapshot {
	t.Helper()
	s, err := watch.ReadFiles(dir, cluster.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range s.Nodes {
		n.Gateway.OpenFlow = engine == cluster.EngineOpenFlow
	}
	return s
}

// Planned returns a Walker with the desired States of a cluster's nodes.
func Planned(t testing.TB, s *cluster.Snapshot) *walk.Walker {
	t.Helper()
	world := walk.World{Snapshot: s, States: map[string]datapath.State{}}
	for _, n := range s.Nodes {
		state, problems := plan.Node(s, n.Name)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		world.States[n.Name] = state
	}
	return walk.New(world)
}

// Answer returns the answer to a question about a packet.
func Answer(t testing.TB, w *walk.Walker, s *cluster.Snapshot, from, to string) *explain.Explanation {
	t.Helper()
	e, err := explain.Ask(w, s, question.Question{From: from, To: to})
	if err != nil {
		t.Fatal(err)
	}
	return e
}
