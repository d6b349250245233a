package agent_test

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"hairpin/cluster"
)

// TestTakeOver: mode detached does not change another program's bridge with a device, and reports
// it. With [gateway] take-over the device gets its network back, and everything works.
func TestTakeOver(t *testing.T) {
	l := startDemoIn(t, cluster.ModeDetached)
	a := l.Node("node-a")
	all := paths(t, l)
	own := slices.DeleteFunc(slices.Clone(all), func(p path) bool {
		return !strings.HasPrefix(p.name, "outside → host ") && !strings.HasPrefix(p.name, "host → outside ")
	})
	option(t, a, "mode", cluster.ModeShared)
	waitServes(t, a)
	noError(t, a.Kill(t.Context(), agent, syscall.SIGTERM))
	setting(t, a, "mode", cluster.ModeDetached)
	// now it is another program's
	sh(t, a,
		"ovs-vsctl remove Bridge br-ex external_ids hairpin-uplink -- remove Bridge br-ex "+
			"external_ids hairpin-uplink-had")
	noError(t, a.Start(t.Context(), agent))
	const problem = "mode detached has none, but eth0 is a port of bridge br-ex"
	if err := a.WaitFor(t.Context(), time.Minute, func(out string) bool { return strings.Contains(out, problem) }, "sh",
		"-c", "hairpin status || true"); err != nil {
		t.Fatal(err)
	}
	sh(t, a, "ovs-vsctl list-ports br-ex | grep -x eth0; ip -o addr show dev br-ex | grep 172.18.0.")
	o := under(t, own, func(f traffic) {
		setting(t, a, "mode", cluster.ModeDetached+`\ntake-over = true`)
		noError(t, a.Restart(t.Context(), agent, syscall.SIGTERM))
		taken := func(string) bool { return true }
		if err := a.WaitFor(t.Context(), time.Minute, taken, "sh", "-ec",
			"ip -o addr show dev eth0 | grep 172.18.0.; ip -o addr show dev br-ex | grep 10.44.0.0"); err != nil {
			t.Fatal(err)
		}
		waitServes(t, a)
		f.flows(more)
	})
	t.Logf("taken over: %s", o)
	o.allWell(t)
	sh(t, a,
		`test -z "$(ovs-vsctl list-ports br-ex | grep -x eth0)"; test "$(ovs-vsctl get Bridge br-ex external_ids:hairpin-detached)" = '"true"'`)
	works(t, all, "taken over")
}
