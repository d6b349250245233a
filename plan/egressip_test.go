package plan_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/cluster/clustertest"
	"hairpin/datapath/nb"
	"hairpin/plan"
	"hairpin/plan/assign"
)

// drawLinks draws a node's links to none, one or two other networks, or nil if they are unknown.
func drawLinks(t *rapid.T, id int) []cluster.HostLink {
	all := []cluster.HostLink{
		{Name: "eth1", Index: 3, MAC: cluster.MAC{2, 0, 10, 10, 10, byte(id)},
			Addresses: []netip.Prefix{prefix(fmt.Sprintf("10.10.10.%d/24", id)),
				prefix(fmt.Sprintf("fd10::%x/64", id))}},
		{Name: "eth2", Index: 4, MAC: cluster.MAC{2, 0, 10, 20, 20, byte(id)},
			Addresses: []netip.Prefix{prefix(fmt.Sprintf("10.20.20.%d/24", id))}, Table: 1042},
	}
	if n := rapid.IntRange(-1, len(all)).Draw(t, "links"); n >= 0 {
		return all[:n]
	}
	return nil
}

// onOthers sometimes adds an address of one of those networks to an EgressIP.
func onOthers(t *rapid.T, e *cluster.EgressIP) []netip.Addr {
	for _, a := range []string{"10.10.10.33", "fd10::33", "10.20.20.33"} {
		if rapid.IntRange(0, 2).Draw(t, a) == 0 {
			e.Addresses = append(e.Addresses, addr(a))
		}
	}
	return e.Addresses
}

// churnEgress changes objects that affect EgressIPs, as a Store does.
func churnEgress(t *rapid.T, s *cluster.Snapshot) *cluster.Snapshot {
	n := *s
	label := rapid.SampledFrom([]string{"web", "db"})
	switch rapid.IntRange(0, 4).Draw(t, "what") {
	case 0:
		n.Namespaces = clustertest.Edit(t, s.Namespaces, func(t *rapid.T) *cluster.Namespace {
			return &cluster.Namespace{Name: "default", Labels: map[string]string{"tier": label.Draw(t, "tier")}}
		}, (*cluster.Namespace).Compare)
	case 1:
		n.Pods = clustertest.Edit(t, s.Pods, func(t *rapid.T) *cluster.Pod {
			p := drawPod(t)
			p.Labels = map[string]string{"app": label.Draw(t, "app")}
			return p
		}, (*cluster.Pod).Compare)
	case 2:
		n.Nodes = slices.Clone(s.Nodes)
		i := rapid.IntRange(0, len(n.Nodes)-1).Draw(t, "node")
		changed := *n.Nodes[i]
		changed.Egress.Ready = !changed.Egress.Ready
		switch rapid.IntRange(0, 4).Draw(t, "more") {
		case 2:
			changed.Tables = []cluster.RouteTable{{Name: "blue", Number: rapid.IntRange(100, 101).Draw(t, "number"),
				Links: []string{"eth1"}}}
		case 0:
			changed.HostAddresses = append(slices.Clone(changed.HostAddresses), prefix("172.20.0.1/32"))
		case 1:
			changed.Links = drawLinks(t, changed.ID)
		}
		n.Nodes[i] = &changed
	default:
		n.EgressIPs = clustertest.Edit(t, s.EgressIPs, func(t *rapid.T) *cluster.EgressIP {
			e := clustertest.DrawEgressIP(t)
			for _, a := range onOthers(t, e) {
				if node := rapid.SampledFrom([]string{"", "node-a", "node-b", "node-z"}).Draw(t, "on"); node != "" {
					e.Assigned = append(e.Assigned, cluster.Assignment{Address: a, Node: node})
				}
				if rapid.IntRange(0, 3).Draw(t, "moves") == 0 {
					m := cluster.Move{Address: a, From: "node-a", To: "node-b"}
					if rapid.Bool().Draw(t, "back") {
						m.From, m.To = m.To, m.From
					}
					e.Moving = append(e.Moving, m)
				}
			}
			for _, x := range []struct {
				to  *cluster.Selector
				key string
			}{{&e.Namespaces, "tier"}, {&e.Pods, "app"}} {
				if op := rapid.SampledFrom([]string{"", "In", "NotIn"}).Draw(t, "operator"); op != "" {
					*x.to = cluster.Selector{Requirements: []cluster.Requirement{{Key: x.key,
						Operator: metav1.LabelSelectorOperator(op), Values: []string{label.Draw(t, "value")}}}}
				}
			}
			for _, to := range []*[]netip.Prefix{&e.Destinations, &e.Excluded} {
				*to = rapid.SampledFrom([][]netip.Prefix{nil, {prefix("192.0.2.0/24")},
					{prefix("10.10.10.0/24"), prefix("2001:db8::/32")}}).Draw(t, "destinations")
			}
			if rapid.IntRange(0, 2).Draw(t, "of a Service") == 0 {
				e.Owner = cluster.Owner{Kind: "EgressService", Namespace: "default", Name: e.Owner.Name}
				e.Service = &cluster.EgressService{
					Ended: rapid.Bool().Draw(t, "ended"), Network: rapid.Bool().Draw(t, "network"),
					Table:      rapid.SampledFrom([]string{"", "blue"}).Draw(t, "table"),
					ClusterIPs: []netip.Addr{addr("10.96.0.9")},
				}
				for _, p := range s.Pods {
					if rapid.Bool().Draw(t, "endpoint") {
						e.Service.Endpoints = append(e.Service.Endpoints, p.IPs...)
					}
				}
				slices.SortFunc(e.Service.Endpoints, netip.Addr.Compare)
				if rapid.IntRange(0, 3).Draw(t, "only announced") == 0 {
					e.Owner.Kind, e.Service = "Service", &cluster.EgressService{Announced: &cluster.Announcement{}}
				}
			}
			return e
		}, (*cluster.EgressIP).Compare)
	}
	return &n
}

