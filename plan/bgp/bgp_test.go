package bgp_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"hairpin/api/frrk8s"
	"hairpin/cluster"
	"hairpin/cluster/clustertest"
	"hairpin/plan/bgp"
)

var (
	addr   = netip.MustParseAddr
	prefix = netip.MustParsePrefix
)

// labelled selects objects with a label; an empty value selects all.
func labelled(value string) (s cluster.Selector) {
	if value != "" {
		s.Requirements = []cluster.Requirement{{Key: "x", Operator: metav1.LabelSelectorOpIn, Values: []string{value}}}
	}
	return s
}

func node(name string, id int, edit ...func(*cluster.Node)) *cluster.Node {
	n := clustertest.Node(name, id, id+2)
	n.Egress = cluster.NodeEgress{Ready: true, Assignable: true,
		Labels: map[string]string{"kubernetes.io/hostname": name}}
	for _, e := range edit {
		e(n)
	}
	return n
}

func with(value string) func(*cluster.Node) {
	return func(n *cluster.Node) { n.Egress.Labels["x"] = value }
}

func leaving(n *cluster.Node)  { n.Egress.Leaving = true }
func notReady(n *cluster.Node) { n.Egress.Ready = false }

func advertisement(name string, edit ...func(*cluster.Advertisement)) *cluster.Advertisement {
	a := &cluster.Advertisement{Owner: cluster.Owner{Kind: "BGPAdvertisement", Name: name}, UID: name,
		LoadBalancer: true, EgressIP: true}
	for _, e := range edit {
		e(a)
	}
	return a
}

// neighbor makes a BGP peer at an address, or at an interface.
func neighbor(at string, more ...string) frrk8s.Neighbor {
	n := frrk8s.Neighbor{"asn": float64(64512), "port": float64(1790),
		"toReceive":   map[string]any{"allowed": map[string]any{"mode": "all"}},
		"toAdvertise": map[string]any{"allowed": map[string]any{"prefixes": []any{"198.51.100.0/24"}}}}
	if _, err := netip.ParseAddr(at); err == nil {
		n["address"] = at
	} else {
		n["interface"] = at
	}
	for _, m := range more {
		switch m {
		case "dual":
			n["dualStackAddressFamily"] = true
		default:
			n["bfdProfile"] = m
		}
	}
	return n
}

func configuration(name, label, nodes string, neighbors ...frrk8s.Neighbor) *cluster.FRRConfiguration {
	o := &frrk8s.FRRConfiguration{ObjectMeta: metav1.ObjectMeta{Namespace: "frr", Name: name,
		Labels: map[string]string{"x": label}}}
	o.Spec.BGP = frrk8s.BGPConfig{BFDProfiles: []frrk8s.Fields{{"name": "fast"}, {"name": "slow"}},
		Routers: []frrk8s.Router{{ASN: 64500, ID: "10.0.0.9", Neighbors: neighbors,
			Prefixes: []string{"198.51.100.0/24"}},
			{ASN: 64501, VRF: "red", Neighbors: []frrk8s.Neighbor{neighbor("10.9.9.9")}}}}
	return &cluster.FRRConfiguration{Owner: cluster.Owner{Kind: "FRRConfiguration", Namespace: "frr", Name: name},
		Nodes: labelled(nodes), Object: o}
}

// announced makes what a Service with load balancer addresses is to the nodes; only names the nodes
// with a ready endpoint (externalTrafficPolicy Local).
func announced(name string, only []string, addresses ...string) *cluster.EgressIP {
	e := clustertest.EgressIP(name, 1, addresses...)
	e.Owner = cluster.Owner{Kind: "Service", Namespace: "default", Name: name}
	e.Service = &cluster.EgressService{OnlyOn: only, Announced: &cluster.Announcement{}}
	return e
}

func on(e *cluster.EgressIP, nodes ...string) *cluster.EgressIP {
	for i, n := range nodes {
		e.Assigned = append(e.Assigned, cluster.Assignment{Address: e.Addresses[i], Node: n})
	}
	return e
}

