package picture_test

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

// demo returns the planned cluster of examples/demo.
func demo(t *testing.T) (*walk.Walker, *cluster.Snapshot) {
	t.Helper()
	s := demoWith(t, cluster.EngineOpenFlow)
	return planned(t, s), s
}

// demoWith returns the cluster of examples/demo with a Service engine.
func demoWith(t *testing.T, engine string) *cluster.Snapshot {
	t.Helper()
	s, err := watch.ReadFiles("../../../examples/demo", cluster.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range s.Nodes {
		n.Gateway.OpenFlow = engine == cluster.EngineOpenFlow
	}
	return s
}

func planned(t *testing.T, s *cluster.Snapshot) *walk.Walker {
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

func answer(t *testing.T, w *walk.Walker, s *cluster.Snapshot, from, to string) *explain.Explanation {
	t.Helper()
	e, err := explain.Ask(w, s, question.Question{From: from, To: to})
	if err != nil {
		t.Fatal(err)
	}
	return e
}