// TestEgressIsNode: a Planner that has seen other Snapshots returns the same as a new one, and so
// does assign.Conflicts.
func TestEgressIsNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := node("node-a", 1, 3), node("node-b", 2, 4)
		a.Links, b.Links = drawLinks(t, a.ID), drawLinks(t, b.ID)
		a.Gateway.Mode = rapid.SampledFrom([]string{cluster.ModeShared, cluster.ModeLocal}).Draw(t, "mode")
		s := snapshot(a, b)
		s.Namespaces = []*cluster.Namespace{{Name: "default"}}
		p, r := plan.NewPlanner(), assign.NewConflicts()
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			s = churnEgress(t, s)
			sameText(t, text(p.Node(s, "node-a")), text(plan.Node(s, "node-a")))
			if got, want := fmt.Sprint(r.Of(s)), fmt.Sprint(assign.NewConflicts().Of(s)); got != want {
				t.Fatalf("rivals are %s, and were told as %s", want, got)
			}
		}
	})
}

// egressPolicies returns the policies by which a node's pods leave with egress addresses, "MATCH ->
// HOPS".
func egressPolicies(s *cluster.Snapshot, node string) (list []string) {
	state, _ := plan.Node(s, node)
	for _, r := range state.NB {
		if p, is := r.(*nb.Policy); is && (p.Owner.Kind == "EgressIP") {
			list = append(list, strings.TrimPrefix(fmt.Sprintf("%d %s -> %v", p.Priority, p.Match, p.NextHops), "100 "))
		}
	}
	slices.Sort(list)
	return list
}

