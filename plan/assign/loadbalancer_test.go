package assign_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/cluster/trust"
	"hairpin/plan/assign"
)

// loadBalancer makes a Service of the namespace default; age orders them, 0 is the oldest.
func loadBalancer(name string, age int, edit ...func(*cluster.LoadBalancer)) *cluster.LoadBalancer {
	l := &cluster.LoadBalancer{Owner: cluster.Owner{Kind: "Service", Namespace: "default", Name: name}, UID: name,
		Created: time.Unix(int64(1000+age), 0), Families: []cluster.Family{cluster.IPv4},
		Ports: []cluster.LoadBalancerPort{{Protocol: cluster.TCP, Port: 80}}}
	for _, e := range edit {
		e(l)
	}
	return l
}

func wants(addresses ...string) func(*cluster.LoadBalancer) {
	return func(l *cluster.LoadBalancer) {
		for _, a := range addresses {
			l.Requested = append(l.Requested, addr(a))
		}
	}
}

func ingress(addresses ...string) func(*cluster.LoadBalancer) {
	return func(l *cluster.LoadBalancer) {
		for _, a := range addresses {
			l.Ingress = append(l.Ingress, addr(a))
		}
	}
}

func key(key string, port uint16) func(*cluster.LoadBalancer) {
	return func(l *cluster.LoadBalancer) { l.Sharing, l.Ports[0].Port = key, port }
}

// egress makes the request of an EgressIP.
func egress(pool string) func(*cluster.LoadBalancer) {
	return func(l *cluster.LoadBalancer) {
		l.Owner, l.Pool = cluster.Owner{Kind: "EgressIP", Name: l.Owner.Name}, pool
		l.Families, l.Prefers, l.Ports = []cluster.Family{cluster.IPv4, cluster.IPv6}, true, nil
	}
}

func dual(l *cluster.LoadBalancer) { l.Families = []cluster.Family{cluster.IPv6, cluster.IPv4} }

func pool(name string, ranges ...string) *cluster.Pool {
	p := &cluster.Pool{Owner: cluster.Owner{Kind: "LoadBalancerPool", Name: name}, Created: time.Unix(1000, 0)}
	for _, text := range ranges {
		first, last, _ := strings.Cut(text, "-")
		p.Ranges = append(p.Ranges, cluster.AddressRange{First: addr(first), Last: addr(last)})
	}
	return p
}

// pooled returns a cluster with nodes at 172.18.0.2 and .3, and the Services.
func pooled(pools []*cluster.Pool, list ...*cluster.LoadBalancer) *cluster.Snapshot {
	s := snapshot(egressNode("node-a", 1, 2), egressNode("node-b", 2, 3))
	for _, n := range s.Nodes {
		n.HostPorts.Checked = cluster.PortRanges{{First: 1, Last: 65535}}
	}
	s.Namespaces = []*cluster.Namespace{{Name: "default"}, {Name: "other"}}
	s.Pools, s.LoadBalancers = pools, list
	slices.SortFunc(s.LoadBalancers, func(a, b *cluster.LoadBalancer) int { return a.Owner.Compare(b.Owner) })
	return s
}

func tellAllocated(s *cluster.Snapshot) string {
	list, _ := assign.LoadBalancers(s)
	var lines []string
	for _, x := range list {
		var parts []string
		for _, a := range x.Addresses {
			text := a.String()
			for _, r := range x.Recorded {
				if r.Address == a {
					text += fmt.Sprintf(" %s/%d%s", r.Protocol, r.Port,
						strings.Replace(r.Error, "hairpin.dev/", " ", 1))
				}
			}
			parts = append(parts, text)
		}
		for _, r := range x.Refused {
			parts = append(parts, r.Reason+": "+r.Message)
		}
		lines = append(lines, x.Service.Owner.Name+": "+strings.Join(parts, "; "))
	}
	return strings.Join(lines, "\n")
}

