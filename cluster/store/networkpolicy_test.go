package store_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"hairpin/cluster"
	"hairpin/cluster/parse"
	"hairpin/cluster/store"
)

// networkPolicy makes the NetworkPolicy default/policy of a spec in YAML.
func networkPolicy(t testing.TB, spec string) *networkingv1.NetworkPolicy {
	t.Helper()
	o := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "policy"}}
	if err := yaml.UnmarshalStrict([]byte(spec), &o.Spec); err != nil {
		t.Fatalf("%s: %v", spec, err)
	}
	return o
}

// text returns a Policy in one line: "[app In [db]] ingress [default/[] on tcp/80] egress". The
// namespace of the subject is not in it.
func text(p *cluster.Policy) string {
	out := selectorText(p.Subject.Pods)
	for _, d := range []struct {
		name string
		of   cluster.PolicyDirection
	}{{"ingress", p.Ingress}, {"egress", p.Egress}} {
		if d.of.Isolates {
			out += " " + d.name
		}
		for _, r := range d.of.Rules {
			out += " [" + peersText(r) + " on " + portsText(r) + "]"
		}
	}
	return out
}

// selectorText returns "[app In [db], tier Exists []]".
func selectorText(s cluster.Selector) string {
	var list []string
	for _, r := range s.Requirements {
		list = append(list, fmt.Sprint(r.Key, " ", r.Operator, " ", r.Values))
	}
	return "[" + strings.Join(list, ", ") + "]"
}

func peersText(r cluster.PolicyRule) string {
	var list []string
	if r.AllPeers {
		list = append(list, "all")
	}
	for _, p := range r.Peers {
		switch {
		case p.Nodes != nil:
			list = append(list, "nodes "+selectorText(*p.Nodes))
		case p.Pods == nil:
			list = append(list, strings.Trim(fmt.Sprint(p.Blocks), "[]"))
		case p.Pods.Namespace != "":
			list = append(list, p.Pods.Namespace+"/"+selectorText(p.Pods.Pods))
		default:
			list = append(list, selectorText(p.Pods.Namespaces)+"/"+selectorText(p.Pods.Pods))
		}
	}
	return strings.Join(list, ", ")
}

func portsText(r cluster.PolicyRule) string {
	var list []string
	if r.AllPorts {
		list = append(list, "all")
	}
	for _, p := range r.Ports {
		of := p.Name
		switch {
		case of != "":
		case p.First == 0 && p.Last == 65535:
			of = "*"
		case p.First == p.Last:
			of = fmt.Sprint(p.First)
		default:
			of = fmt.Sprintf("%d-%d", p.First, p.Last)
		}
		list = append(list, p.Protocol.String()+"/"+of)
	}
	return strings.Join(list, ", ")
}

