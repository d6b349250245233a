package agent

import (
	"net/netip"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/egress/wire"
	"hairpin/report"
)

// TestClaimed: the inbox holds a limited number of claims.
func TestClaimed(t *testing.T) {
	dropped := 0
	e := &egressHandler{inbox: newInbox(), countDropped: func() { dropped++ }}
	e.enqueueClaims(make([]wire.Claim, 1))
	e.enqueueClaims(make([]wire.Claim, wire.MaxClaims))
	if n := len(e.inbox.take().claims); n != wire.MaxClaims || dropped != 1 {
		t.Errorf("the inbox has %d, %d are dropped", n, dropped)
	}
}

// TestEgressSince: a node has an address since the Snapshot in which it got it.
func TestEgressSince(t *testing.T) {
	a := netip.MustParseAddr("172.18.0.33")
	on := func(node string) *cluster.Snapshot {
		return &cluster.Snapshot{EgressIPs: []*cluster.EgressIP{{
			Assigned: []cluster.Assignment{{Address: a, Node: node}}}}}
	}
	begun := time.Unix(1000, 0)
	var c egressCarriers
	for i, x := range []struct {
		node string
		want time.Time
	}{{"a", time.Time{}}, {"a", time.Time{}}, {"b", begun.Add(2)}, {"b", begun.Add(2)}, {"a", begun.Add(4)}} {
		c = c.next(begun.Add(time.Duration(i)), on(x.node))
		list := []report.Egress{{Address: a.String(), Node: x.node}, {Address: a.String(), Node: "other"},
			{Address: "-"}}
		if c.setSince(list); !list[0].Since.Equal(x.want) || !list[1].Since.IsZero() || !list[2].Since.IsZero() {
			t.Errorf("%d: %v", i, list)
		}
	}
}