func TestLoadBalancers(t *testing.T) {
	ten := []*cluster.Pool{pool("a", "172.18.0.50-172.18.0.51", "fc00:f853:ccd::50-fc00:f853:ccd::5f")}
	other := func(l *cluster.LoadBalancer) { l.Owner.Namespace = "other" }
	local := func(l *cluster.LoadBalancer) { l.Local = true }
	for _, c := range []struct {
		name string
		s    *cluster.Snapshot
		want string
	}{
		{"lowest free, oldest first", pooled(ten, loadBalancer("x", 1), loadBalancer("y", 0)),
			"x: 172.18.0.51\ny: 172.18.0.50"},
		{"whoever has it keeps it", pooled(ten, loadBalancer("x", 1, ingress("172.18.0.50")), loadBalancer("y", 0)),
			"x: 172.18.0.50\ny: 172.18.0.51"},
		{"two have it", pooled(ten, loadBalancer("x", 1, ingress("172.18.0.50")),
			loadBalancer("y", 0, ingress("172.18.0.50"))),
			"x: 172.18.0.51; AddressReleased: 172.18.0.50 is an address of Service/default/y\ny: 172.18.0.50"},
		{"both families, in their order", pooled(ten, loadBalancer("x", 0, dual)), "x: fc00:f853:ccd::50; 172.18.0.50"},
		{"exhausted", pooled(ten, loadBalancer("x", 0), loadBalancer("y", 0), loadBalancer("z", 0, dual)),
			"x: 172.18.0.50\ny: 172.18.0.51\nz: fc00:f853:ccd::50; AddressesExhausted: no " +
				"LoadBalancerPool that selects " +
				"the Service has a free IPv4 address"},
		{"no pool of a family", pooled([]*cluster.Pool{pool("a", "172.18.0.50-172.18.0.51")},
			loadBalancer("x", 0, dual), loadBalancer("y", 0, dual, func(l *cluster.LoadBalancer) { l.Prefers = true })),
			"x: 172.18.0.50; NoLoadBalancerPool: no LoadBalancerPool with IPv6 addresses selects the Service\n" +
				"y: 172.18.0.51"},
		{"no pool at all", pooled(nil, loadBalancer("x", 0, func(l *cluster.LoadBalancer) { l.Prefers = true })),
			"x: NoLoadBalancerPool: no LoadBalancerPool with IPv4 addresses selects the Service"},
		{"requested", pooled(ten, loadBalancer("x", 0, wants("172.18.0.51")),
			loadBalancer("y", 1, wants("172.18.0.51")),
			loadBalancer("z", 2, wants("172.18.0.99"))),
			"x: 172.18.0.51\ny: AddressNotAvailable: 172.18.0.51 is an address of Service/default/x\n" +
				"z: AddressNotAvailable: 172.18.0.99 is in no LoadBalancerPool"},
		{"a request replaces another address", pooled(ten, loadBalancer("x", 0, ingress("172.18.0.50"),
			wants("172.18.0.51"))),
			"x: 172.18.0.51; AddressReleased: 172.18.0.50 is not the requested address, 172.18.0.51"},
		{"an older Service asks for another's address", pooled(ten, loadBalancer("thief", 0, other,
			wants("172.18.0.50")), loadBalancer("x", 5, ingress("172.18.0.50"))),
			"x: 172.18.0.50\nthief: AddressNotAvailable: 172.18.0.50 is an address of Service/default/x"},
		{"with the same key, from another namespace", pooled(ten, loadBalancer("thief", 0, other, key("k", 81),
			wants("172.18.0.50")), loadBalancer("x", 5, ingress("172.18.0.50"), key("k", 80))),
			"x: 172.18.0.50\nthief: AddressNotAvailable: 172.18.0.50 is an address of Service/default/x"},
		{"shared", pooled(ten, loadBalancer("x", 0, key("k", 80)), loadBalancer("y", 1, key("k", 81)),
			loadBalancer("z", 2, key("k", 80))), "x: 172.18.0.50\ny: 172.18.0.50\nz: 172.18.0.51"},
		{"policy Local shares none", pooled(ten, loadBalancer("x", 0, key("k", 80), ingress("172.18.0.50")),
			loadBalancer("y", 1, key("k", 81),
				local, wants("172.18.0.50"))), "x: 172.18.0.50\ny: AddressNotAvailable: 172.18.0.50 is an address of " +
			"Service/default/x, and externalTrafficPolicy Local excludes sharing"},
		{"neither nodes nor gateways", pooled([]*cluster.Pool{pool("a", "172.18.0.0-172.18.0.5")},
			loadBalancer("x", 0), loadBalancer("y", 1, wants("172.18.0.1")), loadBalancer("z", 1, wants("172.18.0.3"))),
			"x: 172.18.0.4\ny: AddressNotAvailable: 172.18.0.1 is the default gateway of node node-b\n" +
				"z: AddressNotAvailable: 172.18.0.3 is an address of node node-b"},
		{"a node claims an address of a Service", pooled([]*cluster.Pool{pool("a", "172.18.0.0-172.18.0.5")},
			loadBalancer("x", 0, ingress("172.18.0.3"))), "x: 172.18.0.3"},
		{"an EgressIP has one of each family", pooled(ten, loadBalancer("e", 1, egress("a")), loadBalancer("x", 0)),
			"e: 172.18.0.51; fc00:f853:ccd::50\nx: 172.18.0.50"},
		{"an EgressIP keeps them", pooled(ten, loadBalancer("e", 1, egress("a"), ingress("172.18.0.50")),
			loadBalancer("x", 0)), "e: 172.18.0.50; fc00:f853:ccd::50\nx: 172.18.0.51"},
		{"a pool of one family", pooled([]*cluster.Pool{pool("a", "172.18.0.50-172.18.0.51")},
			loadBalancer("e", 1, egress("a"))), "e: 172.18.0.50"},
		{"an EgressIP of an exhausted pool", pooled([]*cluster.Pool{pool("a", "172.18.0.50-172.18.0.50")},
			loadBalancer("e", 1, egress("a")), loadBalancer("x", 0, ingress("172.18.0.50"))),
			"e: AddressesExhausted: LoadBalancerPool a has no free IPv4 address\nx: 172.18.0.50"},
		{"an EgressIP without its pool", pooled(ten, loadBalancer("e", 1, egress("b"), ingress("172.18.0.50"))),
			"e: AddressReleased: 172.18.0.50 is an address of LoadBalancerPool/a, which does not select the EgressIP; " +
				"NoLoadBalancerPool: there is no LoadBalancerPool b with addresses"},
		{"a Service does not share with an EgressIP", pooled(ten, loadBalancer("e", 1, egress("a"),
			ingress("172.18.0.50")), loadBalancer("x", 0, key("k", 80), wants("172.18.0.50"))),
			"e: 172.18.0.50; fc00:f853:ccd::50\nx: AddressNotAvailable: 172.18.0.50 is an address of EgressIP/e"},
		{"no ClusterIP", pooled([]*cluster.Pool{pool("a", "10.96.0.1-10.96.0.9")}, loadBalancer("x", 0,
			ingress("10.96.0.5"), wants("10.96.0.5"))), "x: AddressReleased: 10.96.0.5 is in the ClusterIP range " +
			"(10.96.0.0/16); AddressNotAvailable: 10.96.0.5 is in the ClusterIP range (10.96.0.0/16)"},
	} {
		if got := tellAllocated(c.s); got != c.want {
			t.Errorf("%s: allocated\n%s\nnot\n%s", c.name, got, c.want)
		}
	}
}

