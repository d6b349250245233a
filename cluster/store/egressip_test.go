package store_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	v1 "hairpin/api/v1"
	"hairpin/cluster"
	"hairpin/cluster/trust"
)

func egressIP(name string, addresses ...string) *v1.EgressIP {
	return &v1.EgressIP{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.EgressIPSpec{EgressIPs: addresses, NamespaceSelector: &metav1.LabelSelector{}}}
}

func namespace(name string, with map[string]string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: with}}
}

// TestEgressIP: the document's example.
func TestEgressIP(t *testing.T) {
	o := egressIP("egressip-prod", "172.18.0.33", "172.18.0.44")
	o.Spec.NamespaceSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "environment",
		Operator: metav1.LabelSelectorOpNotIn, Values: []string{"development"}}}
	o.Spec.PodSelector.MatchLabels = map[string]string{"app": "web"}
	o.Status.Items = []v1.EgressIPStatusItem{{Node: "b", EgressIP: "172.18.0.44"}, {Node: "a", EgressIP: "172.18.0.33"},
		{Node: "c", EgressIP: "172.18.0.33"}}
	s := storeOf(o, namespace("default", map[string]string{"x": "y"})).Snapshot()
	if len(s.Problems) > 0 || len(s.EgressIPs) != 1 {
		t.Fatal(s.EgressIPs, s.Problems)
	}
	e := s.EgressIPs[0]
	if got := fmt.Sprint(e.Owner, e.Addresses,
		e.Assigned); got != "EgressIP/egressip-prod [172.18.0.33 172.18.0.44] [{172.18.0.33 a} {172.18.0.44 b}]" {
		t.Error(got)
	}
	if !e.Namespaces.Matches(nil) || e.Namespaces.Matches(map[string]string{"environment": "development"}) {
		t.Error("other namespaces are selected")
	}
	if !e.Pods.Matches(map[string]string{"app": "web", "b": "c"}) || e.Pods.Matches(map[string]string{"app": "db"}) ||
		e.Pods.Matches(nil) {
		t.Error("other pods are selected")
	}
	if len(s.Namespaces) != 1 || s.Namespaces[0].Labels["x"] != "y" {
		t.Error(s.Namespaces)
	}
}

// TestEgressIPOfPool: an EgressIP has the addresses that it got of its pool besides its own, and
// requests them.
func TestEgressIPOfPool(t *testing.T) {
	o := egressIP("e", "172.18.0.33")
	o.Spec.AddressPool, o.Status.Addresses = "edge", []string{"172.18.0.50", "fc00:f853:ccd::50"}
	o.Status.Conditions = []metav1.Condition{{Type: v1.ConditionAllocated, Reason: "Allocated"}}
	st := storeOf(o)
	s := st.Snapshot()
	if len(s.EgressIPs) != 1 || len(s.LoadBalancers) != 1 || len(s.Problems) > 0 {
		t.Fatal(s.EgressIPs, s.LoadBalancers, s.Problems)
	}
	e, l := s.EgressIPs[0], s.LoadBalancers[0]
	if got := fmt.Sprintln(e.Addresses, e.Allocated, l.Owner, l.Pool, l.Ingress, l.Condition.Reason); got !=
		"[172.18.0.33 172.18.0.50 fc00:f853:ccd::50] [172.18.0.50 fc00:f853:ccd::50] EgressIP/e edge "+
			"[172.18.0.50 fc00:f853:ccd::50] Allocated\n" {
		t.Error(got)
	}
	if r := trust.ReservedIn(s); r.For(netip.MustParseAddr("172.18.0.33"), time.Time{}, false) == "" ||
		r.For(netip.MustParseAddr("172.18.0.50"), time.Time{}, false) != "" {
		t.Error("an address of the pool is reserved for the EgressIP, or its own is not")
	}
	o = o.DeepCopyObject().(*v1.EgressIP)
	o.Spec.EgressIPs, o.Status.Addresses = nil, nil
	st.Set(o)
	if s := st.Snapshot(); len(s.EgressIPs)+len(s.Problems) != 0 || len(s.LoadBalancers) != 1 {
		t.Error(s.EgressIPs, s.Problems, s.LoadBalancers)
	}
	st.Delete(o)
	if s := st.Snapshot(); len(s.LoadBalancers) != 0 {
		t.Error(s.LoadBalancers)
	}
}

