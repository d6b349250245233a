package plan_test

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/cluster/clustertest"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/pipeline"
	"hairpin/plan"
	"hairpin/policy"
	"hairpin/walk"
	"hairpin/walk/explain"
	"hairpin/walk/explain/question"
	"hairpin/walk/explain/why"
	"hairpin/walk/packet"
)

// drawPolicyCluster draws two nodes with the Service engine openflow, pods, and a Service with a
// NodePort for each of some pods.
func drawPolicyCluster(t *rapid.T) *cluster.Snapshot {
	a, b := node("node-a", 1, 3), node("node-b", 2, 4)
	mode := rapid.SampledFrom(modes).Draw(t, "mode")
	for _, n := range []*cluster.Node{a, b} {
		n.Gateway.OpenFlow, n.Gateway.Userspace = true, rapid.Bool().Draw(t, "userspace")
		inMode(n, mode)
	}
	s := snapshot(a, b)
	s.Namespaces = clustertest.DrawNamespaces(t)
	for range rapid.IntRange(1, 5).Draw(t, "pods") {
		p := clustertest.DrawPolicyPod(t)
		if !slices.ContainsFunc(s.Pods,
			func(q *cluster.Pod) bool { return p.Owner == q.Owner || p.IPs[0] == q.IPs[0] }) {
			s.Pods = append(s.Pods, p)
		}
	}
	slices.SortFunc(s.Pods, (*cluster.Pod).Compare)
	for i, p := range s.Pods {
		for _, ip := range p.IPs {
			vip, local := netip.AddrPortFrom(addr(fmt.Sprintf("10.96.0.%d", i+1)), 100),
				rapid.Bool().Draw(t, "policy Local")
			if ip.Is6() {
				vip = netip.AddrPortFrom(addr(fmt.Sprintf("fd00:10:96::%d", i+1)), 100)
			}
			f := frontend(p.Owner.Namespace+"-"+p.Owner.Name, vip.String(), uint16(30000+i),
				netip.AddrPortFrom(ip, 80).String())
			f.Backends[0].Node, f.ExternalLocal = p.Node, local
			s.Frontends = append(s.Frontends, f)
		}
	}
	slices.SortFunc(s.Frontends, (*cluster.Frontend).Compare)
	return s
}

func drawPolicies(t *rapid.T) (list []*cluster.Policy) {
	for range rapid.IntRange(1, 6).Draw(t, "policies") {
		list = clustertest.Edit(t, list, clustertest.DrawPolicy,
			(*cluster.Policy).Compare)
	}
	return list
}

func policyWorld(t *rapid.T, s *cluster.Snapshot) walk.World {
	w := walk.World{Snapshot: s, States: map[string]datapath.State{}}
	for _, n := range s.Nodes {
		state, problems := plan.Node(s, n.Name)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		checkConjunctions(t, state.Bridge.Flows.All())
		w.States[n.Name] = state
	}
	return w
}

// conjunctionKey is a conjunction in one table, at one priority.
type conjunctionKey struct {
	table    uint8
	priority uint16
	id       uint32
}

// checkConjunctions checks that all flows are valid, and that each conjunction which a packet may
// have has a flow that decides: without one, Open vSwitch drops what another rule accepts.
func checkConjunctions(t *rapid.T, flows iter.Seq2[flow.ID, *flow.Flow]) {
	clauses, decided := map[conjunctionKey]uint8{}, map[conjunctionKey]bool{}
	for _, f := range flows {
		if err := f.Check(); err != nil {
			t.Fatal(err)
		}
		k := conjunctionKey{f.Table, f.Priority, f.Match.ConjID}
		if k.id != 0 {
			decided[k] = true
		}
		for _, a := range f.Actions {
			if c, ok := a.(flow.Conjunction); ok {
				k.id = c.ID
				clauses[k] |= c.Clause
			}
		}
	}
	for k, has := range clauses {
		if has == 3 && !decided[k] {
			t.Fatalf("table %d, priority %d: no flow matches conj_id=%d", k.table, k.priority, k.id)
		}
	}
}

// sender is a place that packets start from, and its address of a family.
type sender struct {
	walk.Point
	pod  *cluster.Pod
	addr func(cluster.Family) netip.Addr
}

