package plan_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/nb"
	"hairpin/plan"
	"hairpin/plan/service"
)

// unnumbered returns Services that need proxy ports, without NodePorts.
func unnumbered(from, to int) []any {
	var list []any
	for i := from; i < to; i++ {
		f := frontend(fmt.Sprintf("service-%05d", i), fmt.Sprintf("10.96.%d.%d:80", i/250, 1+i%250), 0,
			"10.244.1.3:8080")
		f.ExternalIPs = []netip.Addr{addr(fmt.Sprintf("192.%d.%d.7", 1+i/250, 1+i%250))}
		f.InternalLocal, f.ExternalLocal = true, true
		list = append(list, aged(f, -i, ""))
	}
	return list
}

// standIns returns the proxy ports of Services at an address, and fails if two have the same.
func standIns(t interface{ Fatalf(string, ...any) }, s datapath.State, all string) map[string]netip.AddrPort {
	of, who := map[string]netip.AddrPort{}, map[netip.AddrPort]string{}
	for _, r := range s.NB {
		lb, ok := r.(*nb.LoadBalancer)
		if !ok || lb.Name == "held" {
			continue
		}
		for _, v := range lb.VIPs {
			if v.Addr.Addr() != addr(all) {
				continue
			}
			if other := who[v.Addr]; other != "" {
				t.Fatalf("%s and %s have %s", other, lb.Name, v.Addr)
			}
			who[v.Addr], of[lb.Owner.Name] = lb.Name, v.Addr
		}
	}
	return of
}

// All of that many Services are served, each at its own port.
func TestManyServicesWithoutNodePorts(t *testing.T) {
	n := node("node-a", 1, 3)
	state, problems := plan.Node(snapshot(append(unnumbered(0, 30000), n)...), "node-a")
	if len(problems) > 0 {
		t.Fatalf("%d problems, such as %v", len(problems), problems[0])
	}
	for _, a := range []string{"169.254.169.3", "169.254.169.6"} {
		if got := len(standIns(t, state, a)); got != 30000 {
			t.Errorf("%d of 30000 Services are served at %s", got, a)
		}
	}
}

// No Service loses its port while others are added and removed, whether these are older or younger.
func TestProxyPortsStay(t *testing.T) {
	objects := unnumbered(0, 6000) // so many that the first choice of hundreds is taken
	p := plan.NewPlanner()
	ports := func(objects []any) map[string]netip.AddrPort {
		state, problems := p.Node(snapshot(append(slices.Clone(objects), node("node-a", 1, 3))...), "node-a")
		if len(problems) > 0 {
			t.Fatal(problems[0])
		}
		return standIns(t, state, "169.254.169.6")
	}
	before := ports(objects[100:5000])
	for _, x := range []struct {
		when string
		list []any
		same map[string]netip.AddrPort
	}{
		{"younger ones came", objects[100:], nil}, {"older ones came", objects, nil},
		{"younger ones went", objects[:5000], nil},
		{"older ones went", objects[100:5000], before},
	} {
		after := ports(x.list)
		if len(after) != len(x.list) {
			t.Fatalf("when %s: %d of %d are served", x.when, len(after), len(x.list))
		}
		for name, a := range before {
			if after[name] != a {
				t.Fatalf("%s had %s, and %s after %s", name, a, after[name], x.when)
			}
		}
	}
}

// The result of a Planner depends on the ports that it remembers, and on nothing else that it has
// seen, even if few ports are left.
func TestProxyPortsFollowFromServices(t *testing.T) {
	n := node("node-a", 1, 3)
	all := unnumbered(0, 3000)
	rapid.Check(t, func(t *rapid.T) {
		p := plan.NewPlanner()
		for range rapid.IntRange(1, 3).Draw(t, "steps") {
			from := rapid.IntRange(0, 2900).Draw(t, "from")
			objects := append([]any{n}, all[from:rapid.IntRange(from, 3000).Draw(t, "to")]...)
			if len(objects) > 1 && rapid.Bool().Draw(t, "node port") { // its number may be another Service's proxy port
				objects = append(objects,
					frontend("node-port", "10.97.0.1:80", uint16(rapid.IntRange(2, 29999).Draw(t, "number")),
						"10.244.1.3:8080"))
			}
			s := snapshot(objects...)
			again := plan.NewPlanner()
			again.Keep(p.ProxyPorts())
			state, problems := p.Node(s, "node-a")
			if had, want := service.ProxyPortsIn(state.NFT, &s.Config), p.ProxyPorts(); !maps.Equal(had, want) {
				t.Fatalf("the node has numbers %v, not %v", had, want)
			}
			standIns(t, state, "169.254.169.6")
			sameText(t, text(state, problems), text(again.Node(s, "node-a")))
		}
	})
}

// Of two ports with one name, the first is served, also at external addresses: only it has a proxy
// port. That stays so while the other one is added and removed.
func TestProxyPortOfFirstNamed(t *testing.T) {
	first, second := unnumbered(0, 1)[0].(*cluster.Frontend), unnumbered(0, 1)[0].(*cluster.Frontend)
	second.Port = 81
	p, n := plan.NewPlanner(), node("node-a", 1, 3)
	for i, list := range [][]any{{first}, {first, second}, {second}, {first, second}, {first}} {
		state, problems := p.Node(snapshot(append(list, n)...), "node-a")
		if len(problems) != len(list)-1 || len(standIns(t, state, "169.254.169.6")) != 1 {
			t.Errorf("step %d: served at %v, problems %v", i, standIns(t, state, "169.254.169.6"), problems)
		}
	}
}
