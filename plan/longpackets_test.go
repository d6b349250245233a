package plan_test

import (
	"net/netip"
	"slices"
	"testing"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/pipeline"
	"hairpin/plan"
)

// TestLongPackets: the gateway bridge sends packets that are too long for pods to the host only if
// a pod may get them. The host's route to clients of its endpoints has the MTU of the links on
// which they arrive. Otherwise the host would report the pods' MTU to the hosts of other nodes.
func TestLongPackets(t *testing.T) {
	const mtu = 1450
	w := demoWith(t, cluster.ModeShared, true, "")
	s := *w.Snapshot
	s.Nodes = slices.Clone(s.Nodes)
	for i, n := range s.Nodes {
		changed := *n
		changed.Gateway.MTU = mtu
		s.Nodes[i] = &changed
	}
	state, problems := plan.Node(&s, "node-b")
	for _, p := range problems {
		t.Log(p)
	}
	checked := map[uint16]bool{} // by NodePort, whether the length matters
	for _, f := range state.Bridge.Flows.All() {
		k := f.Key
		if k.Table == pipeline.GatewayServices && k.Match.Protocol == flow.UDP &&
			k.Match.Dst == prefix("172.18.0.4/32") {
			checked[k.Match.DstPort] = slices.ContainsFunc(f.Actions, func(a flow.Action) bool {
				_, is := a.(flow.MarkLonger)
				return is
			})
		}
	}
	for name, want := range map[string]bool{
		"podlocal": true, "podremote": true, "web": true, "hostself": false, "hostother": false,
	} {
		i := slices.IndexFunc(s.Frontends, func(f *cluster.Frontend) bool {
			return f.Owner.Name == name && f.Protocol == cluster.UDP && f.Family == cluster.IPv4
		})
		if got, there := checked[s.Frontends[i].NodePort]; !there || got != want {
			t.Errorf("%s: there is a flow: %t; the length decides: %t, want %t", name, there, got, want)
		}
	}
	for to, want := range map[string]int{
		"169.254.169.1/32": mtu, "fd69::1/128": mtu,
		"169.254.169.6/32": podsMTU, "10.96.0.0/16": podsMTU, "fd00:10:96::/112": podsMTU,
	} {
		r := state.Host.Routes[host.RouteKey{Table: 254, Prefix: netip.MustParsePrefix(to)}]
		mss := 0
		if want != podsMTU { // TCP segments must still fit the routes to Services
			mss = podsMTU - 40
			if r.Prefix.Addr().Is6() {
				mss -= 20
			}
		}
		if r.MTU != want || r.AdvMSS != mss || r.Link != claims.ServiceHost {
			t.Errorf("the route to %s is by %s, with an MTU of %d and an MSS of %d; want %d and %d", to, r.Link, r.MTU,
				r.AdvMSS, want, mss)
		}
	}
}

const podsMTU = 1400
