package agent_test

import (
	"errors"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/demo"
)

// TestEgressOVNHangs: addresses move away from a node on which OVN hangs, and so does not remove
// them. The node stops answering for them, because the flows of its gateway bridge do.
func TestEgressOVNHangs(t *testing.T) {
	t.Parallel()
	g := startEgress(t, "")
	ctx, l := t.Context(), g.Demo().Lab()
	client := l.Host("client")
	six, err := g.Other(ctx, netip.MustParseAddr("fc00:f853:ccd::64"), "fc00:f853:ccd::33")
	noError(t, err)
	p, err := g.Pooled(ctx, "172.18.0.55")
	noError(t, err)
	addresses := map[string]*asker{}
	for _, a := range []string{"172.18.0.33", "fc00:f853:ccd::33", "172.18.0.55"} {
		addresses[a] = askAll(t, client, netip.MustParseAddr(a))
	}
	has := func(node string) error {
		return errors.Join(g.Nodes(ctx, node), six.Nodes(ctx, node), p.Nodes(ctx, node))
	}
	only := func(what, node string) {
		t.Helper()
		noError(t, has(node))
		for _, x := range addresses {
			x.only(t, what, map[string]cluster.MAC{demo.EgressStays: macStays, demo.EgressDies: macDies}[node])
		}
	}
	n := l.Node(demo.EgressDies)
	for _, daemon := range []string{lab.Controller, lab.Northd} {
		noError(t, errors.Join(g.Both(ctx), g.Label(ctx, demo.EgressStays, false)))
		only("one node has the addresses", demo.EgressDies)
		noError(t, errors.Join(g.Label(ctx, demo.EgressStays, true), g.Both(ctx)))
		for _, x := range addresses {
			x.reset()
		}
		noError(t, n.Signal(daemon, syscall.SIGSTOP))
		resume := sync.OnceFunc(func() { noError(t, n.Signal(daemon, syscall.SIGCONT)) })
		t.Cleanup(resume)
		noError(t, g.Label(ctx, demo.EgressDies, false))
		noError(t, has(demo.EgressStays))
		ends := time.Now().Add(6 * time.Second) // a move takes five
		only("another node has the addresses", demo.EgressStays)
		noError(t, errors.Join(g.See(ctx, "172.18.0.33"), six.See(ctx, "fc00:f853:ccd::33")))
		addressAnswers(t, p)
		time.Sleep(time.Until(ends))
		for a, x := range addresses {
			both := x.both()
			t.Logf("%s stopped: two nodes answered for %s for %v", daemon, a, both)
			if both > time.Second {
				t.Error("for longer than a second")
			}
		}
		resume()
		noError(t, g.Label(ctx, demo.EgressDies, true))
	}
}
