package wire

import (
	"net/netip"
	"testing"
	"time"

	"hairpin/cluster"
)

// TestClaimBatch: the agent gets claims a few times a second: the first at once, and a limited
// number.
func TestClaimBatch(t *testing.T) {
	dropped, told := 0, 0
	tell := func(list []Claim) { told += len(list) }
	w, now := claimBatch{drop: func() { dropped++ }}, time.Now()
	flood := func(n int) {
		for i := range n {
			w.add(Claim{Address: netip.MustParseAddr("172.18.0.33"),
				MAC: cluster.MAC{2, 0, 0, byte(i >> 16), byte(i >> 8), byte(i)}})
		}
	}
	flood(1)
	if wait := w.flush(now, tell); wait != listenAgain || told != 1 {
		t.Errorf("the first: %v, %d", wait, told)
	}
	flood(10 * MaxClaims)
	if wait := w.flush(now, tell); wait != claimsEvery || told != 1 {
		t.Errorf("a moment later: %v, %d", wait, told)
	}
	if w.flush(now.Add(claimsEvery), tell); told != 1+MaxClaims || dropped != 9*MaxClaims {
		t.Errorf("the agent has %d, %d were dropped", told, dropped)
	}
}
