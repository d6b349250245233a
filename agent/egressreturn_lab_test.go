package agent_test

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/demo"
)

// TestEgressReturn: a node is separated from the network until its addresses are on another node,
// and for so long that its connections to the API wait for a retransmission. When it returns, it
// answers for addresses that it no longer has: it has received neither the new status nor an
// announcement. Open vSwitch that was stopped receives some of them from buffers.
func TestEgressReturn(t *testing.T) {
	t.Parallel()
	g := startEgress(t, "[ovnkubernetesfeature]\negressip-reachability-total-timeout = 3\n")
	t.Run("without flows", func(t *testing.T) { startsWithoutFlows(t, g) })
	ctx, l := t.Context(), g.Demo().Lab()
	p, err := g.Pooled(ctx, "172.18.0.55")
	noError(t, err)
	addresses := map[string]*asker{}
	for _, a := range []string{"172.18.0.33", "172.18.0.55"} {
		addresses[a] = askAll(t, l.Host("client"), netip.MustParseAddr(a))
	}
	only := func(t *testing.T, what, node string) {
		t.Helper()
		noError(t, errors.Join(g.Nodes(ctx, node), p.Nodes(ctx, node)))
		for _, x := range addresses {
			x.only(t, what, map[string]cluster.MAC{demo.EgressStays: macStays, demo.EgressDies: macDies}[node])
		}
	}
	n := l.Node(demo.EgressDies)
	nft := func(commands string) error {
		_, err := l.Underlay().Exec(ctx, "nft", commands)
		return err
	}
	separate := func() error {
		return nft("add table bridge cut; add chain bridge cut f { type filter hook forward priority 0; }; " +
			"add rule bridge cut f iifname " + n.UnderlayPort() + " drop; " +
			"add rule bridge cut f oifname " + n.UnderlayPort() + " drop")
	}
	stop := func() error { return n.Signal(lab.VSwitchd, syscall.SIGSTOP) }
	proceed := func() error { return n.Signal(lab.VSwitchd, syscall.SIGCONT) }
	remove := func() error {
		_, err := n.Exec(ctx, "ovs-vsctl", "--no-wait", "del-port", claims.ManagementPort)
		return err
	}
	join := func() error { return nft("delete table bridge cut") }
	for _, c := range []struct {
		what       string
		begin, end func() error
		killed     bool // the agent of the other node
	}{
		{"separated", separate, join, false},
		{"separated, agent killed", separate, join, true},
		{"ovs-vswitchd stopped", stop, proceed, true},
		{"management port deleted first", func() error { return errors.Join(remove(), stop()) }, proceed, true},
		{"management port deleted afterwards", func() error { return errors.Join(stop(), remove()) }, proceed, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			noError(t, errors.Join(g.Both(ctx), g.Label(ctx, demo.EgressStays, false)))
			only(t, "one node has the addresses", demo.EgressDies)
			noError(t, errors.Join(g.Label(ctx, demo.EgressStays, true), g.Both(ctx)))
			began := time.Now()
			noError(t, c.begin())
			only(t, "another node has taken over", demo.EgressStays)
			time.Sleep(time.Until(began.Add(14 * time.Second)))
			for _, x := range addresses {
				x.reset()
			}
			noError(t, c.end())
			if c.killed {
				noError(t, l.Node(demo.EgressStays).Restart(ctx, agent, syscall.SIGKILL))
			}
			time.Sleep(3 * time.Second)
			only(t, "one node has the addresses again", demo.EgressStays)
			for a, x := range addresses {
				both := x.both()
				t.Logf("two nodes answered for %s for %v", a, both)
				if both > 2*time.Second {
					t.Error("for longer than two seconds")
				}
			}
		})
	}
}

// startsWithoutFlows: the flows of the gateway bridge are deleted before an agent that starts has
// read the cluster. The node gets its network back, and the agent reads the cluster.
func startsWithoutFlows(t *testing.T, g *demo.Egress) {
	n := g.Demo().Lab().Node(demo.EgressStays)
	waitWell(t, n)
	join := cutAPI(t, n)
	noError(t, n.Restart(t.Context(), agent, syscall.SIGKILL))
	eventually(t, 20*time.Second, "the agent runs, and cannot read the cluster", func() (bool, string) {
		out, err := n.Exec(t.Context(), agent, "probe", "livez")
		return err == nil, out
	})
	sh(t, n, "ovs-ofctl del-flows br-ex")
	join()
	waitWell(t, n)
	noError(t, g.Both(t.Context()))
}
