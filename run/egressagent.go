package run

import (
	"context"
	"maps"
	"time"

	"k8s.io/client-go/kubernetes"

	"hairpin/cluster"
)

// reasonConflict is the reason of Events on EgressIPs of which another machine has an address.
const reasonConflict = "AddressConflict"

// reason gives the reason of a problem's Event.
func (v *egressView) reason(p cluster.Problem) string {
	if p.Owner.Kind == "EgressIP" {
		return reasonConflict
	}
	return reasonProblem
}

// startEgress starts what finds out who else lives, and who else has this node's egress addresses.
func (a *agent) startEgress(ctx context.Context, client kubernetes.Interface, start func(func())) {
	v := newVerifier(client, a.inbox, func() { a.meters.count(claimsDropped) })
	a.egress.verify = v.ask
	start(func() { v.run(ctx) })
	start(func() { a.egress.prober.run(ctx) })
	start(func() { follow(ctx, a.inbox, a.egress.prober.changed, func(m *mail, _ struct{}) { m.news = true }) })
	start(func() { a.listener.run(ctx) })
	start(func() { a.neighbors.run(ctx) })
}

// seeEgress takes what is known of the cluster as this agent sees it. It tells when it wants to be called again.
func (a *agent) seeEgress(now time.Time, m *mail) time.Duration {
	for _, c := range m.claims {
		if a.egress.hear(now, c) {
			a.carried.defend(now, c.address)
		}
	}
	for _, w := range m.verdicts {
		if a.egress.judge(now, w) {
			a.carried.defend(now, w.address)
		}
	}
	seen, again := a.egress.see(now, m.snapshot)
	m.news = m.news || seen != a.snapshot
	a.snapshot, a.sourceErr = seen, m.sourceErr
	return again
}

// announceEgress announces egress addresses that have come, and listens for others who have them. It tells when it wants to
// be called again.
func (a *agent) announceEgress(now time.Time) time.Duration {
	g := a.local.own.Gateway
	a.neighbors.expect(g, a.node, a.snapshot.EgressIPs)
	wait, err := a.carried.announce(now, a.local.own, a.snapshot.EgressIPs, a.want.Host.Addresses)
	if err != nil {
		a.log.Warn("egress addresses", "error", err)
	}
	o := ownAddress{bridge: g.Bridge, mac: g.MAC, addresses: a.carried.own()}
	if old := a.listener.own.Load(); old == nil || old.bridge != o.bridge || old.mac != o.mac || !maps.Equal(old.addresses, o.addresses) {
		a.listener.expect(&o)
	}
	return wait
}