// TestPodOfTwoEgressIPs: a pod that two EgressIPs select leaves, in each family, with an address of
// the oldest that has one.
func TestPodOfTwoEgressIPs(t *testing.T) {
	s := snapshot(node("node-a", 1, 3), node("node-b", 2, 4), pod("node-a", "p", "10.244.1.3", "fd00:10:244:1::3"))
	s.Namespaces = []*cluster.Namespace{{Name: "default"}}
	on := func(name string, age int, addresses ...string) *cluster.EgressIP {
		e := clustertest.EgressIP(name, age, append(addresses, "172.18.9.9", "fc00:f853:ccd::99")...)
		for _, a := range addresses {
			e.Assigned = append(e.Assigned, cluster.Assignment{Address: addr(a), Node: "node-b"})
		}
		return e
	}
	const four, six = "ip4.src == $egressip_%s_ip4_here -> [100.88.0.3]",
		"ip6.src == $egressip_%s_ip6_here -> [fd97::3]"
	p := plan.NewPlanner()
	for _, c := range []struct {
		name       string
		old, young *cluster.EgressIP
		want       []string
	}{
		{"neither", on("old", 0), on("young", 1), nil},
		{"the younger has an address", on("old", 0), on("young", 1, "172.18.0.44"),
			[]string{fmt.Sprintf(four, "young")}},
		{"the older one of the other family", on("old", 0, "fc00:f853:ccd::33"), on("young", 1, "172.18.0.44"),
			[]string{fmt.Sprintf(four, "young"), fmt.Sprintf(six, "old")}},
		{"both", on("old", 0, "172.18.0.33"), on("young", 1, "172.18.0.44"), []string{fmt.Sprintf(four, "old")}},
		{"the older has lost it", on("old", 0), on("young", 1, "172.18.0.44"), []string{fmt.Sprintf(four, "young")}},
	} {
		s.EgressIPs = []*cluster.EgressIP{c.old, c.young}
		next := *s
		if got := egressPolicies(&next, "node-a"); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if again, fresh := text(p.Node(&next, "node-a")), text(plan.Node(&next, "node-a")); again != fresh {
			t.Errorf("%s: planned again:\n%s\nwant\n%s", c.name, again, fresh)
		}
	}
}

// TestEgressNetworks: an EgressIP with addresses on several networks is used by destination.
func TestEgressNetworks(t *testing.T) {
	a, b, c := node("node-a", 1, 3), node("node-b", 2, 4), node("node-c", 3, 5)
	for i, n := range []*cluster.Node{b, c} {
		n.Links = []cluster.HostLink{{Name: "eth1", Index: 3,
			Addresses: []netip.Prefix{prefix(fmt.Sprintf("10.10.10.%d/24", i+4))}, Routes: []cluster.HostRoute{
				{Prefix: prefix("172.16.0.0/12")}, {Prefix: prefix("192.0.2.0/24"), Via: addr("10.10.10.1")},
			}}}
	}
	s := snapshot(a, b, c, pod("node-a", "p", "10.244.1.3"))
	s.Namespaces = []*cluster.Namespace{{Name: "default"}}
	e := clustertest.EgressIP("e", 0, "172.18.0.33", "10.10.10.33")
	s.EgressIPs = []*cluster.EgressIP{e}
	const src = "ip4.src == $egressip_e_ip4_here"
	for _, x := range []struct {
		name     string
		assigned []cluster.Assignment
		want     []string
	}{
		{"one network", []cluster.Assignment{{Address: e.Addresses[1], Node: "node-c"}},
			[]string{src + " -> [100.88.0.4]"}},
		{"two networks", []cluster.Assignment{{Address: e.Addresses[0], Node: "node-b"},
			{Address: e.Addresses[1], Node: "node-c"}}, []string{
			"101 " + src + " && ip4.dst == 172.18.0.0/16 -> [100.88.0.3]",
			"101 " + src +
				" && ip4.dst == {10.10.10.0/24, 172.16.0.0/12, 192.0.2.0/24} && ip4.dst != " +
				"172.18.0.0/16 -> [100.88.0.4]",
			src + " -> [100.88.0.3]",
		}},
	} {
		e.Assigned = x.assigned
		if got := egressPolicies(s, "node-a"); !slices.Equal(got, x.want) {
			t.Errorf("%s:\n%s, want\n%s", x.name, strings.Join(got, "\n"), strings.Join(x.want, "\n"))
		}
	}
}

// TestReadinessChangesNoPlan: only the controller reads whether a Node is ready or cordoned. A
// change of this does not cause a new plan of 10 000 Services.
func TestReadinessChangesNoPlan(t *testing.T) {
	s := large(3, 50, cluster.IPv4)
	p := plan.NewPlanner()
	first, _ := p.Node(s, "node-000")
	again := *s
	again.Nodes = slices.Clone(s.Nodes)
	other := *s.Nodes[1]
	other.Egress = cluster.NodeEgress{Assignable: true, Ready: true, Leaving: true}
	again.Nodes[1] = &other
	second, _ := p.Node(&again, "node-000")
	for k, r := range first.NB {
		if second.NB[k] != r {
			t.Fatalf("%s is another row", k)
		}
	}
}

