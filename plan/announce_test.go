package plan_test

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"hairpin/cluster"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/plan"
)

// TestAnnounce: the node of a load balancer address answers for it, by its gateway router or on the
// link of the address's network; other nodes do not.
func TestAnnounce(t *testing.T) {
	for _, c := range []struct {
		name, mode, address string
		router, link        string // has the address
	}{
		{"shared", cluster.ModeShared, "172.18.0.50", "GR_node-a", ""},
		{"local", cluster.ModeLocal, "172.18.0.50", "GR_node-a", ""},
		{"of no network", cluster.ModeShared, "203.0.113.20", "GR_node-a", ""},
		{"another link", cluster.ModeShared, "10.10.10.50", "", "eth1"},
		{"IPv6 on another link", cluster.ModeLocal, "fd10::50", "", "eth1"},
		{"detached", cluster.ModeDetached, "172.18.0.50", "", "eth0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := nodeIn(c.mode)
			a.Links = []cluster.HostLink{{Name: "eth1", Index: 3, MAC: cluster.MAC{2, 0, 10, 10, 10, 1},
				Addresses: []netip.Prefix{prefix("10.10.10.3/24"), prefix("fd10::3/64")}}}
			if c.mode == cluster.ModeDetached {
				a.Links = append([]cluster.HostLink{{Name: "eth0", Index: 2, MAC: cluster.MAC{2, 0, 10, 10, 10, 2},
					Addresses: []netip.Prefix{prefix("172.18.0.3/16")}}}, a.Links...)
			}
			s := snapshot(a, node("node-b", 2, 4))
			x := addr(c.address)
			s.EgressIPs = []*cluster.EgressIP{{
				Owner: cluster.Owner{Kind: "Service", Namespace: "default", Name: "web"}, Addresses: []netip.Addr{x},
				Assigned: []cluster.Assignment{{Address: x, Node: "node-a"}},
				Service:  &cluster.EgressService{Announced: &cluster.Announcement{}},
			}}
			for _, name := range []string{"node-a", "node-b"} {
				state, problems := plan.Node(s, name)
				if len(problems) > 0 {
					t.Fatal(problems)
				}
				router, link := "", ""
				for _, r := range state.NB {
					if n, ok := r.(*nb.NAT); ok && n.External == x {
						router = n.Router
						if n.Type != nb.SNAT || n.Match == "" || n.Logical.Addr() != x {
							t.Errorf("%+v may translate", n)
						}
					}
				}
				for k, h := range state.Host.Addresses {
					if k.Prefix.Addr() == x {
						link = k.Link
						if h.Deprecated != x.Is6() {
							t.Error("the host may choose it as its source")
						}
					}
				}
				wantRouter, wantLink := c.router, c.link
				if name == "node-b" {
					wantRouter, wantLink = "", ""
				}
				if router != wantRouter || link != wantLink {
					t.Errorf("on %s, %q and %q have it, not %q and %q", name, router, link, wantRouter, wantLink)
				}
				guarded := state.NFT[nft.Inet] != nil && state.NFT[nft.Inet].Chains["announced-input"] != nil
				if guarded != (wantLink != "") {
					t.Errorf("on %s, packets to other ports are dropped: %v", name, guarded)
				}
				if len(state.Host.Rules) > 0 && slices.ContainsFunc(slices.Collect(maps.Keys(state.Host.Rules)),
					func(r host.Rule) bool { return r.From.IsValid() }) {
					t.Error("pods leave by a rule")
				}
			}
		})
	}
}
