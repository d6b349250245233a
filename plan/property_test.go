package plan_test

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/cluster/clustertest"
	"hairpin/datapath"
	"hairpin/datapath/nb"
	"hairpin/pipeline"
	"hairpin/plan"
	"hairpin/watch"
)

// Draws are small on purpose: names, addresses and ports often collide.
func drawFrontend(t *rapid.T) *cluster.Frontend {
	family := rapid.SampledFrom([]cluster.Family{cluster.IPv4, cluster.IPv6}).Draw(t, "family")
	ips := map[cluster.Family][]string{cluster.IPv4: {"10.96.0.1", "10.96.0.2", "10.96.0.3", "10.97.0.1"},
		cluster.IPv6: {"fd00:10:96::1", "fd00:10:96::2", "fd00:10:97::1"}}[family]
	ends := map[cluster.Family][]string{
		cluster.IPv4: {"10.244.1.3", "10.244.2.3", "172.18.0.3", "172.18.0.4", "172.20.0.1", "192.0.2.7"},
		cluster.IPv6: {"fd00:10:244:1::3", "fd00:10:244:2::3", "fc00:f853:ccd::3", "fd00:20::1", "2001:db8::7"},
	}[family]
	f := &cluster.Frontend{
		Owner: cluster.Owner{Kind: "Service", Namespace: "default",
			Name: rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "name")},
		PortName: rapid.SampledFrom([]string{"", "http", "dns"}).Draw(t, "port name"),
		Family:   family,
		Protocol: rapid.SampledFrom([]cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP}).Draw(t,
			"protocol"),
		ClusterIP:     addr(rapid.SampledFrom(ips).Draw(t, "cluster IP")),
		Port:          rapid.SampledFrom([]uint16{53, 80, 30001}).Draw(t, "port"),
		NodePort:      rapid.SampledFrom([]uint16{0, 30001, 30002}).Draw(t, "node port"),
		ExternalLocal: rapid.IntRange(0, 4).Draw(t, "policy") == 0,
		Affinity:      time.Duration(rapid.IntRange(0, 1).Draw(t, "affinity")) * time.Hour,
	}
	aged(f, rapid.IntRange(0, 2).Draw(t, "age"), rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "uid"))
	outside := map[cluster.Family][]string{
		cluster.IPv4: {"192.0.2.7", "192.0.2.8", "172.18.0.3", "172.18.0.4", "10.96.0.1"},
		cluster.IPv6: {"2001:db8::7", "fc00:f853:ccd::3", "fc00:f853:ccd::4", "fd00:10:96::1"},
	}[family]
	some := func(what string) (list []netip.Addr) {
		for _, a := range rapid.SliceOfNDistinct(rapid.SampledFrom(outside), 0, 2, rapid.ID).Draw(t, what) {
			list = append(list, addr(a))
		}
		return list
	}
	if rapid.IntRange(0, 2).Draw(t, "outside") == 0 {
		f.ExternalIPs, f.LoadBalancerIPs = some("external IPs"), some("load balancer IPs")
		f.InternalLocal, f.Restricted = rapid.Bool().Draw(t, "internal policy"), rapid.Bool().Draw(t, "restricted")
	}
	for _, e := range rapid.SliceOfNDistinct(rapid.SampledFrom(ends), 0, 3, rapid.ID).Draw(t, "endpoints") {
		ready := rapid.Bool().Draw(t, "ready")
		f.Backends = append(f.Backends, cluster.Backend{Addr: addr(e),
			Port: rapid.SampledFrom([]uint16{8080, 80, 30001}).Draw(t, "endpoint's port"), Ready: ready,
			Serving: ready || rapid.Bool().Draw(t, "serving"), Terminating: !ready})
	}
	slices.SortFunc(f.Backends, func(a, b cluster.Backend) int { return a.Addr.Compare(b.Addr) })
	return f
}

func drawPod(t *rapid.T) *cluster.Pod {
	n, o := rapid.IntRange(1, 2).Draw(t, "node"), rapid.IntRange(3, 6).Draw(t, "octet")
	return pod([]string{"node-a", "node-b"}[n-1], rapid.SampledFrom([]string{"p", "q", "r", "s"}).Draw(t, "pod"),
		fmt.Sprintf("10.244.%d.%d", n, o), fmt.Sprintf("fd00:10:244:%x::%x", n, o))
}