func pool(name, label string, ranges ...string) *cluster.Pool {
	p := &cluster.Pool{Owner: cluster.Owner{Kind: "LoadBalancerPool", Name: name}, Created: time.Unix(1, 0),
		Labels: map[string]string{"x": label}}
	for _, r := range ranges {
		p.Ranges = append(p.Ranges, cluster.RangeOf(prefix(r)))
	}
	return p
}

func snapshot(objects ...any) *cluster.Snapshot {
	s := clustertest.Snapshot(objects...)
	for _, o := range objects {
		switch o := o.(type) {
		case *cluster.EgressIP:
			s.EgressIPs = append(s.EgressIPs, o)
		case *cluster.Pool:
			s.Pools = append(s.Pools, o)
		case *cluster.Advertisement:
			s.Advertisements = append(s.Advertisements, o)
		case *cluster.FRRConfiguration:
			s.FRRConfigurations = append(s.FRRConfigurations, o)
		}
	}
	return s
}

// text writes a line for each neighbor, and one for each result.
func text(s *cluster.Snapshot) string {
	list, results := bgp.Plan(s)
	var lines []string
	for _, c := range list {
		for _, r := range c.Spec.BGP.Routers {
			for _, n := range r.Neighbors {
				at := frrk8s.Fields(n).Text("address") + frrk8s.Fields(n).Text("interface")
				lines = append(lines, fmt.Sprintf("%s %s: %v",
					c.Spec.NodeSelector.MatchLabels["kubernetes.io/hostname"], at, allowed(n)))
			}
		}
	}
	slices.Sort(lines)
	for _, r := range results {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s: %d on %d %s", r.Advertisement.Owner.Name, r.Prefixes,
			r.Nodes,
			r.Message)))
	}
	return strings.Join(lines, "\n")
}

func allowed(n frrk8s.Neighbor) []any {
	return n["toAdvertise"].(map[string]any)["allowed"].(map[string]any)["prefixes"].([]any)
}