// TestNetworkPolicy: every form of a NetworkPolicy, valid and invalid, gives these facts.
func TestNetworkPolicy(t *testing.T) {
	const nothing = ": it admits nothing"
	for _, c := range []struct {
		spec, want string
		problems   []string // without the owner
	}{
		// policyTypes
		{`{}`, `[] ingress`, nil},
		{`{ingress: []}`, `[] ingress`, nil},
		{`{egress: []}`, `[] ingress`, nil},
		{`{egress: [{}]}`, `[] ingress egress [all on all]`, nil},
		{`{policyTypes: [Egress]}`, `[] egress`, nil},
		{`{policyTypes: [Ingress], egress: [{}]}`, `[] ingress`, nil},
		{`{policyTypes: [Egress], ingress: [{}]}`, `[] egress`, nil},
		{`{policyTypes: [Ingress, Egress], ingress: [{}]}`, `[] ingress [all on all] egress`, nil},
		{`{policyTypes: [Both, Ingress]}`, `[] ingress egress`,
			[]string{`spec.policyTypes[0]: "Both" is neither Ingress nor Egress: the policy isolates its pods in both directions`}},
		// subject
		{`{podSelector: {matchLabels: {app: db, tier: x}}}`, `[app In [db], tier In [x]] ingress`, nil},
		{`{podSelector: {matchExpressions: [{key: b, operator: NotIn, values: [w, v]}, {key: a, operator: Exists}]}}`,
			`[a Exists [], b NotIn [v w]] ingress`, nil},
		{`{podSelector: {matchExpressions: [{key: a, operator: Near}]}, ingress: [{}]}`, `[] ingress`,
			[]string{`spec.podSelector: is not a label selector: "Near" is not a valid label selector operator: ` +
				`the policy isolates all pods of its namespace`}},
		// peers
		{`{ingress: [{from: []}]}`, `[] ingress [all on all]`, nil},
		{`{ingress: [{from: [{podSelector: {}}]}]}`, `[] ingress [default/[] on all]`, nil},
		{`{ingress: [{from: [{podSelector: {matchLabels: {a: b}}}]}]}`, `[] ingress [default/[a In [b]] on all]`, nil},
		{`{ingress: [{from: [{namespaceSelector: {}}]}]}`, `[] ingress [[]/[] on all]`, nil},
		{`{ingress: [{from: [{namespaceSelector: {matchLabels: {ns: m}}, podSelector: {matchLabels: {a: b}}}]}]}`,
			`[] ingress [[ns In [m]]/[a In [b]] on all]`, nil},
		{`{ingress: [{from: [{namespaceSelector: {matchLabels: {ns: m}}}, {podSelector: {matchLabels: {a: b}}}]}]}`,
			`[] ingress [[ns In [m]]/[], default/[a In [b]] on all]`, nil},
		{`{egress: [{to: [{podSelector: {}}]}, {to: [{namespaceSelector: {}}]}]}`,
			`[] ingress egress [default/[] on all] [[]/[] on all]`, nil},
		{`{ingress: [{from: [{}, {podSelector: {}}]}]}`, `[] ingress [default/[] on all]`,
			[]string{`spec.ingress[0].from[0]: has neither podSelector, namespaceSelector nor ipBlock` + nothing}},
		{`{ingress: [{from: [{podSelector: {matchExpressions: [{key: a, operator: Near}]}}]}, {}]}`,
			`[] ingress [ on all] [all on all]`,
			[]string{`spec.ingress[0].from[0].podSelector: is not a label selector: "Near" is not a valid label selector ` +
				`operator` + nothing}},
		{`{egress: [{to: [{namespaceSelector: {matchLabels: {"a b": c}}, podSelector: {}}]}]}`,
			`[] ingress egress [ on all]`, []string{`spec.egress[0].to[0].namespaceSelector: `}},
		// ipBlock
		{`{ingress: [{from: [{ipBlock: {cidr: 10.0.0.1/8}}, {ipBlock: {cidr: "FD00::/8"}}]}]}`,
			`[] ingress [10.0.0.0/8, fd00::/8 on all]`, nil},
		{`{ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/24, except: [10.0.0.128/25, 10.0.0.1/32, 10.0.0.192/26]}}]}]}`,
			`[] ingress [10.0.0.0/32 10.0.0.2/31 10.0.0.4/30 10.0.0.8/29 10.0.0.16/28 10.0.0.32/27 10.0.0.64/26 on all]`, nil},
		{`{ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/24, except: [10.0.0.0/25]}}, {ipBlock: {cidr: 10.0.0.1/32}}]}]}`,
			`[] ingress [10.0.0.128/25, 10.0.0.1/32 on all]`, nil},
		{`{ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/24, except: [10.0.0.0/25, 10.0.0.128/25]}}]}]}`,
			`[] ingress [ on all]`, nil},
		{`{ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [128.0.0.0/1]}}]}]}`, `[] ingress [0.0.0.0/1 on all]`,
			nil},
		{`{ingress: [{from: [{ipBlock: {cidr: "::/0", except: ["8000::/1", "::/2"]}}]}]}`,
			`[] ingress [4000::/2 on all]`, nil},
		{`{ingress: [{from: [{ipBlock: {cidr: 10.0.0.0}}, {ipBlock: {cidr: 10.0.0.0/8}}]}]}`,
			`[] ingress [10.0.0.0/8 on all]`,
			[]string{`spec.ingress[0].from[0].ipBlock.cidr: "10.0.0.0" is not an address range` + nothing}},
		{`{ingress: [{from: [{ipBlock: {cidr: 010.0.0.0/8}}, {ipBlock: {cidr: "::ffff:10.0.0.0/104"}}]}]}`,
			`[] ingress [ on all]`,
			[]string{`spec.ingress[0].from[0].ipBlock.cidr: "010.0.0.0/8" is not an address range` + nothing,
				`spec.ingress[0].from[1].ipBlock.cidr: "::ffff:10.0.0.0/104" is not an address range` + nothing}},
		{`{ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/24, except: [x, 10.0.1.0/25, 10.0.0.0/24, "fd00::/64"]}}]}]}`,
			`[] ingress [ on all]`, []string{
				`spec.ingress[0].from[0].ipBlock.except[0]: "x" is not an address range: the ipBlock admits nothing`,
				`spec.ingress[0].from[0].ipBlock.except[1]: 10.0.1.0/25 is not within 10.0.0.0/24, or is all of it: the ` +
					`ipBlock admits nothing`,
				`spec.ingress[0].from[0].ipBlock.except[2]: 10.0.0.0/24 is not within 10.0.0.0/24, or is all of it: the ` +
					`ipBlock admits nothing`,
				`spec.ingress[0].from[0].ipBlock.except[3]: fd00::/64 is not within 10.0.0.0/24, or is all of it: the ` +
					`ipBlock admits nothing`}},
		{`{ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}, podSelector: {}}]}]}`, `[] ingress [ on all]`,
			[]string{`spec.ingress[0].from[0]: has an ipBlock and a selector` + nothing}},
		// ports
		{`{ingress: [{ports: []}]}`, `[] ingress [all on all]`, nil},
		{`{ingress: [{ports: [{}]}]}`, `[] ingress [all on tcp/*]`, nil},
		{`{ingress: [{ports: [{port: 80}, {protocol: UDP}, {protocol: SCTP, port: 7}]}]}`,
			`[] ingress [all on tcp/80, udp/*, sctp/7]`, nil},
		{`{ingress: [{ports: [{port: http}, {port: http, protocol: UDP}]}]}`, `[] ingress [all on tcp/http, udp/http]`,
			nil},
		{`{ingress: [{ports: [{port: 80, endPort: 80}, {port: 1, endPort: 65535}, {port: 10, endPort: 20}, {port: 15, endPort: 30}]}]}`,
			`[] ingress [all on tcp/80, tcp/1-65535, tcp/10-20, tcp/15-30]`, nil},
		{`{ingress: [{ports: [{port: 80, endPort: 79}, {port: 0}, {port: 65536}, {port: -1}, {port: 1, endPort: 65536}]}]}`,
			`[] ingress [all on ]`,
			[]string{`spec.ingress[0].ports[0].endPort: 79 is not a port number from 80 to 65535` + nothing,
				`spec.ingress[0].ports[1].port: 0 is not a port number (1 to 65535)` + nothing,
				`spec.ingress[0].ports[2].port: 65536 is not a port number (1 to 65535)` + nothing,
				`spec.ingress[0].ports[3].port: -1 is not a port number (1 to 65535)` + nothing,
				`spec.ingress[0].ports[4].endPort: 65536 is not a port number from 1 to 65535` + nothing}},
		{`{egress: [{ports: [{port: http, endPort: 90}, {endPort: 90}, {protocol: ICMP}, {port: "80"}, {port: ""}, {port: 53}]}]}`,
			`[] ingress egress [all on tcp/53]`,
			[]string{`spec.egress[0].ports[0].endPort: needs a port number, and "http" is a name` + nothing,
				`spec.egress[0].ports[1].endPort: needs a port` + nothing,
				`spec.egress[0].ports[2].protocol: "ICMP" is not a protocol of ports (TCP, UDP, SCTP)` + nothing,
				`spec.egress[0].ports[3].port: "80" is not the name of a port: `,
				`spec.egress[0].ports[4].port: "" is not the name of a port: `}},
	} {
		s := storeOf(networkPolicy(t, c.spec), networkPolicyNamed("other")).Snapshot()
		if len(s.Policies) != 2 || text(s.Policies[0]) != "[] ingress" || s.Policies[0].Owner.Name != "other" {
			t.Fatalf("%s: another policy is affected: %v", c.spec, s.Policies)
		}
		p := s.Policies[1]
		if got := text(p); got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.spec, got, c.want)
		}
		owner := cluster.Owner{Kind: "NetworkPolicy", Namespace: "default", Name: "policy"}
		if p.Owner != owner || p.Tier != cluster.TierNetworkPolicy || p.Subject.Namespace != "default" {
			t.Errorf("%s: %+v", c.spec, p)
		}
		problems := policyProblems(s, owner)
		slices.Sort(c.problems)
		if !slices.EqualFunc(problems, c.problems, strings.HasPrefix) {
			t.Errorf("%s:\ngot  %s\nwant %s", c.spec, strings.Join(problems, "\n"), strings.Join(c.problems, "\n"))
		}
	}
}

