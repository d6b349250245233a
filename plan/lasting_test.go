package plan_test

import (
	"cmp"
	"net/netip"
	"testing"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/conn"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/pipeline"
	"hairpin/plan"
)

// A change of a Service except its NodePort and endpoints does not affect NodePort connections:
//   - Hosts translate them to the same address, and no UDP connection is ended.
//   - No pod's open connection matches other flows.
//   - The gateway router still translates connections to the proxy addresses.
func TestNodePortConnectionsOutlastChanges(t *testing.T) {
	for mode, flows := range everyEngine {
		before := demoIn(t, mode, flows)
		for name, change := range map[string]func(*cluster.Frontend){
			"port":                  func(f *cluster.Frontend) { f.Port += 1000 },
			"internalTrafficPolicy": func(f *cluster.Frontend) { f.InternalLocal = !f.InternalLocal },
			"externalTrafficPolicy": func(f *cluster.Frontend) { f.ExternalLocal = !f.ExternalLocal },
			"sessionAffinity":       func(f *cluster.Frontend) { f.Affinity = 10800 - f.Affinity },
			"type": func(f *cluster.Frontend) {
				f.NodePort = cmp.Or(f.NodePort, 20000+
					uint16(f.ClusterIP.As16()[15]))
			},
			"externalIPs": func(f *cluster.Frontend) { f.ExternalIPs = nil },
		} {
			s := *before.Snapshot
			s.Frontends = nil
			ports, ips, external := map[uint16]bool{}, map[netip.Addr]bool{}, map[netip.Addr]bool{}
			for _, f := range before.Snapshot.Frontends {
				changed := *f
				if change(&changed); f.NodePort != 0 {
					ports[f.NodePort], ips[f.ClusterIP] = true, true
				}
				for _, a := range f.ExternalIPs {
					external[a] = changed.Port == f.Port
				}
				s.Frontends = append(s.Frontends, &changed)
			}
			for _, n := range s.Nodes {
				old := before.States[n.Name]
				now, _ := plan.Node(&s, n.Name)
				for _, ways := range []string{"nodeports4", "nodeports6"} {
					was := old.NFT[nft.Inet].Maps[ways].Elements
					for key, to := range now.NFT[nft.Inet].Maps[ways].Elements.All() {
						if from, there := was.Get(key); there && from != to {
							t.Errorf("%s, %s changes on %s: %s port %d went to %v and goes to %v", mode, name, n.Name,
								key.Protocol, key.Port, from.Addr, to.Addr)
						}
					}
				}
				for id, f := range old.Bridge.Flows.All() { // a pod's open connections match no others
					if g := now.Bridge.Flows.At(id); f.Bridge == claims.ServiceBridge &&
						f.Table != pipeline.SvcServiceLB && f.Table != pipeline.SvcEndpointDNAT &&
						name != "externalIPs" && (g == nil || !g.Equal(f)) {
						t.Errorf("%s, %s changes on %s: %s is %v", mode, name, n.Name, f, g)
					}
				}
				for _, p := range conn.Diff(now.Conn, old.Conn).Dead {
					// An older agent translated connections to cluster IPs.
					if (ports[p.VIP.Port()] || external[p.VIP.Addr()]) && !ips[p.To.Addr()] {
						t.Errorf("%s, %s changes on %s: connections to %v by %v are ended", mode, name, n.Name, p.VIP,
							p.To)
					}
				}
			}
		}
		s := *before.Snapshot
		s.Frontends = nil
		for _, n := range s.Nodes {
			state, _ := plan.Node(&s, n.Name)
			if n.Gateway.OpenFlow { // its flows match established connections
				continue
			}
			held, dropped := map[string]bool{}, map[string]bool{}
			for _, row := range state.NB {
				switch row := row.(type) {
				case *nb.LoadBalancer:
					for _, v := range row.VIPs {
						held[v.Addr.Addr().String()] = true
					}
				case *nb.Policy:
					if row.Action == nb.Drop && row.Router == "GR_"+n.Name {
						dropped[row.Match] = true
					}
				}
			}
			for _, a := range []string{"169.254.169.3", "169.254.169.6", "fd69::3", "fd69::6"} {
				if !held[a] {
					t.Errorf("%s: without Services, the gateway router of %s does not know %s", mode, n.Name, a)
				}
			}
			// It drops them before it commits a connection that it could not translate later.
			for _, m := range []string{"ip4.dst == 10.96.0.0/16", "ip4.dst == 169.254.169.6/32",
				"ip6.dst == fd69::6/128"} {
				if !dropped[m] {
					t.Errorf("%s: the gateway router of %s does not drop %s, which is no Service's: %v", mode, n.Name,
						m, dropped)
				}
			}
		}
	}
}