// churn changes a Snapshot as a Store does: new slices, and the same pointers for what did not
// change.
func churn(t *rapid.T, s *cluster.Snapshot) *cluster.Snapshot {
	if rapid.IntRange(0, 2).Draw(t, "policies") == 0 {
		return clustertest.ChurnPolicies(t, s)
	}
	n := *s
	switch rapid.IntRange(0, 9).Draw(t, "what") {
	case 0: // the node itself, or another one
		n.Nodes = slices.Clone(s.Nodes)
		i := rapid.IntRange(0, len(n.Nodes)-1).Draw(t, "which node")
		changed := *n.Nodes[i]
		switch rapid.IntRange(0, 4).Draw(t, "what of it") {
		case 0:
			changed.Gateway.MAC[5]++
		case 1:
			changed.ID = 3 + len(changed.Zone)
		case 2:
			changed.HostAddresses = clustertest.Edit(t, changed.HostAddresses, func(t *rapid.T) netip.Prefix {
				return prefix(rapid.SampledFrom([]string{"192.0.2.7/32", "172.20.0.1/32", "2001:db8::7/128"}).Draw(t,
					"host address"))
			}, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
		default:
			changed.Zone, changed.Leaving, changed.NetworkUnavailable = changed.Zone+"z", !changed.Leaving, "True"
		}
		n.Nodes[i] = &changed
	case 1, 2, 3:
		n.Pods = clustertest.Edit(t, s.Pods, drawPod, (*cluster.Pod).Compare)
	default:
		n.Frontends = clustertest.Edit(t, s.Frontends, func(t *rapid.T) *cluster.Frontend {
			f := drawFrontend(t)
			for _, g := range s.Frontends { // all ports of a Service have its UID and age
				if g.Owner == f.Owner {
					f.UID, f.Created = g.UID, g.Created
				}
			}
			return f
		}, func(a, b *cluster.Frontend) int { // the API rejects a port that is there twice, whatever its name
			a = new(*a)
			a.PortName = b.PortName
			return a.Compare(b)
		})
	}
	return &n
}

func text(state datapath.State, problems []cluster.Problem) string {
	return datapath.Print(state) + fmt.Sprint(problems)
}

// sameText fails unless a Planner returns the same as a new one.
func sameText(t *rapid.T, got, want string) {
	t.Helper()
	if got != want {
		t.Fatalf("the Planner gives, and a new one does not:\n%s\na new one gives, and the Planner does not:\n%s",
			missing(got, want), missing(want, got))
	}
}

// missing returns the lines of a text that the other does not have.
func missing(of, in string) string {
	var b strings.Builder
	lines := slices.Collect(strings.Lines(in))
	for l := range strings.Lines(of) {
		if !slices.Contains(lines, l) {
			b.WriteString(l)
		}
	}
	return b.String()
}

// drawNodes makes a cluster of two nodes.
func drawNodes(t *rapid.T) *cluster.Snapshot {
	a, b := node("node-a", 1, 3), node("node-b", 2, 4)
	a.HostAddresses = append(a.HostAddresses, prefix("172.20.0.1/32"), prefix("fd00:20::1/128"))
	a.Gateway.Userspace, a.Gateway.OpenFlow = true, rapid.Bool().Draw(t, "openflow")
	a.Gateway.NodeLocal = !a.Gateway.OpenFlow && rapid.Bool().Draw(t, "dgp")
	mode := rapid.SampledFrom(modes).Draw(t, "mode")
	inMode(a, mode)
	inMode(b, mode)
	return snapshot(a, b)
}

// A Planner that has seen other Snapshots returns the same as a new one that keeps the same proxy
// ports, and does not change its earlier results.
func TestPlannerIsNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawNodes(t)
		p := plan.NewPlanner()
		var given []datapath.State
		var texts []string
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			s = churn(t, s)
			name := "node-a"
			if rapid.IntRange(0, 9).Draw(t, "other node") == 0 {
				name = "node-b"
			}
			again := plan.NewPlanner()
			again.Keep(p.ProxyPorts())
			state, problems := p.Node(s, name)
			sameText(t, text(state, problems), text(again.Node(s, name)))
			given, texts = append(given, state), append(texts, datapath.Print(state))
		}
		for i := range given {
			if datapath.Print(given[i]) != texts[i] {
				t.Fatalf("the State of step %d was changed later", i)
			}
		}
	})
}

