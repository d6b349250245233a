package agent

import (
	"testing"

	"hairpin/egress/wire"
	"hairpin/ops"
)

// TestClaimed: the inbox holds a limited number of claims.
func TestClaimed(t *testing.T) {
	a := &agent{inbox: newInbox()}
	a.meters = ops.NewMeters(ops.OfAgent, func(ops.Put) {})
	a.claimed(make([]wire.Claim, 1))
	a.claimed(make([]wire.Claim, wire.MostClaims))
	if n := len(a.inbox.take().claims); n != wire.MostClaims {
		t.Errorf("the inbox has %d", n)
	}
}