func senders(s *cluster.Snapshot) (list []sender) {
	for _, n := range s.Nodes {
		list = append(list, sender{Point: walk.Point{Node: n.Name},
			addr: func(cluster.Family) netip.Addr { return netip.Addr{} }})
	}
	for _, p := range s.Pods {
		list = append(list, sender{walk.Point{Node: p.Node, Pod: p.Owner}, p, func(f cluster.Family) netip.Addr {
			return p.IPs[slices.IndexFunc(p.IPs, func(a netip.Addr) bool { return cluster.FamilyOf(a) == f })]
		}})
	}
	return append(list, sender{addr: func(f cluster.Family) netip.Addr {
		if f == cluster.IPv4 {
			return addr("192.0.2.200")
		}
		return addr("2001:db8::200")
	}})
}

func podAt(s *cluster.Snapshot, a netip.Addr) *cluster.Pod {
	for _, p := range s.Pods {
		if slices.Contains(p.IPs, a) {
			return p
		}
	}
	return nil
}

func stages(steps []packet.Step) string {
	var b strings.Builder
	for _, s := range steps {
		fmt.Fprintf(&b, "%s %s: %s: %s\n", s.Node, s.Stage, s.Rule, s.Did)
	}
	return b.String()
}

// decisions are those of the evaluator for a packet whose walk without policies is was. Egress is
// judged on the sender's node, with what that node translates. Ingress is judged with the source
// that the pod sees.
func decisions(s *cluster.Snapshot, from sender, p packet.Packet, was walk.Trace) (egress, ingress policy.Verdict) {
	seen := was.Verdict.Seen
	sent, stays := seen, !slices.ContainsFunc(was.Forward, func(s packet.Step) bool { return s.Node != from.Node })
	if i := slices.IndexFunc(was.Forward, func(s packet.Step) bool { return s.Node != from.Node }); i > 0 {
		sent = was.Forward[i-1].After
	}
	own := slices.IndexFunc(s.Nodes, func(n *cluster.Node) bool { return n.Name == from.Node })
	egress, _ = policy.Evaluate(s, policy.Packet{From: policy.Endpoint{Addr: p.Src, Pod: from.pod},
		To: policy.Endpoint{Addr: sent.Dst, Pod: podAt(s, sent.Dst)}, Protocol: p.Protocol, Port: sent.DstPort,
		ToOwnNode: own >= 0 && s.Nodes[own].Address(cluster.FamilyOf(sent.Dst)) == sent.Dst})
	client := policy.Endpoint{Addr: seen.Src, Pod: podAt(s, seen.Src)}
	if stays && from.pod != nil {
		client.Pod = from.pod // a pod that reaches itself by a Service has another source
	}
	_, ingress = policy.Evaluate(s, policy.Packet{From: client,
		To: policy.Endpoint{Addr: seen.Dst, Pod: podAt(s, seen.Dst)}, Protocol: p.Protocol, Port: seen.DstPort,
		FromOwnNode: stays && from.pod == nil && from.Node != ""})
	return egress, ingress
}

// targets are addresses and ports of pods, and of their Services.
func targets(s *cluster.Snapshot) (list []netip.AddrPort) {
	for _, p := range s.Pods {
		for _, ip := range p.IPs {
			for _, port := range []uint16{53, 80, 8080} {
				list = append(list, netip.AddrPortFrom(ip, port))
			}
		}
	}
	for _, f := range s.Frontends {
		list = append(list, netip.AddrPortFrom(f.ClusterIP, f.Port))
		for _, n := range s.Nodes {
			list = append(list, netip.AddrPortFrom(n.Address(f.Family), f.NodePort))
		}
	}
	return list
}