// TestEgressNodeSelector: without a selector, and with the default of the API, nodes need the
// label; otherwise the selector decides.
func TestEgressNodeSelector(t *testing.T) {
	exists := func(key string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: key, Operator: metav1.LabelSelectorOpExists}}}
	}
	with := func(name string, labels ...string) any {
		return node(name, func(n *corev1.Node) {
			n.Labels = map[string]string{}
			for _, l := range labels {
				n.Labels[l] = ""
			}
		})
	}
	for _, c := range []struct {
		selector *metav1.LabelSelector
		want     string
	}{
		{nil, "[both label]"},
		{exists(cluster.LabelEgressAssignable), "[both label]"},
		{&metav1.LabelSelector{}, "[both edge label none]"},
		{exists("edge"), "[both edge]"},
	} {
		o := egressIP("e", "10.0.0.1")
		o.Spec.EgressNodeSelector = c.selector
		s := storeOf(o, with("label", cluster.LabelEgressAssignable),
			with("both", cluster.LabelEgressAssignable, "edge"),
			with("edge", "edge"), with("none")).Snapshot()
		var got []string
		for _, n := range s.Nodes {
			if s.EgressIPs[0].MayBeOn(n) {
				got = append(got, n.Name)
			}
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%v: may be on %v, not %s", c.selector, got, c.want)
		}
	}
}

// TestDestinations: which destinations an EgressIP serves.
func TestDestinations(t *testing.T) {
	for _, c := range []struct {
		to, excluded []string
		served       string // of 192.0.2.1, 192.0.2.129, 198.51.100.1, 2001:db8::1
		families     string // IPv4, IPv6
	}{
		{nil, nil, "[true true true true]", "[true true]"},
		{nil, []string{"192.0.2.128/25", "::/0"}, "[true false true false]", "[true true]"},
		{[]string{"192.0.2.1/24"}, nil, "[true true false false]", "[true false]"},
		{[]string{"192.0.2.0/24", "2001:db8::/32", "192.0.2.0/25"}, []string{"192.0.2.129/32"},
			"[true false false true]", "[true true]"},
		{[]string{"x"}, nil, "[false false false false]", "[false false]"},
	} {
		o := egressIP("e", "10.0.0.1")
		o.Spec.DestinationCIDRs, o.Spec.ExcludedCIDRs = c.to, c.excluded
		e := storeOf(o).Snapshot().EgressIPs[0]
		var got []bool
		for _, a := range []string{"192.0.2.1", "192.0.2.129", "198.51.100.1", "2001:db8::1"} {
			got = append(got, e.Serves(netip.MustParseAddr(a)))
		}
		if fmt.Sprint(got) != c.served {
			t.Errorf("%v without %v: serves %v, not %s", c.to, c.excluded, got, c.served)
		}
		if f := fmt.Sprint([]bool{e.ServesFamily(cluster.IPv4), e.ServesFamily(cluster.IPv6)}); f != c.families {
			t.Errorf("%v without %v: serves families %v, not %s", c.to, c.excluded, f, c.families)
		}
	}
}

