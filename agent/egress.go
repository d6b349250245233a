package agent

import (
	"context"
	"maps"
	"time"

	"hairpin/cluster"
	"hairpin/egress/view"
	"hairpin/egress/wire"
	"hairpin/kube"
	"hairpin/kubeapi"
	"hairpin/ops"
)

// reasonConflict is the reason of Events on EgressIPs of which another machine has an address.
const reasonConflict = "AddressConflict"

// egressReason returns the reason of a problem's Event.
func egressReason(p cluster.Problem) string {
	if p.Owner.Kind == "EgressIP" {
		return reasonConflict
	}
	return kube.ReasonProblem
}

// startEgress starts the prober of other nodes, and the listener for claims to this node's egress addresses.
func (a *agent) startEgress(ctx context.Context, client *kubeapi.Client, start func(func())) {
	v := view.NewVerifier(client, func(w view.Verdict) { a.inbox.enqueue(func(m *events) { m.verdicts = append(m.verdicts, w) }) }, a.dropClaim)
	a.egress.Verify = v.Ask
	start(func() { v.Run(ctx) })
	start(func() { a.prober.Run(ctx) })
	start(func() { follow(ctx, a.inbox, a.prober.Changed.C(), func(m *events, _ struct{}) { m.news = true }) })
	start(func() { a.listener.Run(ctx) })
	start(func() { a.neighbors.Run(ctx) })
}

func (a *agent) dropClaim() { a.meters.Count(ops.ClaimsDropped) }

// claimed takes claims for the next round, so many as it can hold.
func (a *agent) claimed(list []wire.Claim) {
	a.inbox.enqueue(func(m *events) {
		room := min(len(list), max(0, wire.MostClaims-len(m.claims)))
		for range list[room:] {
			a.dropClaim()
		}
		m.claims = append(m.claims, list[:room]...)
	})
}

// seeEgress takes what is known of the cluster as this agent sees it. It tells when it wants to be called again.
func (a *agent) seeEgress(now time.Time, m *events) time.Duration {
	for _, c := range m.claims {
		if a.egress.OnClaim(now, c) {
			a.carried.Defend(now, c.Address)
		}
	}
	for _, w := range m.verdicts {
		if a.egress.OnVerdict(now, w) {
			a.carried.Defend(now, w.Address)
		}
	}
	seen, again := a.egress.See(now, m.snapshot)
	m.news = m.news || seen != a.snapshot
	a.snapshot, a.sourceErr = seen, m.sourceErr
	return again
}

// announceEgress announces new egress addresses, and listens for conflicting claims. It says when it wants to
// be called again.
func (a *agent) announceEgress(now time.Time) time.Duration {
	g := a.local.Own.Gateway
	a.neighbors.Expect(g, a.node, a.snapshot.EgressIPs)
	wait, err := a.carried.Announce(now, a.local.Own, a.snapshot.EgressIPs, a.want.Host.Addresses)
	if err != nil {
		a.log.Warn("egress addresses", "error", err)
	}
	o := wire.Own{Bridge: g.Bridge, MAC: g.MAC, Addresses: a.carried.Own()}
	if old := a.listener.Own.Load(); old == nil || old.Bridge != o.Bridge || old.MAC != o.MAC || !maps.Equal(old.Addresses, o.Addresses) {
		a.listener.Expect(&o)
	}
	return wait
}