// The client's packet of an open connection arrives if and only if the evaluator accepts it now,
// after each of some changes of policies. The server's packet arrives if the client's last one did.
// It does not if the direction that denied that, egress or ingress, still denies it. The other
// direction's node decides when the client's next packet arrives.
func TestPoliciesRevoke(t *testing.T) {
	var revoked, again int
	rapid.Check(t, func(t *rapid.T) {
		s := drawPolicyCluster(t)
		if len(s.Pods) == 0 {
			return
		}
		from := rapid.SampledFrom(senders(s)).Draw(t, "from")
		to := rapid.SampledFrom(targets(s)).Draw(t, "to")
		protocol := rapid.SampledFrom([]cluster.Protocol{cluster.TCP, cluster.UDP}).Draw(t, "protocol")
		if i := slices.IndexFunc(s.Frontends, func(f *cluster.Frontend) bool {
			return f.ClusterIP == to.Addr() || f.NodePort == to.Port()
		}); i >= 0 {
			protocol = s.Frontends[i].Protocol
		}
		p := packet.Packet{Protocol: protocol, Src: from.addr(cluster.FamilyOf(to.Addr())), SrcPort: 40000,
			Dst: to.Addr(), DstPort: to.Port()}
		was, err := walk.New(policyWorld(t, s)).Walk(from.Point, p)
		if err != nil {
			t.Fatal(err)
		}
		if !was.Verdict.Answered || podAt(s, was.Verdict.Seen.Dst) == nil {
			return
		}
		seen := was.Verdict.Seen
		back := packet.Packet{Protocol: protocol, Src: seen.Dst, SrcPort: seen.DstPort, Dst: seen.Src,
			DstPort: seen.SrcPort}
		// Of another node's host or client, the pod's node does not track the connection.
		joined := slices.ContainsFunc(s.Config.JoinSubnets, func(p netip.Prefix) bool { return p.Contains(seen.Src) })
		var open walk.Connections
		known, last := false, true   // whether the connection was open, and its client's last packet arrived
		var atEgress, atIngress bool // which direction denied that packet
		for range rapid.IntRange(2, 6).Draw(t, "changes") {
			now := *s
			if rapid.Bool().Draw(t, "policies") {
				now.Policies = drawPolicies(t)
			}
			w := walk.New(policyWorld(t, &now))
			egress, ingress := decisions(&now, from, p, was)
			want := egress.Accepted && ingress.Accepted
			reply := func(why string) {
				t.Helper()
				if !known {
					return // the server would open a connection
				}
				got, err := w.Send(&open, was.Verdict.At, back)
				if err != nil {
					t.Fatal(err)
				}
				if arrives := got.Verdict.Delivered && got.Verdict.At == from.Point; arrives != last &&
					(last || !joined && (atEgress && !egress.Accepted || atIngress && !ingress.Accepted)) {
					t.Fatalf("%s: the server's packet %v to %v arrives: %v\n%v", why, back, from.Point, arrives,
						stages(got.Forward))
				}
			}
			reply("after a change")
			got, err := w.Send(&open, from.Point, p)
			if err != nil {
				t.Fatal(err)
			}
			if got.Verdict.Delivered != want {
				t.Fatalf("%v from %v: delivered %v, want: %v; %v\n%v", p, from.Point, got.Verdict.Delivered, egress,
					ingress,
					stages(got.Forward))
			}
			if want && got.Verdict.Seen != seen {
				t.Fatalf("%v from %v arrives as %v, not %v\n%v", p, from.Point, got.Verdict.Seen, seen,
					stages(got.Forward))
			}
			if known && want != last {
				if want {
					again++
				} else {
					revoked++
				}
			}
			known, last = known || want, want
			atEgress, atIngress = !egress.Accepted, egress.Accepted && !ingress.Accepted
			reply("after the client's packet")
		}
	})
	t.Logf("%d connections were revoked, %d continued", revoked, again)
	if revoked == 0 || again == 0 {
		t.Error("the clusters are too simple")
	}
}