func TestBadEgressIPs(t *testing.T) {
	for _, c := range []struct {
		name      string
		edit      func(*v1.EgressIP)
		addresses string // that remain; empty: the EgressIP is rejected
		problems  []string
	}{
		{"good", func(*v1.EgressIP) {}, "[10.0.0.1 fd00::1]", nil},
		{"not an address", func(o *v1.EgressIP) { o.Spec.EgressIPs[0] = "10.0.0.1/24" }, "[fd00::1]",
			[]string{`EgressIP/e: spec.egressIPs[0]: "10.0.0.1/24" is not an IPv4 or IPv6 address in canonical form`}},
		{"mapped", func(o *v1.EgressIP) { o.Spec.EgressIPs = []string{"::ffff:10.0.0.1"} }, "",
			[]string{`EgressIP/e: spec.egressIPs[0]: "::ffff:10.0.0.1" is not an IPv4 or IPv6 address in canonical form`}},
		{"loopback", func(o *v1.EgressIP) { o.Spec.EgressIPs[1] = "::1" }, "[10.0.0.1]",
			[]string{`EgressIP/e: spec.egressIPs[1]: ::1 is a loopback address, which other machines cannot reach`}},
		{"twice", func(o *v1.EgressIP) { o.Spec.EgressIPs = []string{"fd00::1", "FD00:0::1"} }, "[fd00::1]",
			[]string{`EgressIP/e: spec.egressIPs[1]: fd00::1 is given twice`}},
		{"none", func(o *v1.EgressIP) { o.Spec.EgressIPs = nil }, "",
			[]string{`EgressIP/e: spec.egressIPs: has no address`}},
		{"no selector", func(o *v1.EgressIP) { o.Spec.NamespaceSelector = nil }, "",
			[]string{`EgressIP/e: spec.namespaceSelector: is missing; {} selects all namespaces`}},
		{"bad selector", func(o *v1.EgressIP) {
			o.Spec.PodSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}
		}, "",
			[]string{`EgressIP/e: spec.podSelector: is not a label selector: "Near" is not a valid label selector operator`}},
		{"bad destinations", func(o *v1.EgressIP) {
			o.Spec.DestinationCIDRs = []string{"192.0.2.0/24", "192.0.2.1", "192.0.2.7/32"}
			o.Spec.ExcludedCIDRs = []string{"x"}
		}, "[10.0.0.1 fd00::1]",
			[]string{`EgressIP/e: spec.destinationCIDRs[1]: "192.0.2.1" is not an address range`,
				`EgressIP/e: spec.excludedCIDRs[0]: "x" is not an address range`}},
		{"bad node selector", func(o *v1.EgressIP) {
			o.Spec.EgressNodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a b": ""}}
		}, "",
			[]string{`EgressIP/e: spec.egressNodeSelector: is not a label selector: key: Invalid value: "a b": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')`}},
		{"bad status", func(o *v1.EgressIP) { o.Status.Items = []v1.EgressIPStatusItem{{Node: "n", EgressIP: "x"}} },
			"[10.0.0.1 fd00::1]",
			[]string{`EgressIP/e: status.items[0].egressIP: "x" is not an IPv4 or IPv6 address in canonical form`}},
	} {
		o := egressIP("e", "10.0.0.1", "fd00::1")
		c.edit(o)
		s := storeOf(o).Snapshot()
		var got []string
		for _, p := range s.Problems {
			got = append(got, p.Error())
		}
		if !slices.Equal(got, c.problems) {
			t.Errorf("%s: %q", c.name, got)
		}
		left := ""
		if len(s.EgressIPs) > 0 {
			left = fmt.Sprint(s.EgressIPs[0].Addresses)
		}
		if left != c.addresses {
			t.Errorf("%s: addresses %s", c.name, left)
		}
	}
}