func networkPolicyNamed(name string) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}

// policyProblems returns field and message of an object's problems.
func policyProblems(s *cluster.Snapshot, owner cluster.Owner) (list []string) {
	for _, p := range s.Problems {
		if p.Owner == owner && p.Field != "" {
			list = append(list, p.Field+": "+p.Message)
		}
	}
	return list
}

// TestPolicySelectsInItsNamespace: a NetworkPolicy and its podSelector peers select no pod of
// another namespace.
func TestPolicySelectsInItsNamespace(t *testing.T) {
	spec := `{ingress: [{from: [{podSelector: {}}, {namespaceSelector: {}}]}]}`
	p := storeOf(networkPolicy(t, spec)).Snapshot().Policies[0]
	own, other := &cluster.Namespace{Name: "default"}, &cluster.Namespace{Name: "other"}
	peers := p.Ingress.Rules[0].Peers
	for i, s := range []struct {
		of         *cluster.PodSelector
		own, other bool
	}{{&p.Subject, true, false}, {peers[0].Pods, true, false}, {peers[1].Pods, true, true}} {
		if s.of.Selects(own, nil) != s.own || s.of.Selects(other, nil) != s.other {
			t.Errorf("%d: %+v", i, s.of)
		}
	}
}

// TestMaxBlocks: a rule has at most MaxBlocks prefixes. The ipBlock that exceeds it admits
// nothing; the others of the rule, and other rules, apply.
func TestMaxBlocks(t *testing.T) {
	block := func(cidr string, except ...string) networkingv1.NetworkPolicyPeer {
		return networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}}
	}
	var odd []string // 4095 of the 8192 addresses but one
	for i := 1; i < 8190; i += 2 {
		odd = append(odd, fmt.Sprintf("10.0.%d.%d/32", i/256, i%256))
	}
	o := networkPolicy(t, `{ingress: [{}, {}]}`)
	o.Spec.Ingress[0].From = []networkingv1.NetworkPolicyPeer{block("10.0.0.0/19", odd...),
		block("10.1.0.0/24", "10.1.0.9/32"), block("10.2.0.0/24")}
	o.Spec.Ingress[1].From = []networkingv1.NetworkPolicyPeer{block("10.1.0.0/24", "10.1.0.9/32")}
	s := storeOf(o).Snapshot()
	rules := s.Policies[0].Ingress.Rules
	var sizes []int
	for _, r := range rules {
		for _, p := range r.Peers {
			sizes = append(sizes, len(p.Blocks))
		}
	}
	if parse.MaxBlocks != 4096 || !slices.Equal(sizes, []int{4096, 8}) {
		t.Errorf("%v prefixes", sizes)
	}
	want := []string{
		`spec.ingress[0].from[1].ipBlock.except: the ipBlocks of the rule, without their exceptions, are more than 4096 ` +
			`prefixes: this ipBlock admits nothing`,
		`spec.ingress[0].from[2].ipBlock.except: the ipBlocks of the rule, without their exceptions, are more than 4096 ` +
			`prefixes: this ipBlock admits nothing`}
	if got := policyProblems(s, s.Policies[0].Owner); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// TestLargePolicies: policies of extreme size are read, and have no effect on others.
