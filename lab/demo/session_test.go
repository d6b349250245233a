package demo

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"hairpin/lab"
	"hairpin/lab/session"
)

// documented checks that a demo node prints what README.md and docs/user/explain.md show.
func documented(t *testing.T, n *lab.Node) {
	t.Helper()
	prints := func(s session.Session) {
		t.Helper()
		out, err := n.Exec(t.Context(), strings.Fields(s.Command)...)
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if !s.Same(out) {
			t.Errorf("%s: the document shows\n%s\nand it prints\n%s", s.Command, s.Printed, out)
		}
	}
	flow := func(args ...string) {
		t.Helper()
		if _, err := n.Exec(t.Context(), append([]string{"ovs-ofctl"}, args...)...); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.Exec(t.Context(), "hairpin", "status", "--wait=1m"); err != nil {
		t.Fatal(err)
	}
	prints(session.Read(t, "../../README.md", "hairpin status")[0])
	sends := session.Read(t, "../../docs/user/explain.md", "hairpin explain --send ")
	prints(sends[0])
	flow("add-flow", "br-svc", "table=30,priority=40000,ip,actions=drop")
	prints(sends[1])
	flow("--strict", "del-flows", "br-svc", "table=30,priority=40000,ip")
}