// A packet arrives if and only if it arrives without policies and the evaluator accepts it, with
// the source that the pod would see. It is sent to each pod, by its address and by its Service,
// from each pod, node and external client, and to each node from each pod, in each mode.
func TestPoliciesDecide(t *testing.T) {
	var arrived, denied int
	rapid.Check(t, func(t *rapid.T) {
		s := drawPolicyCluster(t)
		before := walk.New(policyWorld(t, s))
		policed := *s
		policed.Policies = drawPolicies(t)
		policed.Nodes = clustertest.Relabel(t, s.Nodes)
		after := walk.New(policyWorld(t, &policed))
		try := func(from sender, to netip.AddrPort, protocol cluster.Protocol) {
			p := packet.Packet{Protocol: protocol, Src: from.addr(cluster.FamilyOf(to.Addr())), SrcPort: 40000,
				Dst: to.Addr(), DstPort: to.Port()}
			was, err := before.Walk(from.Point, p)
			if err != nil {
				t.Fatalf("without policies, %v from %v: %v", p, from.Point, err)
			}
			now, err := after.Walk(from.Point, p)
			if err != nil {
				t.Fatalf("%v from %v: %v", p, from.Point, err)
			}
			seen := was.Verdict.Seen
			if !was.Verdict.Delivered || podAt(s, seen.Dst) == nil && from.pod == nil {
				return
			}
			egress, ingress := decisions(&policed, from, p, was)
			want := egress.Accepted && ingress.Accepted
			for _, x := range []struct {
				s *cluster.Snapshot
				t walk.Trace
			}{{s, was}, {&policed, now}} {
				q := question.Question{From: from.String(), To: to.String(), Protocol: protocol}
				e, err := explain.Of(x.s, q, x.t)
				if err != nil {
					t.Fatal(err)
				}
				if x.s == s && len(e.Policies) > 0 {
					t.Fatalf("%v from %v: without policies it explains %v", p, from.Point, e.Policies)
				}
				denies := slices.ContainsFunc(e.Policies, func(d why.Decision) bool { return !d.Accepted })
				if denies == x.t.Verdict.Delivered {
					t.Fatalf("%v from %v: delivered %v, but it explains %v\n%v", p, from.Point, x.t.Verdict.Delivered,
						e.Policies, stages(x.t.Forward))
				}
			}
			if now.Verdict.Delivered != want {
				t.Fatalf("%v from %v, which arrives as %v: delivered %v, want: %v; %v\n%v", p, from.Point, seen,
					now.Verdict.Delivered, egress, ingress, stages(now.Forward))
			}
			if !want {
				denied++
				return
			}
			arrived++
			if was.Verdict.Answered != now.Verdict.Answered || was.Verdict.Answer != now.Verdict.Answer {
				t.Fatalf("%v from %v: the answer was %v %v, and is %v %v %s\n%v", p, from.Point, was.Verdict.Answered,
					was.Verdict.Answer, now.Verdict.Answered, now.Verdict.Answer, now.Verdict.AnswerReason,
					stages(now.Reply))
			}
		}
		for _, from := range senders(s) {
			for _, p := range s.Pods {
				for _, ip := range p.IPs {
					for _, protocol := range []cluster.Protocol{cluster.TCP, cluster.UDP} {
						for _, port := range []uint16{53, 80, 8080} {
							if from.pod != nil || from.Node != "" {
								try(from, netip.AddrPortFrom(ip, port), protocol)
							}
						}
					}
				}
			}
			for _, n := range s.Nodes {
				for _, f := range []cluster.Family{cluster.IPv4, cluster.IPv6} {
					if from.pod != nil {
						try(from, netip.AddrPortFrom(n.Address(f), 80), cluster.TCP)
					}
				}
			}
			for _, f := range s.Frontends {
				if from.pod != nil || from.Node != "" {
					try(from, netip.AddrPortFrom(f.ClusterIP, f.Port), f.Protocol)
				}
				for _, n := range s.Nodes {
					try(from, netip.AddrPortFrom(n.Address(f.Family), f.NodePort), f.Protocol)
				}
			}
		}
	})
	t.Logf("%d packets arrived, policies dropped %d", arrived, denied)
	if arrived == 0 || denied == 0 {
		t.Error("the clusters are too simple")
	}
}

// policies returns a cluster in which node-000 has 250 pods, isolated by 100 policies with three
// peers each, among 10 000 pods with 300 applications, and more policies of other namespaces.
func manyPolicies(policies int) *cluster.Snapshot {
	s := snapshot(byEngineNodes(40)...)
	s.Namespaces = []*cluster.Namespace{{Name: "default"}, {Name: "other"}}
	app := func(i int) map[string]string { return map[string]string{"app": fmt.Sprintf("app-%03d", i%300)} }
	for i := range 10000 {
		p := pod(fmt.Sprintf("node-%03d", i%40), fmt.Sprintf("pod-%05d", i),
			fmt.Sprintf("10.244.%d.%d", i%40+1, 3+i/40))
		p.Labels = app(i / 40)
		s.Pods = append(s.Pods, p)
	}
	in := func(key, value string) cluster.Selector {
		return cluster.Selector{Requirements: []cluster.Requirement{{Key: key, Operator: "In",
			Values: []string{value}}}}
	}
	for i := range policies {
		namespace := "default"
		if i >= 100 {
			namespace = "other"
		}
		p := &cluster.Policy{Owner: cluster.Owner{Kind: "NetworkPolicy", Namespace: namespace,
			Name: fmt.Sprintf("policy-%05d", i)}, Tier: cluster.TierNetworkPolicy,
			Subject: cluster.PodSelector{Namespace: namespace, Pods: in("app", app(i)["app"])}}
		p.Ingress.Isolates = true
		for k := range 3 {
			p.Ingress.Rules = append(p.Ingress.Rules, cluster.PolicyRule{
				Peers: []cluster.PolicyPeer{{Pods: &cluster.PodSelector{Namespace: namespace,
					Pods: in("app", app(i*3 + k)["app"])}}},
				Ports: []cluster.PolicyPort{{Protocol: cluster.TCP, First: 80, Last: uint16(80 + k)}}})
		}
		s.Policies = append(s.Policies, p)
	}
	slices.SortFunc(s.Policies, (*cluster.Policy).Compare)
	return s
}