// TestLoadBalancerSelectors: a pool is for the Services that it selects.
func TestLoadBalancerSelectors(t *testing.T) {
	a, b := pool("a", "172.18.0.50-172.18.0.59"), pool("b", "172.18.0.60-172.18.0.69")
	a.Namespaces.Requirements = []cluster.Requirement{{Key: "team", Operator: "Exists"}}
	b.Services.Requirements = []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{"web"}}}
	web := func(l *cluster.LoadBalancer) { l.Labels = map[string]string{"app": "web"} }
	s := pooled([]*cluster.Pool{a, b}, loadBalancer("x", 0, web), loadBalancer("y", 1),
		loadBalancer("z", 2, wants("172.18.0.50")))
	const none = "\ny: NoLoadBalancerPool: no LoadBalancerPool with IPv4 addresses selects the Service\nz: " +
		"AddressNotAvailable: 172.18.0.50 is an address of LoadBalancerPool/a, which does not select the Service"
	if got := tellAllocated(s); got != "x: 172.18.0.60"+none {
		t.Error(got)
	}
	s.Namespaces[0].Labels = map[string]string{"team": "1"}
	if got := tellAllocated(s); got != "x: 172.18.0.51\ny: 172.18.0.52\nz: 172.18.0.50" {
		t.Error(got)
	}
}