// TestPlan: which node announces which prefix to which neighbor.
func TestPlan(t *testing.T) {
	two := []any{node("a", 1), node("b", 2)}
	frr := configuration("upstream", "", "", neighbor("10.0.0.1"))
	edge := pool("edge", "p", "192.0.2.0/24", "2001:db8::/64")
	web := announced("web", nil, "192.0.2.1")
	for _, c := range []struct {
		name    string
		objects []any
		want    string
	}{
		{"every node announces a load balancer address", []any{advertisement("x"), frr, edge, web},
			"a 10.0.0.1: [192.0.2.1/32]\nb 10.0.0.1: [192.0.2.1/32]\nx: 1 on 2"},
		{"policy Local: nodes with a ready endpoint",
			[]any{advertisement("x"), frr, edge, announced("web", []string{"b"}, "192.0.2.1")},
			"b 10.0.0.1: [192.0.2.1/32]\nx: 1 on 1"},
		{"it selects no node", []any{
			advertisement("x", func(a *cluster.Advertisement) { a.Nodes = labelled("q") }), frr, edge, web},
			"x: 0 on 0 spec.nodeSelector selects no node"},
		{"it selects no pool", []any{advertisement("x", func(a *cluster.Advertisement) {
			a.EgressIP, a.Pools = false, labelled("q")
		}), frr, edge, web}, "x: 0 on 0 spec.loadBalancerPoolSelector selects no LoadBalancerPool"},
		{"policy Local without an endpoint",
			[]any{advertisement("x"), frr, edge, announced("web", []string{}, "192.0.2.1")},
			"x: 0 on 0"},
		{"not a leaving or unready node", []any{advertisement("x"), frr, edge, web, node("c", 3, leaving),
			node("d", 4, notReady)}, "a 10.0.0.1: [192.0.2.1/32]\nb 10.0.0.1: [192.0.2.1/32]\nx: 1 on 2"},
		{"a leaving node that is the only one", []any{advertisement("x", func(a *cluster.Advertisement) {
			a.Nodes = labelled("l")
		}), frr, edge, web, node("c", 3, leaving, with("l"))}, "c 10.0.0.1: [192.0.2.1/32]\nx: 1 on 1"},
		{"an EgressIP and an EgressService, by their nodes", []any{advertisement("x"), frr, edge,
			on(clustertest.EgressIP("e", 1, "172.18.0.33", "172.18.0.34"), "a"), func() *cluster.EgressIP {
				e := on(announced("web", nil, "192.0.2.1"), "b")
				e.Owner.Kind, e.Service.Announced = "EgressService", nil
				return e
			}()}, "a 10.0.0.1: [172.18.0.33/32]\nb 10.0.0.1: [192.0.2.1/32]\nx: 2 on 2"},
		{"an address of no pool", []any{advertisement("x"), frr, edge, announced("web", nil, "198.51.100.1")},
			"x: 0 on 0"},
		{"another pool", []any{advertisement("x", func(a *cluster.Advertisement) { a.Pools = labelled("q") }), frr,
			edge,
			web}, "x: 0 on 0"},
		{"pod ranges", []any{advertisement("x", func(a *cluster.Advertisement) { a.PodNetwork = true }),
			configuration("upstream", "", "", neighbor("10.0.0.1"), neighbor("fd10::1"), neighbor("eth1"))},
			"a 10.0.0.1: [10.244.1.0/24]\na eth1: [10.244.1.0/24 fd00:10:244:1::/64]\na fd10::1: [fd00:10:244:1::/64]\n" +
				"b 10.0.0.1: [10.244.2.0/24]\nb eth1: [10.244.2.0/24 fd00:10:244:2::/64]\nb fd10::1: " +
				"[fd00:10:244:2::/64]\n" +
				"x: 4 on 2"},
		{"a family without a neighbor", []any{advertisement("x"), frr, edge, announced("web", nil, "2001:db8::1")},
			"x: 0 on 0 no selected FRRConfiguration has a neighbor outside of VRFs for 2001:db8::1/128 " +
				"of node a and 1 more"},
		{"both families in one session", []any{advertisement("x"),
			configuration("upstream", "", "", neighbor("10.0.0.1", "dual")), edge,
			announced("web", []string{"a"}, "2001:db8::1")},
			"a 10.0.0.1: [2001:db8::1/128]\nx: 1 on 1"},
		{"an FRRConfiguration of some nodes",
			[]any{advertisement("x"), configuration("one", "", "l", neighbor("10.0.0.1")),
				edge, web, node("c", 3, with("l"))},
			"c 10.0.0.1: [192.0.2.1/32]\nx: 1 on 1 no selected FRRConfiguration has a " +
				"neighbor outside of VRFs for 192.0.2.1/32 of node a and 1 more"},
		{"no FRRConfiguration", []any{advertisement("x",
			func(a *cluster.Advertisement) { a.Configurations = labelled("y") }),
			frr, edge, web}, "x: 0 on 0 spec.frrConfigurationSelector selects no FRRConfiguration"},
		{"its own FRRConfigurations have no neighbors for it", []any{advertisement("x"), edge, web,
			func() *cluster.FRRConfiguration {
				c := configuration("ours", "", "", neighbor("10.0.0.1"))
				c.Object.Labels[cluster.LabelManagedBy] = cluster.ManagedBy
				return c
			}()}, "x: 0 on 0 spec.frrConfigurationSelector selects no FRRConfiguration"},
		{"an invalid one", []any{advertisement("x", func(a *cluster.Advertisement) { a.Rejected = true }), frr, edge,
			web},
			"x: 0 on 0 a field is invalid: nothing is announced"},
		{"two of them", []any{advertisement("x"), advertisement("y", func(a *cluster.Advertisement) {
			a.LoadBalancer, a.EgressIP, a.PodNetwork, a.Nodes = false, false, true, labelled("l")
		}), frr, edge, web, node("c", 3, with("l"))}, "a 10.0.0.1: [192.0.2.1/32]\nb 10.0.0.1: [192.0.2.1/32]\n" +
			"c 10.0.0.1: [10.244.3.0/24 192.0.2.1/32]\nx: 1 on 3\ny: 1 on 1 no selected " +
			"FRRConfiguration has a neighbor " +
			"outside of VRFs for fd00:10:244:3::/64 of node c"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := text(snapshot(append(slices.Clone(two), c.objects...)...)); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// TestConfiguration: what a generated FRRConfiguration has of its source, so that frr-k8s merges
// them.
func TestConfiguration(t *testing.T) {
	n := node("a.example", 1, func(n *cluster.Node) { n.Egress.Labels["kubernetes.io/hostname"] = "a" })
	source := configuration("upstream", "", "", neighbor("10.0.0.1", "fast"), neighbor("fd10::1", "slow"))
	list, _ := bgp.Plan(snapshot(n, advertisement("x"), source, pool("p", "", "192.0.2.0/24"),
		announced("web", nil, "192.0.2.1")))
	if len(list) != 1 {
		t.Fatalf("%d objects", len(list))
	}
	c := list[0]
	if c.Namespace != "frr" || !strings.HasPrefix(c.Name, "hairpin-upstream-a.example-") ||
		c.Labels[cluster.LabelManagedBy] != cluster.ManagedBy || len(c.OwnerReferences) != 1 ||
		c.OwnerReferences[0].UID != "x" || c.OwnerReferences[0].APIVersion != "hairpin.dev/v1alpha1" ||
		c.Spec.NodeSelector.MatchLabels["kubernetes.io/hostname"] != "a" {
		t.Errorf("%+v", c)
	}
	if len(c.Spec.BGP.Routers) != 1 {
		t.Fatalf("%+v", c.Spec.BGP.Routers)
	}
	r := c.Spec.BGP.Routers[0]
	if r.ASN != 64500 || r.ID != "10.0.0.9" || !slices.Equal(r.Prefixes, []string{"192.0.2.1/32"}) ||
		len(r.Neighbors) != 1 {
		t.Errorf("%+v", r)
	}
	if x := r.Neighbors[0]; x["asn"] != float64(64512) || x["port"] != float64(1790) || x["bfdProfile"] != "fast" ||
		x["toReceive"] != nil {
		t.Errorf("%+v", x)
	}
	if p := c.Spec.BGP.BFDProfiles; len(p) != 1 || p[0].Text("name") != "fast" {
		t.Errorf("%+v", p)
	}
	if x := source.Object.Spec.BGP.Routers[0].Neighbors[0]; x["toReceive"] == nil ||
		fmt.Sprint(allowed(x)) != "[198.51.100.0/24]" {
		t.Errorf("the source was changed: %v", x)
	}
	long := configuration(strings.Repeat("x", 253), "", "", neighbor("10.0.0.1"))
	list, _ = bgp.Plan(snapshot(n, advertisement("x"), long, pool("p", "", "192.0.2.0/24"),
		announced("web", nil, "192.0.2.1")))
	if len(list) != 1 || len(list[0].Name) > 253 {
		t.Errorf("name: %d bytes", len(list[0].Name))
	}
}

// TestOwners: an Advertisement owns only the objects by which it announces a prefix, although it
// selects another one, with neighbors of the other family.
func TestOwners(t *testing.T) {
	egress := advertisement("egress", func(a *cluster.Advertisement) { a.LoadBalancer = false })
	pods := advertisement("pods", func(a *cluster.Advertisement) {
		a.LoadBalancer, a.EgressIP, a.PodNetwork = false, false, true
	})
	list, _ := bgp.Plan(snapshot(node("a", 1), pods, egress, configuration("v4", "", "", neighbor("10.0.0.1")),
		configuration("v6", "", "", neighbor("fd10::1")), on(clustertest.EgressIP("e", 1, "172.18.0.33"), "a")))
	var got []string
	for _, c := range list {
		for _, o := range c.OwnerReferences {
			got = append(got, c.Name[:len("hairpin-v4")]+" of "+o.Name)
		}
	}
	if want := "[hairpin-v4 of pods hairpin-v4 of egress hairpin-v6 of pods]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

// TestPlanProperty compares Plan with a rule for each combination of Advertisement, node, neighbor
// and prefix. Names are unique, and every prefix of a neighbor is one of its router. The owners of
// an object are the Advertisements that announce a prefix by it.
func TestPlanProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		label := rapid.SampledFrom([]string{"", "l", "m"})
		var objects []any
		flag := rapid.Bool()
		var names []string
		for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
			n := node(string(rune('a'+i)), i+1, with(label.Draw(t, "label")))
			n.Egress.Leaving, n.Egress.Ready = flag.Draw(t, "leaving"), flag.Draw(t, "ready")
			objects, names = append(objects, n), append(names, n.Name)
		}
		some := func(list []string) (out []string) {
			for _, x := range list {
				if flag.Draw(t, "some") {
					out = append(out, x)
				}
			}
			return out
		}
		for i := range rapid.IntRange(1, 3).Draw(t, "advertisements") {
			objects = append(objects, advertisement(fmt.Sprint("adv-", i), func(a *cluster.Advertisement) {
				a.LoadBalancer, a.EgressIP, a.PodNetwork = flag.Draw(t, "lb"), flag.Draw(t, "eip"), flag.Draw(t, "pods")
				a.Configurations, a.Pools = labelled(label.Draw(t, "configurations")), labelled(label.Draw(t, "pools"))
				a.Nodes = labelled(label.Draw(t, "nodes"))
			}))
		}
		for i := range rapid.IntRange(0, 3).Draw(t, "configurations") {
			var neighbors []frrk8s.Neighbor
			for _, x := range some([]string{"10.0.0.1", "fd10::1", "10.0.0.2 dual", "eth1"}) {
				at, more, _ := strings.Cut(x, " ")
				neighbors = append(neighbors, neighbor(at, strings.Fields(more)...))
			}
			objects = append(objects, configuration(fmt.Sprint("frr-", i), label.Draw(t, "label"), label.Draw(t, "of"),
				neighbors...))
		}
		objects = append(objects, pool("p", label.Draw(t, "pool"), "192.0.2.0/25", "2001:db8::/64"),
			pool("q", label.Draw(t, "pool"), "192.0.2.128/25"))
		for i, list := range [][]string{{"192.0.2.1"}, {"192.0.2.129", "2001:db8::1"}, {"198.51.100.7"}} {
			var only []string
			if flag.Draw(t, "local") {
				only = append([]string{}, some(names)...)
			}
			objects = append(objects, announced(fmt.Sprint("s", i), only, list...))
		}
		objects = append(objects, on(clustertest.EgressIP("e", 1, "172.18.9.1", "fc00:f853:ccd::99"),
			some([]string{rapid.SampledFrom(names).Draw(t, "on")})...))
		s := snapshot(objects...)
		list, _ := bgp.Plan(s)
		got := map[string]bool{}
		seen := map[string]bool{}
		for _, c := range list {
			if seen[c.Name] {
				t.Fatalf("%s is twice", c.Name)
			}
			seen[c.Name] = true
			source := strings.SplitN(strings.TrimPrefix(c.Name, "hairpin-"), "-", 3)
			for _, o := range c.OwnerReferences {
				got[fmt.Sprint(source[0], "-", source[1], " ",
					c.Spec.NodeSelector.MatchLabels["kubernetes.io/hostname"], " of ", o.Name)] = true
			}
			for _, r := range c.Spec.BGP.Routers {
				for _, n := range r.Neighbors {
					for _, p := range allowed(n) {
						if !slices.Contains(r.Prefixes, p.(string)) {
							t.Fatalf("%s: %s is not a prefix of the router", c.Name, p)
						}
						got[fmt.Sprint(source[0], "-", source[1], " ",
							c.Spec.NodeSelector.MatchLabels["kubernetes.io/hostname"], " ",
							n["address"], n["interface"], " ", p)] = true
					}
				}
			}
		}
		want := map[string]bool{}
		for _, a := range s.Advertisements {
			for _, c := range s.FRRConfigurations {
				for _, n := range s.Nodes {
					if !a.Configurations.Matches(c.Object.Labels) || !c.Nodes.Matches(n.Egress.Labels) ||
						!a.Nodes.Matches(n.Egress.Labels) {
						continue
					}
					for _, p := range expected(s, a, n) {
						for _, x := range c.Object.Spec.BGP.Routers[0].Neighbors {
							both := x["interface"] != nil || x["dualStackAddressFamily"] == true
							if both || addr(x["address"].(string)).Is4() == p.Addr().Is4() {
								want[fmt.Sprint(c.Owner.Name, " ", n.Name, " ", x["address"], x["interface"], " ",
									p)] = true
								want[fmt.Sprint(c.Owner.Name, " ", n.Name, " of ", a.Owner.Name)] = true
							}
						}
					}
				}
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("got  %v\nwant %v", got, want)
		}
	})
}

// expected returns what a node announces for an Advertisement that selects it.
func expected(s *cluster.Snapshot, a *cluster.Advertisement, n *cluster.Node) (list []netip.Prefix) {
	for _, e := range s.EgressIPs {
		may := func(m *cluster.Node) bool {
			return m.Egress.Ready && a.Nodes.Matches(m.Egress.Labels) &&
				(e.Service.OnlyOn == nil || slices.Contains(e.Service.OnlyOn, m.Name))
		}
		for _, x := range e.Addresses {
			p := netip.PrefixFrom(x, x.BitLen())
			if e.Service == nil {
				if a.EgressIP && e.NodeOf(x) == n.Name {
					list = append(list, p)
				}
				continue
			}
			var of *cluster.Pool
			for _, q := range s.Pools {
				if q.Has(x) {
					of = q
				}
			}
			stays := slices.ContainsFunc(s.Nodes, func(m *cluster.Node) bool { return may(m) && !m.Egress.Leaving })
			if a.LoadBalancer && of != nil && a.Pools.Matches(of.Labels) && may(n) && !(n.Egress.Leaving && stays) {
				list = append(list, p)
			}
		}
	}
	if a.PodNetwork {
		list = append(list, n.PodCIDRs...)
	}
	return list
}

// TestAnnouncements: which nodes should announce an address, without FRRConfigurations.
func TestAnnouncements(t *testing.T) {
	web, local := announced("web", nil, "192.0.2.1"), announced("local", []string{"b"}, "192.0.2.2")
	out := on(clustertest.EgressIP("out", 1, "192.0.2.33"), "b")
	gone := on(clustertest.EgressIP("gone", 1, "192.0.2.34"), "z")
	broken := advertisement("broken", func(a *cluster.Advertisement) {
		a.EgressIP, a.Nodes = false, labelled("here")
		a.Status.Conditions = []metav1.Condition{{Type: "Advertised", Status: metav1.ConditionFalse, Message: "why"}}
	})
	s := snapshot(node("a", 1), node("b", 2, with("here")), node("c", 3, notReady), pool("edge", "", "192.0.2.0/28"),
		web, local, out, gone, advertisement("all"), broken,
		advertisement("rejected", func(a *cluster.Advertisement) { a.Rejected = true }))
	for e, want := range map[*cluster.EgressIP]string{
		web: "all[a b] broken[b]why", local: "all[b] broken[b]why", out: "all[b]", gone: "all[]",
		announced("other", nil, "198.51.100.1"): "",
	} {
		var got []string
		for _, x := range bgp.Announcements(s, e, e.Addresses[0]) {
			got = append(got, fmt.Sprint(x.By.Owner.Name, x.Nodes, x.Problem))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, not %s", e.Owner, got, want)
		}
	}
}
