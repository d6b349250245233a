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
	"hairpin/walk/explain/question"
	"hairpin/watch"
)

// Packets can go outside the cluster: to a given port, or to that of HTTP.
func TestToOutside(t *testing.T) {
	w, s := demo(t)
	for _, c := range []struct{ to, want string }{
		{"outside/192.0.2.9", "outside 192.0.2.9:80"},
		{"outside/[2001:db8:9::9]:9000", "outside [2001:db8:9::9]:9000"},
		{"outside/2001:db8:9::9", "outside [2001:db8:9::9]:80"},
		{"outside", "outside 192.0.2.1:80"},
	} {
		e, err := explain.Ask(w, s, question.Question{From: "pod/default/pod-a1", To: c.to})
		if err != nil {
			t.Fatal(err)
		}
		if v := e.Trace.Verdict; e.Destination != c.want || !e.Good() || v.At != (walk.Point{}) {
			t.Errorf("%s: %s, not %s\n%s", c.to, e.Destination, c.want, e.Text(explain.Form{All: true, Costs: true}))
		}
	}
	for _, c := range []struct{ from, to, want string }{
		{"pod/default/pod-a1", "outside/172.18.0.3", `TO "outside/172.18.0.3": host/node-a has it`},
		{"pod/default/pod-a1", "outside/x", `TO "outside/x": "x" is not an address`},
		{"outside", "outside/192.0.2.9", `TO "outside/192.0.2.9": FROM is outside, too`},
	} {
		if _, err := explain.Ask(w, s, question.Question{From: c.from, To: c.to}); err == nil || err.Error() != c.want {
			t.Errorf("%s to %s: %v, not %s", c.from, c.to, err, c.want)
		}
	}
}

// A pod with two egress addresses leaves by the node that --via names. The reply finds that node
// although only the EgressIP says where its address is: nodes are planned when a packet reaches
// them.
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
		e, err := explain.Ask(w, s, question.Question{From: "pod/default/web-1", To: "outside/172.18.0.100:9000",
			Via: a.Node})
		if err != nil {
			t.Fatal(err)
		}
		if v := e.Trace.Verdict; !e.Good() || v.Seen.Src != a.Address || v.At != (walk.Point{}) {
			t.Errorf("via %s it should be seen as %s:\n%s", a.Node, a.Address,
				e.Text(explain.Form{All: true, Costs: true}))
		}
	}
}
