package explain_test

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/plan"
	"hairpin/walk"
	"hairpin/walk/explain"
	"hairpin/watch"
)

// A pod with two egress addresses leaves by the node that --via names, and the reply finds that node although nothing but
// the EgressIP says where its address is: nodes are planned when a packet comes to them.
func TestEgress(t *testing.T) {
	text, err := os.ReadFile("../../plan/testdata/egressip.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var s *cluster.Snapshot
	for _, f := range txtar.Parse(text).Files {
		if f.Name == "objects.yaml" {
			s = watch.ParseManifests(f.Data, cluster.DefaultConfig())
		}
	}
	assigned := s.EgressIPs[0].Assigned
	if len(assigned) < 2 {
		t.Fatalf("%d addresses are assigned", len(assigned))
	}
	for _, a := range assigned {
		if a.Address.Is6() {
			continue
		}
		w := walk.New(walk.World{Snapshot: s, Lookup: func(node string) (datapath.State, bool) {
			state, _ := plan.Node(s, node)
			return state, state.NB != nil
		}})
		e, err := explain.Ask(w, s, explain.Question{From: "pod/default/web-1", To: "172.18.0.100:9000", Via: a.Node})
		if err != nil {
			t.Fatal(err)
		}
		if v := e.Trace.Verdict; !e.Good() || v.Seen.Src != a.Address || v.At != (walk.Point{}) {
			t.Errorf("via %s it should be seen as %s:\n%s", a.Node, a.Address, e.Text(false))
		}
	}
}