func TestLargePolicies(t *testing.T) {
	s := store.New(cluster.DefaultConfig())
	for i := range 4000 {
		o := networkPolicyNamed(fmt.Sprintf("p-%04d", i))
		o.Spec = networkPolicy(t, `{ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}]}`).Spec
		s.Set(o)
	}
	many := networkPolicy(t, `{ingress: [{from: []}, {from: []}]}`)
	for i := range 1000 {
		many.Spec.Ingress[0].From = append(many.Spec.Ingress[0].From, networkingv1.NetworkPolicyPeer{
			IPBlock: &networkingv1.IPBlock{CIDR: fmt.Sprintf("10.%d.%d.0/24", i/250, i%250)}})
	}
	whole := &networkingv1.IPBlock{CIDR: "0.0.0.0/0"}
	for i := range 100 {
		whole.Except = append(whole.Except, fmt.Sprintf("%d.1.2.3/32", 2*i+1))
	}
	many.Spec.Ingress[1].From = []networkingv1.NetworkPolicyPeer{{IPBlock: whole}}
	s.Set(many)
	last := s.Snapshot()
	if n := len(last.Policies); n != 4001 || !slices.IsSortedFunc(last.Policies,
		func(a, b *cluster.Policy) int { return a.Owner.Compare(b.Owner) }) {
		t.Errorf("%d policies, or not sorted", n)
	}
	rules := last.Policies[4000].Ingress.Rules
	if n := len(rules[0].Peers); n != 1000 {
		t.Errorf("%d peers", n)
	}
	checkBlocks(t, []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, whole.Except, rules[1].Peers[0].Blocks)
}

