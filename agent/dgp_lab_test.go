package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/probe"
)

// TestNodeLocal: with node-local = dgp, the host reaches Services by the management port, and
// itself by the distributed gateway port. The agent restores what other programs remove of that. A
// restart of the agent interrupts nothing. The option can be changed under traffic. Without it, and
// after cleanup, nothing of it remains.
func TestNodeLocal(t *testing.T) {
	for _, mode := range []string{cluster.ModeShared, cluster.ModeLocal, cluster.ModeDetached} {
		t.Run(mode, func(t *testing.T) { testNodeLocal(t, mode) })
	}
}

func testNodeLocal(t *testing.T, mode string) {
	l := startDemoIn(t, mode, "[gateway]", "node-local = dgp", "[default]", "service-engine = "+cluster.EngineOVN)
	a := l.Node("node-a")
	waitServes(t, a)
	ways := paths(t, l)
	there := func(when string, want bool) {
		t.Helper()
		bridges := strings.Fields(sh(t, a, "ovs-vsctl list-br"))
		link := sh(t, a, "ip -br link show dev ovn-k8s-gw0 2>/dev/null || true")
		if has := strings.Contains(fmt.Sprint(bridges), "br-local"); has != want || (link != "") != want {
			t.Errorf("%s: bridges %v, link %q", when, bridges, link)
		}
	}
	there("at first", true)
	works(t, ways, "at first")

	for _, x := range []struct{ name, part, command string }{
		{"the translation's port", "ovn",
			"ovn-nbctl clear NAT $(ovn-nbctl --bare --columns=_uuid find NAT external_ip=169.254.0.3) gateway_port"},
		{"the translation's MAC", "ovn",
			"ovn-nbctl set NAT $(ovn-nbctl --bare --columns=_uuid find NAT external_ip=169.254.0.3) " +
				"'external_mac=\"0a:58:00:00:00:01\"'"},
		{"the port's node", "ovn", "ovn-nbctl lrp-del-gateway-chassis rtos-node_local_switch node-a"},
		{"the bridge's name for OVN", "openvswitch",
			"ovs-vsctl set Open_vSwitch . external_ids:ovn-bridge-mappings=physnet:br-ex"},
		{"the route", "host", "ip route del 10.96.0.0/16"},
		{"the neighbour", "host", "ip -6 neigh del fd6b::3 dev ovn-k8s-gw0"},
		{"the bridge", "openvswitch", "ovs-vsctl del-br br-local"},
	} {
		before := part(t, mustReport(t, a), x.part).Drift
		sh(t, a, x.command)
		eventually(t, 20*time.Second, "repair of "+x.name, func() (bool, string) {
			p := part(t, mustReport(t, a), x.part)
			return p.InSync && p.Drift > before, fmt.Sprintf("%+v", p)
		})
	}
	waitServes(t, a)
	allAnswer(t, ways, "after repairs")
	works(t, ways, "after repairs")

	if mode == cluster.ModeShared { // the same in all modes
		restartsWithDGP(t, a, ways)
	}

	for _, word := range []string{cluster.LocalPolicy, cluster.LocalDGP} {
		switches(t, a, ways, "node-local", word) // UDP clients continue to send from their ports
		bridgeIs(t, a, word == cluster.LocalDGP)
		there("switched to "+word, word == cluster.LocalDGP)
	}
	works(t, ways, "switched on again")

	if mode == cluster.ModeShared { // the other engine has another path, and reports that
		option(t, a, "service-engine", cluster.EngineOpenFlow)
		waitWell(t, a)
		bridgeIs(t, a, false)
		there("with "+cluster.EngineOpenFlow, false)
		if list := mustReport(t, a).Problems; !slices.ContainsFunc(list,
			func(p string) bool { return strings.Contains(p, "[gateway] node-local: dgp needs") }) {
			t.Errorf("with %s the problems are %q", cluster.EngineOpenFlow, list)
		}
	}

	noError(t, a.Kill(t.Context(), agent, syscall.SIGTERM))
	out, err := a.Exec(t.Context(), "hairpin", "cleanup", "--config-file", settings, "--bin-dir", "/var/empty")
	t.Log(out)
	noError(t, err)
	there("after cleanup", false)
}

// bridgeIs waits until the bridge is made or removed, which is shortly after the node is in sync.
func bridgeIs(t *testing.T, n *lab.Node, there bool) {
	t.Helper()
	eventually(t, 20*time.Second, "the bridge is made or removed", func() (bool, string) {
		out := sh(t, n, "ovs-vsctl list-br")
		return strings.Contains(out, "br-local") == there, out
	})
}

// restartsWithDGP replaces Open vSwitch, then the agent.
func restartsWithDGP(t *testing.T, n *lab.Node, ways []path) {
	t.Helper()
	replaceSwitch(t, n)
	waitServes(t, n)
	allAnswer(t, ways, "after a restart of Open vSwitch")
	works(t, ways, "after a restart of Open vSwitch")
	agentRestarts(t, n, ways)
}

// allAnswer waits until each path had a reply once: with a new bridge OVN is later than the agent,
// and a packet of UDP is not repeated.
func allAnswer(t *testing.T, ways []path, when string) {
	t.Helper()
	for _, w := range ways {
		eventually(t, 30*time.Second, w.name+" "+when, func() (bool, string) {
			got := lab.Get(t.Context(), w.from, probe.Request{Protocol: w.protocol, To: w.to, Timeout: 3 * time.Second})
			return got.Error == "", got.Error
		})
	}
}