func byEngineNodes(n int) (list []any) {
	for i := range n {
		x := node(fmt.Sprintf("node-%03d", i), i+1, i+3)
		x.Gateway.OpenFlow, x.Gateway.Userspace = true, true
		list = append(list, x)
	}
	return list
}

// BenchmarkPolicies measures one changed policy that selects own pods, one of another namespace,
// and one relabelled pod of another node, beside so many policies.
func BenchmarkPolicies(b *testing.B) {
	for _, n := range []int{10, 1000, 10000} {
		s := manyPolicies(n)
		p := plan.NewPlanner()
		first, _ := p.Node(s, "node-000")
		count := 0
		for _, f := range first.Bridge.Flows.All() {
			if f.Feature == claims.FeaturePolicies {
				count++
			}
		}
		changes := map[string]func(*cluster.Snapshot, int){
			"own policy": func(s *cluster.Snapshot, i int) {
				x := *s.Policies[5]
				x.Ingress.Rules = slices.Clone(x.Ingress.Rules)
				x.Ingress.Rules[0].Ports = []cluster.PolicyPort{{Protocol: cluster.TCP, First: uint16(i%1000 + 1),
					Last: uint16(i%1000 + 1)}}
				s.Policies = slices.Clone(s.Policies)
				s.Policies[5] = &x
			},
			"other policy": func(s *cluster.Snapshot, i int) {
				x := *s.Policies[len(s.Policies)-1]
				s.Policies = slices.Clone(s.Policies)
				s.Policies[len(s.Policies)-1] = &x
			},
			"label": func(s *cluster.Snapshot, i int) {
				x := *s.Pods[4711]
				x.Labels = map[string]string{"app": fmt.Sprintf("app-%03d", i%30)}
				s.Pods = slices.Clone(s.Pods)
				s.Pods[4711] = &x
			},
		}
		for _, name := range []string{"own policy", "other policy", "label"} {
			b.Run(fmt.Sprintf("%d/%s", n, name), func(b *testing.B) {
				next := s
				i := 0
				for b.Loop() {
					x := *next
					changes[name](&x, i)
					i++
					next = &x
					p.Node(next, "node-000")
				}
				b.ReportMetric(float64(count), "flows")
			})
		}
	}
}

// TestIsolatedPods: a Planner counts the pods of its node to which policies apply, after each
// change.
func TestIsolatedPods(t *testing.T) {
	most := 0
	rapid.Check(t, func(t *rapid.T) {
		s := drawPolicyCluster(t)
		p := plan.NewPlanner()
		for range 3 {
			next := *s
			next.Policies = drawPolicies(t)
			want := 0
			for _, pod := range next.Pods {
				if pod.Node == "node-a" && len(policy.Selecting(&next, pod, policy.Egress))+
					len(policy.Selecting(&next, pod, policy.Ingress)) > 0 {
					want++
				}
			}
			p.Node(&next, "node-a")
			if got := p.IsolatedPods(); got != want {
				t.Fatalf("%d isolated pods, not %d", got, want)
			}
			most = max(most, want)
		}
	})
	if most == 0 {
		t.Error("no pod was isolated")
	}
}