// checkBlocks checks that a list is sorted, that no prefix overlaps another, none of the exceptions
// is in it, and all are within the blocks.
func checkBlocks(t testing.TB, within []netip.Prefix, except []string, list []netip.Prefix) {
	t.Helper()
	for i, b := range list {
		if b != b.Masked() || !slices.ContainsFunc(within, b.Overlaps) {
			t.Errorf("%s is not a prefix of the block", b)
		}
		if i > 0 && (!list[i-1].Addr().Less(b.Addr()) || list[i-1].Overlaps(b)) {
			t.Errorf("%s, %s are not in order", list[i-1], b)
		}
	}
	for _, text := range except {
		if e := netip.MustParsePrefix(text); slices.ContainsFunc(list, e.Overlaps) {
			t.Errorf("%s is an exception, and admitted", e)
		}
	}
}

// FuzzIPBlock: of a /24 with exceptions, exactly the addresses that are in no exception are
// admitted, by the fewest prefixes. The same holds in IPv6, for the last eight bits.
func FuzzIPBlock(f *testing.F) {
	f.Add([]byte{25, 128, 32, 1, 26, 192})
	f.Add([]byte{32, 0, 32, 255, 25, 0, 25, 128})
	for range 8 { // so that a plain run of the tests has some
		random := make([]byte, 2*rand.IntN(40))
		for i := range random {
			random[i] = byte(rand.Uint32())
		}
		f.Add(random)
	}
	f.Fuzz(func(t *testing.T, pairs []byte) {
		var admitted [256]bool
		for i := range admitted {
			admitted[i] = true
		}
		v4 := &networkingv1.IPBlock{CIDR: "10.1.2.0/24"}
		v6 := &networkingv1.IPBlock{CIDR: "fd00::2:0/120"}
		for ; len(pairs) > 1; pairs = pairs[2:] {
			bits, last := 25+int(pairs[0])%8, pairs[1]
			v4.Except = append(v4.Except, fmt.Sprintf("10.1.2.%d/%d", last, bits))
			v6.Except = append(v6.Except, fmt.Sprintf("fd00::2:%x/%d", last, 96+bits))
			size := 1 << (32 - bits)
			for i := range size {
				admitted[int(last)/size*size+i] = false
			}
		}
		o := networkPolicyNamed("p")
		o.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{
			{From: []networkingv1.NetworkPolicyPeer{{IPBlock: v4}}},
			{From: []networkingv1.NetworkPolicyPeer{{IPBlock: v6}}}}
		s := storeOf(o).Snapshot()
		if problems := policyProblems(s, s.Policies[0].Owner); len(problems) > 0 {
			t.Fatal(problems)
		}
		for i, b := range []*networkingv1.IPBlock{v4, v6} {
			var list []netip.Prefix
			for _, p := range s.Policies[0].Ingress.Rules[i].Peers {
				list = append(list, p.Blocks...)
			}
			checkBlocks(t, []netip.Prefix{netip.MustParsePrefix(b.CIDR)}, b.Except, list)
			var got [256]bool
			for _, p := range list {
				bytes := p.Addr().AsSlice()
				for j := range 1 << (p.Addr().BitLen() - p.Bits()) {
					got[int(bytes[len(bytes)-1])+j] = true
				}
			}
			if got != admitted {
				t.Errorf("%v: admitted by %v", b, list)
			}
			for j := 1; j < len(list); j++ { // two that are the halves of one
				x, y := list[j-1], list[j]
				if x.Bits() == y.Bits() && netip.PrefixFrom(x.Addr(), x.Bits()-1).Masked().Contains(y.Addr()) {
					t.Errorf("%s and %s are one prefix", x, y)
				}
			}
		}
	})
}

