package ui_test

import (
	"io"
	"net/netip"
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/ui"
	"hairpin/walk"
	"hairpin/walk/explain"
	"hairpin/walk/explain/question"
	"hairpin/watch"
)

// TestExplainMoves checks walks while an egress address moves: the new node forwards unknown
// packets to the old one. Only the agents know of moves, and each one's data applies to its own
// node.
func TestExplainMoves(t *testing.T) {
	s, err := watch.ReadFiles("../examples/demo", cluster.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	address := netip.MustParseAddr("172.18.0.33")
	e := &cluster.EgressIP{Owner: cluster.Owner{Kind: "EgressIP", Name: "moves"}, Addresses: []netip.Addr{address},
		Assigned: []cluster.Assignment{{Address: address, Node: "node-b"}}}
	moved := *e
	moved.Moving = []cluster.Move{{Address: address, From: "node-a", To: "node-b"}}
	api, agent := *s, *s
	api.EgressIPs, agent.EgressIPs = []*cluster.EgressIP{e}, []*cluster.EgressIP{&moved}
	for _, c := range []struct {
		node string
		sent bool
	}{{"node-b", true}, {"node-c", false}} {
		world := ui.Planned(io.Discard, ui.WithOwn(&api, &agent, c.node))
		q := question.Question{From: "outside", To: "172.18.0.33:9000", Via: "node-b"}
		x, err := explain.Ask(walk.New(world), world.Snapshot, q)
		if err != nil {
			t.Fatal(err)
		}
		if sent := strings.Contains(x.Text(explain.Form{All: true, Costs: true}),
			"table=1,priority=60,ct_state=+new+trk"); sent != c.sent {
			t.Errorf("by the agent of %s: sent on %v\n%s", c.node, sent, x.Text(explain.Form{All: true, Costs: true}))
		}
	}
}