// A machine outside cannot send to a NodePort with a source of the pod network: policies would take
// the packet for that pod's.
func TestForeignSources(t *testing.T) {
	for _, mode := range modes {
		a, b := node("node-a", 1, 3), node("node-b", 2, 4)
		for _, n := range []*cluster.Node{a, b} {
			n.Gateway.OpenFlow, n.Gateway.Userspace = true, true
			inMode(n, mode)
		}
		s := snapshot(a, b, pod("node-a", "p", "10.244.1.3", "fd00:10:244:1::3"),
			frontend("a", "10.96.0.1:80", 30001, "10.244.1.3:8080"),
			frontend("a", "[fd00:10:96::1]:80", 30001, "[fd00:10:244:1::3]:8080"))
		w := walk.World{Snapshot: s, States: map[string]datapath.State{}}
		for _, n := range s.Nodes {
			w.States[n.Name], _ = plan.Node(s, n.Name)
		}
		for _, c := range []struct {
			src  string
			want bool
		}{
			{"192.0.2.200", true}, {"10.244.1.2", false}, {"10.244.1.9", false}, {"10.244.2.9", false},
			{"2001:db8::200", true}, {"fd00:10:244:1::2", false}, {"fd00:10:244:2::9", false},
		} {
			src := addr(c.src)
			tr, err := walk.Walk(w, walk.Point{}, packet.Packet{Protocol: cluster.TCP, Src: src, SrcPort: 4000,
				Dst: a.Address(cluster.FamilyOf(src)), DstPort: 30001})
			if err != nil {
				t.Fatal(err)
			}
			if tr.Verdict.Delivered != c.want {
				t.Errorf("%s: a packet from %s: delivered %v: %s", mode, c.src, !c.want, tr.Verdict.Reason)
			}
		}
	}
}

// Several pods may have an extra address, also pods that different policies isolate.
func TestSharedExtraAddress(t *testing.T) {
	a := node("node-a", 1, 3)
	a.Gateway.OpenFlow, a.Gateway.Userspace = true, true
	s := snapshot(a, pod("node-a", "p", "10.244.1.3", "fd00:10:244:1::3"), pod("node-a", "q", "10.244.1.4",
		"fd00:10:244:1::4"))
	for i, p := range s.Pods {
		p.Extra = []netip.Addr{addr("192.0.2.50"), addr("2001:db8::50")}
		p.Labels = map[string]string{"app": p.Owner.Name}
		x := &cluster.Policy{Owner: cluster.Owner{Kind: "NetworkPolicy", Namespace: "default", Name: p.Owner.Name},
			Tier: cluster.TierNetworkPolicy, Subject: cluster.PodSelector{Namespace: "default", Pods: cluster.Selector{
				Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{p.Owner.Name}}}}}}
		x.Ingress = cluster.PolicyDirection{Isolates: true, Rules: []cluster.PolicyRule{{AllPeers: true,
			Ports: []cluster.PolicyPort{{Protocol: cluster.TCP, First: uint16(80 + i), Last: uint16(80 + i)}}}}}
		s.Policies = append(s.Policies, x)
	}
	state, problems := plan.Node(s, "node-a")
	profiles := map[uint32]bool{}
	for _, f := range state.Bridge.Flows.All() {
		if x, ok := f.Actions[0].(flow.SetProfile); ok && f.Table == pipeline.SvcIngressClassifier &&
			f.Match.Dst.Addr() == addr("192.0.2.50") {
			profiles[x.ID] = true
		}
	}
	if len(profiles) != 2 || len(problems) > 0 {
		t.Errorf("two pods with one extra address have %d profiles there; problems %v", len(profiles), problems)
	}
}