// TestPoliciesKeepTheirPointers: an unchanged NetworkPolicy keeps its pointer, a changed one does
// not, and a deleted one is gone with its problems.
func TestPoliciesKeepTheirPointers(t *testing.T) {
	spec := `{podSelector: {matchLabels: {a: b}, matchExpressions: [{key: a, operator: NotIn, values: [c]}]},
		ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]}]}`
	s := storeOf(networkPolicy(t, spec), networkPolicyNamed("z"))
	first := s.Snapshot()
	for range 20 { // maps have no order
		again := networkPolicy(t, spec)
		again.ResourceVersion = "9"
		s.Set(again)
	}
	if s.Snapshot() != first {
		t.Error("nothing changed, and there is another Snapshot")
	}
	s.Set(networkPolicy(t, `{ingress: [{from: [{ipBlock: {cidr: x}}]}]}`))
	second := s.Snapshot()
	if second.Policies[0] == first.Policies[0] || second.Policies[1] != first.Policies[1] {
		t.Error("other pointers than what changed")
	}
	if got := policyProblems(second, second.Policies[0].Owner); len(got) != 1 {
		t.Error(got)
	}
	s.Delete(networkPolicyNamed("policy"))
	if third := s.Snapshot(); len(third.Policies) != 1 || len(policyProblems(third, second.Policies[0].Owner)) > 0 {
		t.Error("deleted, and still there")
	}
}

// TestPodPorts: a Pod has the named ports of its containers and sidecars, sorted; a change of one
// is noticed. A static pod has the UID by which the container runtime knows it.
func TestPodPorts(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	port := func(name string, number int32, protocol corev1.Protocol) corev1.ContainerPort {
		return corev1.ContainerPort{Name: name, ContainerPort: number, Protocol: protocol}
	}
	o := pod("p", "n", "10.244.0.5")
	o.Spec.InitContainers = []corev1.Container{
		{Ports: []corev1.ContainerPort{port("init", 1, "")}},
		{RestartPolicy: &always, Ports: []corev1.ContainerPort{port("side", 2, udp), port("web", 3, tcp)}},
	}
	o.Spec.Containers = []corev1.Container{
		{Ports: []corev1.ContainerPort{port("web", 80, ""), port("", 81, tcp), port("dns", 53, udp),
			port("dns", 54, tcp)}},
		{Ports: []corev1.ContainerPort{port("web", 8080, tcp), port("bad", 65536, tcp), port("x", 9, "QUIC")}},
	}
	s := storeOf(o, pod("starting", "n"))
	want := []cluster.PodPort{{Name: "dns", Protocol: cluster.TCP, Port: 54},
		{Name: "dns", Protocol: cluster.UDP, Port: 53}, {Name: "side", Protocol: cluster.UDP, Port: 2},
		{Name: "web", Protocol: cluster.TCP, Port: 80}}
	first := s.Snapshot()
	if got := first.Pods[0].Ports; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	o = o.DeepCopy()
	s.Set(o)
	if s.Snapshot() != first {
		t.Error("nothing changed, and there is another Snapshot")
	}
	o.Spec.Containers[0].Ports[0].ContainerPort = 88
	s.Set(o)
	if got := s.Snapshot().Pods[0].Ports[3].Port; got != 88 {
		t.Errorf("port %d", got)
	}
	o.Status.PodIPs = nil
	o.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "static"}
	s.Set(o)
	if got := s.Snapshot().Starting[0].UID; got != "static" {
		t.Errorf("UID %s of a static pod", got)
	}
	if got := s.Snapshot().Starting; len(got) != 2 || len(got[0].Ports) != 4 || got[1].Ports != nil {
		t.Error(got)
	}
}
