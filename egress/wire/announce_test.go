package wire

import (
	"net/netip"
	"testing"
	"time"

	"hairpin/cluster"
)

// TestAnnouncedAfterPause: after its start, and if it did not run when an announcement was due, an
// agent waits for claims of other nodes once before it announces. It announces a new address at
// once, and again after a claim. The mode has no uplink, so nothing is sent.
func TestAnnouncedAfterPause(t *testing.T) {
	own := &cluster.Node{Name: "n", Gateway: cluster.Gateway{Bridge: "br-ex", Mode: cluster.ModeDetached}}
	x, now, c := &cluster.EgressIP{}, time.Now(), Announced{}
	has := func(a string) netip.Addr {
		item := cluster.Assignment{Address: netip.MustParseAddr(a), Node: own.Name}
		x.Assigned = []cluster.Assignment{item}
		return item.Address
	}
	next := func(after, want time.Duration, why string) {
		t.Helper()
		now = now.Add(after)
		again, err := c.Announce(now, own, []*cluster.EgressIP{x}, nil)
		if err != nil || again != want {
			t.Errorf("%s: again after %v, not %v; %v", why, again, want, err)
		}
	}
	has("192.0.2.1")
	next(0, egressListen, "start")
	next(egressListen, egressAnnounceAgain, "announced")
	next(egressAnnounceAgain, 2*egressAnnounceAgain, "and again")
	next(time.Minute, egressListen, "the agent did not run")
	next(time.Minute, 4*egressAnnounceAgain, "nor now, but it waits only once")
	a := has("192.0.2.2")
	next(0, egressAnnounceAgain, "new")
	next(egressAnnounceAgain, 2*egressAnnounceAgain, "and again")
	c.Defend(now.Add(time.Second), a)
	next(time.Minute, 4*egressAnnounceAgain, "another node claimed it")
}