// A pod cannot reach an isolated pod of its node by the pod's MAC with another destination address.
func TestIsolatedByMAC(t *testing.T) {
	a := node("node-a", 1, 3)
	a.Gateway.OpenFlow, a.Gateway.Userspace = true, true
	nobody := frontend("nobody", "10.96.0.9:80", 0)
	nobody.ExternalIPs = []netip.Addr{addr("192.0.2.50")}
	s := snapshot(a, pod("node-a", "p", "10.244.1.3", "fd00:10:244:1::3"), pod("node-a", "q", "10.244.1.4",
		"fd00:10:244:1::4"), nobody)
	s.Pods[1].Labels = map[string]string{"app": "q"}
	reaches := func(dst string, port uint16) bool {
		state, problems := plan.Node(s, "node-a")
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		w := walk.World{Snapshot: s, States: map[string]datapath.State{"node-a": state}}
		p := packet.Packet{Protocol: cluster.TCP, Src: s.Pods[0].IPs[0], SrcPort: 4000, Dst: addr(dst), DstPort: port,
			EthDst: s.Pods[1].MAC}
		if p.Dst.Is6() {
			p.Src = s.Pods[0].IPs[1]
		}
		tr, _ := walk.Walk(w, walk.Point{Node: "node-a", Pod: s.Pods[0].Owner}, p)
		for _, step := range tr.Forward {
			if strings.Contains(step.Rule, "output:hairpin") {
				return true
			}
		}
		return false
	}
	list := []string{"10.244.1.4", "172.18.0.3", "10.244.1.2", "192.0.2.9", "10.244.2.9", "192.0.2.50", "100.64.0.9",
		"fd00:10:244:1::4", "2001:db8::9", "fd98::9"}
	if !reaches(list[0], 80) {
		t.Fatal("without policies, it does not arrive at its own address")
	}
	s.Policies = []*cluster.Policy{{Owner: cluster.Owner{Kind: "NetworkPolicy", Namespace: "default", Name: "q"},
		Tier: cluster.TierNetworkPolicy, Ingress: cluster.PolicyDirection{Isolates: true},
		Subject: cluster.PodSelector{Namespace: "default", Pods: cluster.Selector{
			Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{"q"}}}}}}}
	for _, dst := range list {
		if reaches(dst, 80) {
			t.Errorf("a packet to %s with the MAC of the isolated pod arrives there", dst)
		}
	}
}

// In the tiers of ClusterNetworkPolicies, a flow that would have too many conjunctions drops:
// without some of them, a packet could pass that a rule denies.
func TestTooManyClusterPolicies(t *testing.T) {
	a := node("node-a", 1, 3)
	a.Gateway.OpenFlow, a.Gateway.Userspace = true, true
	s := snapshot(a, pod("node-a", "p", "10.244.1.3", "fd00:10:244:1::3"), pod("node-a", "q", "10.244.1.4",
		"fd00:10:244:1::4"), pod("node-a", "r", "10.244.1.5", "fd00:10:244:1::5"))
	s.Pods[0].Labels, s.Pods[1].Labels = map[string]string{"app": "p"}, map[string]string{"app": "q"}
	s.Namespaces = []*cluster.Namespace{{Name: "default"}}
	app := func(operator metav1.LabelSelectorOperator, values ...string) cluster.Selector {
		return cluster.Selector{Requirements: []cluster.Requirement{{Key: "app", Operator: operator, Values: values}}}
	}
	delivered := func(from int, policies int) bool {
		s.Policies = nil
		for i := range policies {
			// All match p, and none r: its label is missing.
			peer := app("In", "p", fmt.Sprintf("z%04d", i))
			x := &cluster.Policy{Owner: cluster.Owner{Kind: "ClusterNetworkPolicy", Name: fmt.Sprintf("c%04d", i)},
				Tier: cluster.TierAdmin, Priority: 5, Subject: cluster.PodSelector{Pods: app("In", "q")}}
			x.Ingress.Rules = []cluster.PolicyRule{{Action: cluster.Pass, AllPorts: true,
				Peers: []cluster.PolicyPeer{{Pods: &cluster.PodSelector{Pods: peer}}}}}
			s.Policies = append(s.Policies, x)
		}
		state, problems := plan.Node(s, "node-a")
		if many := policies > flow.MaxConjunctions; many != (len(problems) > 0) {
			t.Errorf("%d policies: problems %v", policies, problems)
		}
		for _, f := range state.Bridge.Flows.All() {
			if err := f.Check(); err != nil {
				t.Fatal(err)
			}
		}
		w := walk.World{Snapshot: s, States: map[string]datapath.State{"node-a": state}}
		tr, err := walk.Walk(w, walk.Point{Node: "node-a", Pod: s.Pods[from].Owner}, packet.Packet{
			Protocol: cluster.TCP, Src: s.Pods[from].IPs[0], SrcPort: 4000, Dst: s.Pods[1].IPs[0], DstPort: 80})
		if err != nil {
			t.Fatal(err)
		}
		return tr.Verdict.Delivered
	}
	if !delivered(0, 3) || !delivered(2, 3) {
		t.Error("with rules that pass, a packet is not delivered")
	}
	if delivered(0, flow.MaxConjunctions+1) {
		t.Error("with too many rules, a packet is delivered")
	}
}
