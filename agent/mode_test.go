package agent_test

import (
	"slices"
	"strings"
	"testing"

	"hairpin/cluster"
)

// TestModes: a detached node survives a restart of Open vSwitch, and its own network continues
// while the node moves to other gateway modes and back.
func TestModes(t *testing.T) {
	l := startDemoIn(t, cluster.ModeDetached)
	a := l.Node("node-a")
	all := paths(t, l)
	own := slices.DeleteFunc(slices.Clone(all), func(p path) bool {
		return !strings.HasPrefix(p.name, "outside → host ") && !strings.HasPrefix(p.name, "host → outside ")
	})

	o := under(t, own, func(traffic) {
		replaceSwitch(t, a) // until it ends, the agent may not know of it
		waitWell(t, a)
	})
	t.Logf("Open vSwitch restarted: %s", o)
	o.allWell(t)
	works(t, all, "after the restart")

	sh(t, a, "ip route del default; ip -6 route del default")
	waitWell(t, a)
	works(t, all, "without a default gateway")
	sh(t, a, "ip route add default via 172.18.0.1 dev eth0; ip -6 route add default via fc00:f853:ccd::1 dev eth0")

	for _, mode := range []string{cluster.ModeLocal, cluster.ModeShared, cluster.ModeDetached} {
		o := under(t, own, func(f traffic) {
			option(t, a, "mode", mode)
			f.flows(more) // in the new mode
		})
		t.Logf("moved to %s: %s", mode, o)
		o.allWell(t)
		works(t, all, "in mode "+mode)
	}
}

// works tests all paths for a moment.
func works(t *testing.T, ways []path, when string) {
	t.Helper()
	o := under(t, ways, func(f traffic) { f.flows(more) })
	t.Logf("%s: %s", when, o)
	o.allWell(t)
	if o.opened == 0 || o.udpSent == o.udpLost {
		t.Errorf("%s nothing arrives: %s", when, o)
	}
}
