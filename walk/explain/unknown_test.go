package explain_test

import (
	"strings"
	"testing"

	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/plan"
	"hairpin/ui/demotest"
	"hairpin/walk"
	"hairpin/walk/explain"
	"hairpin/walk/explain/picture"
)

// TestUnknownActions checks that explain shows a flow with actions that Hairpin cannot parse
// unchanged, and reports it as the fault. explain does not fail.
func TestUnknownActions(t *testing.T) {
	w, s := demo(t)
	wanted := demotest.Answer(t, w, s, "host/node-a", "svc/default/hostself")
	const actions = "output:1,unknown(ffff0010000023200008000100000000)"
	world := walk.World{Snapshot: s, States: map[string]datapath.State{}}
	for _, n := range s.Nodes {
		state, _ := plan.Node(s, n.Name)
		for id, f := range state.Bridge.Flows.All() {
			if n.Name != "node-a" || f.Table != 0 || f.Match.InPort != "svc-host" {
				continue
			}
			found := &flow.Flow{Key: f.Key, Actions: []flow.Action{flow.UnknownActions{Text: actions}}}
			state.Bridge.Flows.Put(id, found)
		}
		world.States[n.Name] = state
	}
	real := demotest.Answer(t, walk.New(world), s, "host/node-a", "svc/default/hostself")
	if text := real.Text(explain.Form{All: true, Costs: true}); real.Good() || !strings.Contains(text, "Unknown: ") ||
		!strings.Contains(text, actions) {
		t.Errorf("the actions are not shown as unknown:\n%s", text)
	}
	if f := explain.FindFault(wanted, real); f == nil || f.Node != "node-a" ||
		!strings.Contains(f.Real, "unknown actions") {
		t.Errorf("the fault is %+v", f)
	}
	wellFormed(t, picture.SVG(real))
	if _, err := real.JSON(); err != nil {
		t.Error(err)
	}
}