// An unchanged cluster gives the same State, not an equal copy: there is nothing to compare
// afterwards.
func TestPlannerKeepsWhatDidNotChange(t *testing.T) {
	s := large(3, 50, cluster.IPv4, cluster.IPv6)
	p := plan.NewPlanner()
	first, _ := p.Node(s, "node-000")
	again := *s
	again.Nodes = nil
	for _, n := range s.Nodes { // properties that do not affect a node's plan, of itself and of others
		beat := *n
		beat.Leaving, beat.NetworkUnavailable, beat.Egress = true, "True", cluster.NodeEgress{Ready: true}
		if n.Name != "node-000" {
			beat.Zone, beat.Links = "z", []cluster.HostLink{{Name: "eth1"}}
		}
		again.Nodes = append(again.Nodes, &beat)
	}
	second, _ := p.Node(&again, "node-000")
	if !sameMap(first.NB, second.NB) || !first.Bridge.Flows.Same(second.Bridge.Flows) ||
		!sameMap(first.NFT, second.NFT) {
		t.Fatal("a taint, a zone or a condition of a node changes the State")
	}
	third, _ := p.Node(change(s, 22, "10.244.2.9:8080"), "node-000")
	var changed []nb.Key
	for k, r := range third.NB {
		if first.NB[k] != r {
			changed = append(changed, k)
		}
	}
	if len(changed) != 1 || changed[0].Table != nb.TableLoadBalancer {
		t.Fatalf("one changed endpoint gives the new rows %v", changed)
	}
}

// With flows, a changed endpoint changes its group. An added pod changes its own flows, the list of
// ports that br-svc floods to, and OVN's port.
func TestPlannerKeepsFlows(t *testing.T) {
	s := byEngine(large(3, 50, cluster.IPv4, cluster.IPv6), "node-000", true)
	p := plan.NewPlanner()
	first, _ := p.Node(s, "node-000")
	s = change(s, 22, "10.244.2.9:8080")
	second, _ := p.Node(s, "node-000")
	var groups []string
	for k, g := range second.Bridge.Groups.All() {
		if first.Bridge.Groups.At(k) != g {
			groups = append(groups, g.Owner.Name)
		}
	}
	if !slices.Equal(groups, []string{s.Frontends[22].Owner.Name}) || !first.Bridge.Flows.Same(second.Bridge.Flows) {
		t.Errorf("one changed endpoint gives new groups of %v; the flows are the same: %v", groups,
			first.Bridge.Flows.Same(second.Bridge.Flows))
	}
	more := *s
	added := pod("node-000", "added", "10.244.1.99", "fd00:10:244:1::99")
	more.Pods = append(slices.Clone(s.Pods), added)
	slices.SortFunc(more.Pods, (*cluster.Pod).Compare)
	third, _ := p.Node(&more, "node-000")
	for k, f := range third.Bridge.Flows.All() {
		if second.Bridge.Flows.At(k) != f && f.Owner != added.Owner && f.Table != pipeline.SvcMulticast {
			t.Errorf("a pod that comes makes %s new", f)
		}
	}
	for k, r := range third.NB {
		if second.NB[k] != r && k.Name != "pods-node-000" {
			t.Errorf("a pod that comes makes %s new", k)
		}
	}
	if !second.Bridge.Groups.Same(third.Bridge.Groups) {
		t.Error("a pod that comes makes groups new")
	}
}

func sameMap[M any](a, b M) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}

// A rejection for one Service does not rewrite another's rows; nor does an address that moves
// between other nodes.
func TestRejectionsArePlannedAlone(t *testing.T) {
	s := large(3, 50, cluster.IPv4, cluster.IPv6)
	for _, i := range []int{10, 20} {
		s.Frontends[i].ExternalIPs = []netip.Addr{addr("192.0.2.7")}
	}
	p := plan.NewPlanner()
	first, problems := p.Node(s, "node-000")
	if len(problems) != 1 {
		t.Fatalf("problems %v, want one", problems)
	}
	rows := func(what string, s *cluster.Snapshot, refused string, want ...string) {
		t.Helper()
		next, problems := p.Node(s, "node-000")
		if len(problems) != 1 || problems[0].Owner.Name != refused {
			t.Errorf("%s: problems %v, want one of %s", what, problems, refused)
		}
		var changed []string
		for k, r := range next.NB {
			if first.NB[k] != r {
				changed = append(changed, nb.OwnerOf(r).Name)
			}
		}
		slices.Sort(changed)
		if changed = slices.Compact(changed); !slices.Equal(changed, want) {
			t.Errorf("%s: new rows of %v, want %v", what, changed, want)
		}
		first = next
	}
	refused := s.Frontends[20].Owner.Name
	s = change(s, 44, "10.244.2.9:8080")
	rows("another Service's endpoint", s, refused, s.Frontends[44].Owner.Name)
	s = change(s, 20, "10.244.2.9:8080")
	rows("its own endpoint", s, refused, refused)
	s = new(*s)
	s.Nodes = slices.Clone(s.Nodes)
	s.Nodes[1] = new(*s.Nodes[1])
	s.Nodes[1].HostAddresses = append(slices.Clone(s.Nodes[1].HostAddresses), prefix("192.168.7.1/32"))
	rows("another node's address", s, refused, "node-000") // the set of nodes' addresses
	s = change(s, 20, "10.244.2.9:8080")
	s.Frontends[10] = aged(new(*s.Frontends[10]), 1, "")
	rows("the other one was made again", s, s.Frontends[10].Owner.Name, refused)
}