// TestPoolUse: what is used and what is left.
func TestPoolUse(t *testing.T) {
	s := pooled([]*cluster.Pool{pool("a", "172.18.0.0-172.18.0.5", "fc00:f853:ccd::1000-fc00:f853:ccd:1::"),
		pool("b", "172.18.0.60-172.18.0.60")}, loadBalancer("x", 0, key("k", 80)), loadBalancer("y", 1, key("k", 81)),
		loadBalancer("z", 2, wants("172.18.0.60")))
	_, uses := assign.LoadBalancers(s)
	// .0 is the network's, .1 the gateway's, .2 and .3 nodes'
	want := "[172.18.0.4 by default/x default/y] 9223372036854775807 [], [172.18.0.60 by default/z] 0 [IPv4]"
	var got []string
	for _, u := range uses {
		var list []string
		for _, a := range u.Addresses {
			text := a.Address.String() + " by"
			for _, o := range a.Services {
				text += " " + o.Namespace + "/" + o.Name
			}
			list = append(list, text)
		}
		got = append(got, fmt.Sprint(list, u.Available, u.Exhausted))
	}
	if text := strings.Join(got, ", "); text != want {
		t.Errorf("%s\nnot\n%s", text, want)
	}
}

// TestLoadBalancersProperties: over random changes, no address is used twice without a key, none is
// outside of the pools or reserved, nothing moves without need, a restart changes nothing, and what
// a Service releases is free.
func TestLoadBalancersProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list []*cluster.LoadBalancer
		pools := []*cluster.Pool{pool("a", "172.18.0.0-172.18.0.9"), pool("b", "fc00:f853:ccd::8-fc00:f853:ccd::f",
			"172.18.0.20-172.18.0.21")}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			switch name := rapid.StringMatching("[a-h]").Draw(t, "name"); {
			case rapid.IntRange(0, 3).Draw(t, "what") == 0:
				list = slices.DeleteFunc(list, func(l *cluster.LoadBalancer) bool { return l.Owner.Name == name })
			default:
				list = slices.DeleteFunc(list, func(l *cluster.LoadBalancer) bool { return l.Owner.Name == name })
				list = append(list, drawLoadBalancer(t, name))
			}
			s := pooled(pools, slices.Clone(list)...)
			given, uses := assign.LoadBalancers(s)
			soundAllocation(t, s, given, uses)
			list = nil
			for _, x := range given {
				had := *x.Service
				had.Ingress = x.Addresses
				list = append(list, &had)
			}
			// A new leader sees the same in any order, and changes nothing.
			again, _ := assign.LoadBalancers(pooled(pools, slices.Clone(list)...))
			for i, x := range again {
				if !slices.Equal(x.Addresses, given[i].Addresses) {
					t.Fatalf("%s had %v and has %v", x.Service.Owner, given[i].Addresses, x.Addresses)
				}
			}
		}
	})
}

