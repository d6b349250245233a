package agent

import (
	"testing"

	"hairpin/egress/wire"
)

// TestClaimed: the inbox holds a limited number of claims.
func TestClaimed(t *testing.T) {
	dropped := 0
	e := &egressSide{inbox: newInbox(), dropped: func() { dropped++ }}
	e.claimed(make([]wire.Claim, 1))
	e.claimed(make([]wire.Claim, wire.MostClaims))
	if n := len(e.inbox.take().claims); n != wire.MostClaims || dropped != 1 {
		t.Errorf("the inbox has %d, %d are dropped", n, dropped)
	}
}