// TestEgressFactsKeepTheirPointers: unchanged values keep their pointers, and deleted ones are
// gone.
func TestEgressFactsKeepTheirPointers(t *testing.T) {
	labelled := pod("p", "n", "10.244.0.5")
	labelled.Labels = map[string]string{"app": "web"}
	s := storeOf(egressIP("a", "10.0.0.1"), egressIP("b", "10.0.0.2"), namespace("x", nil), labelled, node("n"))
	first := s.Snapshot()
	s.Set(egressIP("a", "10.0.0.1"))
	s.Set(namespace("x", nil))
	s.Set(labelled.DeepCopy())
	if s.Snapshot() != first {
		t.Error("nothing changed, and there is another Snapshot")
	}
	if first.Pods[0].Labels["app"] != "web" {
		t.Error("a pod has lost its labels")
	}
	other := labelled.DeepCopy()
	other.Labels["app"] = "db"
	s.Set(other)
	s.Set(egressIP("b", "10.0.0.3"))
	s.Set(node("n", func(n *corev1.Node) {
		n.Labels = map[string]string{cluster.LabelEgressAssignable: ""}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		n.Spec.Unschedulable = true
	}))
	second := s.Snapshot()
	if second.EgressIPs[0] != first.EgressIPs[0] || second.EgressIPs[1] == first.EgressIPs[1] ||
		second.Namespaces[0] != first.Namespaces[0] {
		t.Error("other pointers than what changed")
	}
	if first.Pods[0].Labels["app"] != "web" || second.Pods[0].Labels["app"] != "db" {
		t.Error("labels are not what they were")
	}
	if got := second.Nodes[0].Egress; !reflect.DeepEqual(got,
		cluster.NodeEgress{Assignable: true, Ready: true, Leaving: true,
			Labels: map[string]string{cluster.LabelEgressAssignable: ""}}) {
		t.Errorf("%+v", got)
	}
	s.Delete(egressIP("a"))
	s.Delete(namespace("x", nil))
	if third := s.Snapshot(); len(third.EgressIPs) != 1 || len(third.Namespaces) != 0 {
		t.Error("deleted, and still there")
	}
}

func TestOlder(t *testing.T) {
	a, b := &cluster.EgressIP{Owner: cluster.Owner{Name: "a"}}, &cluster.EgressIP{Owner: cluster.Owner{Name: "b"}}
	if a.ComparePrecedence(b) >= 0 {
		t.Error("of the same second, the first by name is older")
	}
	a.Created = metav1.Now().Time
	if a.ComparePrecedence(b) <= 0 {
		t.Error("the older one is not")
	}
}

// TestSelectorIsThatOfKubernetes: Selector selects the same objects as Kubernetes' own selector.
func TestSelectorIsThatOfKubernetes(t *testing.T) {
	word := rapid.SampledFrom([]string{"a", "b", "c"})
	operator := rapid.SampledFrom([]metav1.LabelSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist", "In", "Near"})
	rapid.Check(t, func(t *rapid.T) {
		selector := metav1.LabelSelector{MatchLabels: rapid.MapOfN(word, word, 0, 2).Draw(t, "labels")}
		for range rapid.IntRange(0, 2).Draw(t, "expressions") {
			selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{
				Key: word.Draw(t, "key"), Operator: operator.Draw(t, "operator"),
				Values: rapid.SliceOfN(word, 0, 2).Draw(t, "values"),
			})
		}
		theirs, err := metav1.LabelSelectorAsSelector(&selector)
		o := egressIP("e", "10.0.0.1")
		o.Spec.PodSelector = selector
		s := storeOf(o).Snapshot()
		if (err == nil) != (len(s.EgressIPs) == 1) {
			t.Fatalf("Kubernetes says %v, we say %v", err, s.Problems)
		}
		if err != nil {
			return
		}
		with := rapid.MapOfN(word, word, 0, 3).Draw(t, "object")
		if ours := s.EgressIPs[0].Pods.Matches(with); ours != theirs.Matches(labels.Set(with)) {
			t.Fatalf("%v selects %v: ours says %v", theirs, with, ours)
		}
	})
}

// TestStartingPods: a Pod without an address yet is in Starting with its labels, and not in Pods.
func TestStartingPods(t *testing.T) {
	s := storeOf(pod("p", "n"), pod("unscheduled", ""), pod("bad", "n", "x"))
	first := s.Snapshot()
	if len(first.Pods) != 0 || len(first.Starting) != 1 || first.Starting[0].Owner.Name != "p" {
		t.Fatal(first.Pods, first.Starting)
	}
	s.Set(pod("p", "n", "10.244.0.5"))
	if second := s.Snapshot(); len(second.Pods) != 1 || len(second.Starting) != 0 {
		t.Error(second.Pods, second.Starting)
	}
	s.Set(pod("p", "n"))
	s.Delete(pod("p", ""))
	if third := s.Snapshot(); len(third.Pods) != 0 || len(third.Starting) != 0 {
		t.Error(third.Pods, third.Starting)
	}
}