func drawLoadBalancer(t *rapid.T, name string) *cluster.LoadBalancer {
	l := loadBalancer(name, rapid.IntRange(0, 2).Draw(t, "age"))
	l.Owner.Namespace = rapid.SampledFrom([]string{"default", "other"}).Draw(t, "namespace")
	l.Sharing = rapid.SampledFrom([]string{"", "k", "l"}).Draw(t, "key")
	l.Ports[0].Port = uint16(rapid.IntRange(80, 82).Draw(t, "port"))
	l.Local = rapid.Bool().Draw(t, "local")
	if rapid.Bool().Draw(t, "dual") {
		dual(l)
	}
	for _, a := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"172.18.0.1", "172.18.0.5", "172.18.0.20",
		"fc00:f853:ccd::9", "10.96.0.1"}), 0, 1, rapid.ID).Draw(t, "requests") {
		wants(a)(l)
	}
	for _, a := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"172.18.0.4", "172.18.0.5", "172.18.0.20",
		"fc00:f853:ccd::9"}), 0, 2, rapid.ID).Draw(t, "ingress") {
		ingress(a)(l)
	}
	if rapid.IntRange(0, 3).Draw(t, "kind") == 0 {
		egress(rapid.SampledFrom([]string{"a", "b", "z"}).Draw(t, "pool"))(l)
		l.Requested, l.Sharing, l.Local = nil, "", false
	}
	return l
}

func soundAllocation(t *rapid.T, s *cluster.Snapshot, given []assign.Allocation, uses []assign.PoolUse) {
	by, reserved := map[netip.Addr][]*cluster.LoadBalancer{}, trust.ReservedIn(s)
	for _, x := range given {
		l, families := x.Service, map[cluster.Family]bool{}
		for _, a := range x.Addresses {
			f := cluster.FamilyOf(a)
			if families[f] || !slices.Contains(l.Families, f) {
				t.Fatalf("%s has %v", l.Owner, x.Addresses)
			}
			families[f] = true
			if !slices.ContainsFunc(s.Pools, func(p *cluster.Pool) bool {
				return p.Has(a) && (l.Pool == "" || l.Pool == p.Owner.Name)
			}) {
				t.Fatalf("%s has %s, of no pool", l.Owner, a)
			}
			if why := reserved.For(a, l.Created, slices.Contains(l.Ingress, a)); why != "" {
				t.Fatalf("%s has %s: %s", l.Owner, a, why)
			}
			for _, r := range l.Requested {
				if cluster.FamilyOf(r) == f && r != a {
					t.Fatalf("%s requests %s and has %s", l.Owner, r, a)
				}
			}
			for _, m := range by[a] {
				if l.Sharing == "" || l.Sharing != m.Sharing || l.Owner.Namespace != m.Owner.Namespace || l.Local ||
					m.Local || l.Ports[0] == m.Ports[0] {
					t.Fatalf("%s and %s have %s", l.Owner, m.Owner, a)
				}
			}
			by[a] = append(by[a], l)
		}
		if len(families)+len(x.Refused) == 0 {
			t.Fatalf("%s has no address, and no reason", l.Owner)
		}
	}
	// An address in the status is lost only for a reason.
	for _, x := range given {
		for _, a := range x.Service.Ingress {
			if !slices.Contains(x.Addresses, a) && !slices.ContainsFunc(x.Refused,
				func(r assign.Refusal) bool { return r.Address == a }) &&
				!slices.ContainsFunc(x.Addresses, func(b netip.Addr) bool { return a.Is4() == b.Is4() }) {
				t.Fatalf("%s has lost %s", x.Service.Owner, a)
			}
		}
	}
	n := 0
	for _, u := range uses {
		for _, a := range u.Addresses {
			if n++; len(a.Services) != len(by[a.Address]) {
				t.Fatalf("%s is said to be of %v", a.Address, a.Services)
			}
		}
	}
	if n != len(by) {
		t.Fatalf("%d addresses are said to be used of %d", n, len(by))
	}
}

func BenchmarkLoadBalancers(b *testing.B) {
	var list []*cluster.LoadBalancer
	for i := range 5000 {
		a := netip.AddrFrom4([4]byte{172, 18, byte(10 + i/250), byte(1 + i%250)})
		list = append(list, loadBalancer(fmt.Sprintf("s-%05d", i), i, ingress(a.String())))
	}
	s := pooled([]*cluster.Pool{pool("a", "172.18.10.0-172.18.99.255")}, list...)
	for b.Loop() {
		if given, _ := assign.LoadBalancers(s); len(given[4999].Addresses) != 1 {
			b.Fatal("no address")
		}
	}
}