// The order in which objects become known does not matter.
func TestOrder(t *testing.T) {
	for _, name := range []string{"nodeport", "problems", "local", "detached"} {
		archive, err := os.ReadFile(filepath.Join("testdata", name+".txtar"))
		if err != nil {
			t.Fatal(err)
		}
		docs := bytes.Split(txtar.Parse(archive).Files[0].Data, []byte("---\n"))
		plans := func(docs [][]byte) string {
			s := watch.ParseManifests(bytes.Join(docs, []byte("\n---\n")), cluster.DefaultConfig())
			return text(plan.Node(s, "ovn-worker")) + fmt.Sprint(s.Problems)
		}
		want := plans(docs)
		rapid.Check(t, func(t *rapid.T) {
			if got := plans(rapid.Permutation(docs).Draw(t, "order")); got != want {
				t.Fatalf("another order gives\n%s\ninstead of\n%s", missing(got, want), missing(want, got))
			}
		})
	}
}

// Invalid objects do not affect the state of others.
func TestInvalidObjectsDoNotAffectOthers(t *testing.T) {
	good := snapshot(node("node-a", 1, 3), node("node-b", 2, 4), pod("node-a", "p", "10.244.1.3", "fd00:10:244:1::3"),
		frontend("a", "10.96.0.1:80", 30001, "10.244.1.3:8080", "172.18.0.3:8080"),
		frontend("a", "[fd00:10:96::1]:80", 30001, "[fd00:10:244:1::3]:8080"))
	want, problems := plan.Node(good, "node-a")
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	broken := map[string]func(*cluster.Node){
		"no number":    func(n *cluster.Node) { n.ID = 0 },
		"no pods":      func(n *cluster.Node) { n.PodCIDRs = nil },
		"no address":   func(n *cluster.Node) { n.Addresses = nil },
		"same number":  func(n *cluster.Node) { n.ID = 2 },
		"own number":   func(n *cluster.Node) { n.ID = 1 },
		"same address": func(n *cluster.Node) { n.Addresses = []netip.Addr{addr("172.18.0.3")} },
		"same pods":    func(n *cluster.Node) { n.PodCIDRs = []netip.Prefix{prefix("10.244.2.0/24")} },
	}
	names := slices.Sorted(maps.Keys(broken))
	rapid.Check(t, func(t *rapid.T) {
		s := snapshot(good.Nodes[0], good.Nodes[1], good.Pods[0], good.Frontends)
		for i, what := range rapid.SliceOfN(rapid.SampledFrom(names), 0, 3).Draw(t, "nodes") {
			n := node(fmt.Sprintf("node-z%d", i), 10+i, 10+i)
			broken[what](n)
			s.Nodes = append(s.Nodes, n)
		}
		for i := range rapid.IntRange(0, 4).Draw(t, "services") {
			f := drawFrontend(t)
			f.Owner.Name = fmt.Sprintf("z%d", i)
			s.Frontends = append(s.Frontends, f)
		}
		s.Pods = append(s.Pods, pod("node-a", "z", "10.244.1.3"), pod("node-a", "zz", "192.0.2.1"))
		state, _ := plan.Node(s, "node-a")
		for k, r := range want.NB {
			if strings.HasPrefix(k.Name, "hosts_") { // all nodes
				continue
			}
			if !nb.Equal(state.NB[k], r) {
				t.Fatalf("%s is changed", k)
			}
		}
		for k, f := range want.Bridge.Flows.All() {
			if g := state.Bridge.Flows.At(k); g == nil || !g.Equal(f) {
				t.Fatalf("flow %s is changed", k.Value())
			}
		}
		if _, there := state.NB[nb.Key{Table: nb.TableSwitchPort, Name: "default_z"}]; there {
			t.Fatal("a pod has the address of another")
		}
	})
}