// assigned returns a new Snapshot with the controller's decisions.
func assigned(s *cluster.Snapshot) *cluster.Snapshot {
	for _, d := range assign.Addresses(s, assign.Observed{}) {
		d.EgressIP.Assigned = d.Items
	}
	return s
}

// BenchmarkEgressOnePod: 1 000 EgressIPs with 10 000 pods on 100 nodes. One pod changes, on the
// planned node or on one whose packets it translates. The controller's work is measured, too.
func BenchmarkEgressOnePod(b *testing.B) {
	base := assigned(clustertest.ManyEgressIPs(100, 1000, 10000))
	b.Run("nothing", func(b *testing.B) {
		timer := startTimer()
		for range b.N {
			if state, problems := plan.Node(base, "node-000"); len(state.NB) < 300 || len(problems) > 0 {
				b.Fatalf("%d rows, problems %v", len(state.NB), problems)
			}
		}
		timer.report(b, 1000)
	})
	changed := func(n, first int) []*cluster.Snapshot { // one pod at a time
		next, s := make([]*cluster.Snapshot, n), base
		for i := range next {
			n := *s
			n.Pods = slices.Clone(s.Pods)
			k := (first + 100*i) % 10000
			q := *n.Pods[k]
			q.Labels = map[string]string{"app": fmt.Sprint("app-", i%1000)}
			n.Pods[k] = &q
			next[i], s = &n, &n
		}
		return next
	}
	for name, first := range map[string]int{"here": 0, "there": 5003} {
		b.Run(name, func(b *testing.B) {
			p := plan.NewPlanner()
			p.Node(base, "node-000")
			next := changed(b.N, first)
			b.ResetTimer()
			timer := startTimer()
			for _, s := range next {
				p.Node(s, "node-000")
			}
			timer.report(b, 20)
		})
	}
	b.Run("controller", func(b *testing.B) {
		r := assign.NewConflicts()
		r.Of(base)
		next := changed(b.N, 0)
		b.ResetTimer()
		timer := startTimer()
		for _, s := range next {
			r.Of(s)
			assign.Addresses(s, assign.Observed{})
		}
		timer.report(b, 20)
	})
}

// TestEgressChangesFewRows: an added pod changes only members of sets, if there were pods before.
func TestEgressChangesFewRows(t *testing.T) {
	s := assigned(clustertest.ManyEgressIPs(3, 1, 30))
	p := plan.NewPlanner()
	first, _ := p.Node(s, "node-000")
	n := *s
	one := pod("node-001", "zz", "10.244.2.99", "fd00:10:244:2::99")
	one.Labels = map[string]string{"app": "app-0"}
	n.Pods = append(slices.Clone(s.Pods), one)
	second, _ := p.Node(&n, "node-000")
	var changed []string
	for k, r := range second.NB {
		if first.NB[k] != r {
			changed = append(changed, k.String())
			if k.Table != nb.TableAddressSet {
				t.Errorf("%s has changed", k)
			}
		}
	}
	if len(first.NB) != len(second.NB) || len(changed) != 1 {
		t.Errorf("%d rows, then %d; new are %v", len(first.NB), len(second.NB), changed)
	}
}

// BenchmarkEgressLabel: the label of a namespace with 10 000 pods on 100 nodes changes, so that an
// EgressIP has all of them, and back.
func BenchmarkEgressLabel(b *testing.B) {
	s := clustertest.ManyEgressIPs(100, 1, 10000)
	s.EgressIPs[0].Pods = cluster.Selector{}
	s.EgressIPs[0].Namespaces = cluster.Selector{Requirements: []cluster.Requirement{{Key: "egress", Operator: "In",
		Values: []string{"yes"}}}}
	s = assigned(s)
	chosen := *s
	chosen.Namespaces = []*cluster.Namespace{{Name: "default", Labels: map[string]string{"egress": "yes"}}}
	for _, name := range []string{s.EgressIPs[0].Assigned[0].Node, "node-099"} {
		b.Run(name, func(b *testing.B) {
			p := plan.NewPlanner()
			p.Node(s, name)
			timer := startTimer()
			for i := range b.N {
				if i%2 == 0 {
					p.Node(&chosen, name)
				} else {
					p.Node(s, name)
				}
			}
			timer.report(b, 1000)
		})
	}
}
