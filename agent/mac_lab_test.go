package agent_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"hairpin/lab"
)

// TestBridgesAddress: Open vSwitch makes the gateway bridge's device with an Ethernet address of
// its own choice, and sets the wanted one afterwards. The tunnels of a node that learned the first
// in between use the second as soon as the bridge forwards.
func TestBridgesAddress(t *testing.T) {
	t.Parallel()
	l := startDemo(t)
	n, b := l.Node("node-a"), l.Node("node-b")
	if b.Datapath() != "netdev" {
		t.Skip("the kernel's neighbours are asked again")
	}
	waitWell(t, n)
	ways := paths(t, l)
	const first = "2e:31:b7:b6:9a:77"
	noError(t, n.Kill(t.Context(), lab.VSwitchd, syscall.SIGKILL))
	sh(t, b, "ovs-appctl tnl/neigh/set br-ex 172.18.0.3 "+first)
	if known := sh(t, b, "ovs-appctl tnl/neigh/show"); !strings.Contains(known, first) {
		t.Fatal(known)
	}
	before := mustReport(t, n).Restarts
	noError(t, n.Start(t.Context(), lab.VSwitchd))
	waitRestarted(t, n, before)
	took := eventually(t, 40*time.Second, "the tunnel goes to the second", func() (bool, string) {
		known := sh(t, b, "ovs-appctl tnl/neigh/show")
		return !strings.Contains(known, first), known
	})
	t.Logf("%v later; serves after %v", took, serves(t, ways, slack*2*time.Second))
	waitWell(t, n)
}
