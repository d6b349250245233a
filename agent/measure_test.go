package agent

import (
	"net/netip"
	"testing"
	"time"

	"hairpin/cluster"
)

func TestWithoutLocal(t *testing.T) {
	service := func(name string, local bool, nodes ...string) *cluster.Frontend {
		f := &cluster.Frontend{Owner: cluster.Owner{Kind: "Service", Name: name}, ExternalLocal: local}
		for _, n := range nodes {
			f.Backends = append(f.Backends, cluster.Backend{Addr: netip.MustParseAddr("10.244.1.2"), Node: n,
				Ready: true})
		}
		return f
	}
	s := &cluster.Snapshot{Nodes: []*cluster.Node{{Name: "n"}}, Frontends: []*cluster.Frontend{
		service("here", true, "m", "n"), service("elsewhere", true, "m"), service("cluster", false, "m"),
		service("none", true), service("two ports", true, "m"), service("two ports", true, "n")}}
	if got := withoutLocal(s, "n"); got != 1 {
		t.Errorf("%d Services are without a local endpoint, not 1", got)
	}
}

// TestMoveIsMeasured checks that only addresses count which the node got after the agent's start,
// each once.
func TestMoveIsMeasured(t *testing.T) {
	var samples []time.Duration
	e := &egressHandler{node: "n", observeMove: func(d time.Duration) { samples = append(samples, d) }}
	with := func(addresses ...string) *cluster.Snapshot {
		x := &cluster.EgressIP{}
		for _, a := range addresses {
			x.Assigned = append(x.Assigned, cluster.Assignment{Address: netip.MustParseAddr(a), Node: "n"})
		}
		return &cluster.Snapshot{EgressIPs: []*cluster.EgressIP{x}}
	}
	begin := time.Now()
	announce := func(after time.Duration, s *cluster.Snapshot) {
		before := e.announced.Addresses()
		// The mode has no uplink: nothing is sent.
		own := &cluster.Node{Name: "n", Gateway: cluster.Gateway{Bridge: "br-ex", Mode: "detached"}}
		if _, err := e.announced.Announce(begin.Add(after), own, s.EgressIPs, nil); err != nil {
			t.Fatal(err)
		}
		e.measureMoves(begin.Add(after), before)
	}
	first, second := with("192.0.2.1"), with("192.0.2.1", "192.0.2.2")
	e.record(begin, first)
	announce(time.Second, first)
	e.record(begin.Add(time.Minute), second)
	announce(time.Minute+time.Second, second)
	announce(time.Minute+2*time.Second, second)
	if len(samples) != 1 || samples[0] != time.Second {
		t.Errorf("samples are %v, not 1 s once", samples)
	}
}
