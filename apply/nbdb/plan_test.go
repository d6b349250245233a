package nbdb_test

import (
	"strings"
	"testing"

	"hairpin/apply"
	"hairpin/cluster"
	"hairpin/datapath/nb"
	"hairpin/plan"
	"hairpin/watch"
)

// TestPlannedStates checks that the databases accept plan's States of the demo's nodes, that
// ovn-northd understands them, and that ovn-nbctl makes the same rows.
func TestPlannedStates(t *testing.T) {
	s, err := watch.ReadFiles("../../examples/demo", cluster.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	typed, written := node(t), node(t)
	target := open(t, written)
	for i, n := range s.Nodes {
		n.Gateway.OpenFlow = i > 0 // the first node has OVN's load balancers, hence more rows
		state, _ := plan.Node(s, n.Name)
		want := state.NB
		if len(want) < 30 {
			t.Fatalf("%s: only %d rows planned", n.Name, len(want))
		}
		reach(t, target, want)
		isNow(t, target, want)
		if _, err := written.Exec(ctx(t), "ovn-nbctl", "--wait=sb", "--timeout=10", "sync"); err != nil {
			t.Fatalf("%s: ovn-northd does not come along: %v", n.Name, err)
		}
		if i > 0 {
			continue // ovn-nbctl takes ten seconds for one node's rows
		}

		sh(t, typed, script(nb.Print(want)))
		hand := open(t, typed)
		found, err := hand.ReadAll(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		for k, w := range want {
			if h := found[k]; h == nil || !nb.SameContent(w, h) {
				t.Errorf("%s\nmade %v", nb.Line(w), h)
			}
		}
		reach(t, hand, want)
		isNow(t, hand, want)
		reach(t, hand, nil) // all rows were taken over, so all are deleted
		if found, err = hand.ReadAll(ctx(t)); err != nil || len(found) > 1 {
			t.Errorf("%s: left: %v\n%s", n.Name, err, nb.Print(found))
		}
	}
	// ovn-northd may get a new chassis, over its other connection, after the port that refers to
	// it.
	log := sh(t, written,
		`grep -E '[|](WARN|ERR|EMER)[|]' /var/log/ovn/ovn-northd.log | grep -v -E '[|](timeval|poll_loop|coverage)[|]|Unknown chassis' || true`)
	if strings.TrimSpace(log) != "" {
		t.Errorf("ovn-northd complains:\n%s", log)
	}
}

// TestARestartWritesNothing checks that a new agent on an unchanged cluster reads once, writes
// nothing, and from then on compares pointers.
func TestARestartWritesNothing(t *testing.T) {
	s, err := watch.ReadFiles("../../examples/demo", cluster.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	s.Node("node-a").Gateway.OpenFlow = false // rows of load balancers as well
	n := node(t)
	first, _ := plan.Node(s, "node-a")
	if err := apply.NewPass(apply.Targets{NB: open(t, n)}).Run(ctx(t), first); err != nil {
		t.Fatal(err)
	}
	sh(t, n, `ovn-nbctl --wait=sb sync`)
	log := sh(t, n, `ovsdb-tool show-log /var/lib/ovn/ovnnb_db.db | tail -n 1`)

	target := open(t, n)
	pass := apply.NewPass(apply.Targets{NB: target})
	want, _ := plan.Node(s, "node-a")
	for range 2 {
		if err := pass.Run(ctx(t), want); err != nil {
			t.Fatal(err)
		}
	}
	st := pass.Status()[0]
	if st.Applies != 0 || st.Written != 0 || st.Drift != 0 || st.Errors != 0 || !st.InSync {
		t.Errorf("%+v", st)
	}
	if now := sh(t, n, `ovsdb-tool show-log /var/lib/ovn/ovnnb_db.db | tail -n 1`); now != log {
		t.Errorf("the database's log was\n%s\nand is\n%s", log, now)
	}
	have, err := target.Read(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	for k, w := range want.NB {
		if have[k] != w {
			t.Errorf("%s is equal, but another pointer", k)
		}
	}
	t.Logf("%d rows: %+v", len(want.NB), st)
}

// script returns a shell script of printed rows.
func script(printed string) string {
	var b strings.Builder
	for line := range strings.Lines(printed) {
		tool := "ovn-nbctl "
		if strings.HasPrefix(line, "chassis-add") {
			tool = "ovn-sbctl "
		}
		b.WriteString(tool + line)
	}
	return b.String()
}
