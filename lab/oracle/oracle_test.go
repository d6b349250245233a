package oracle

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"
)

var (
	protocols = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	numbers   = []int{53, 80, 81, 8080}
	names     = []string{"http", "dns", "admin"}
	blocks    = []string{"0.0.0.0/0", "10.0.0.0/8", "10.244.1.0/24", "10.244.1.2/32", "10.244.2.3/30", "192.0.2.0/24",
		"192.0.2.7/32", "::/0", "fd00:10:244::/48", "fd00:10:244:1::/64", "2001:db8::7/128"}
	external = []string{"192.0.2.7", "10.9.9.9", "2001:db8::7", "fd99::9"}
)

// drawer draws a cluster.
type drawer struct {
	*rapid.T
	operators []metav1.LabelSelectorOperator // of selectors
}

func (t drawer) labels() map[string]string {
	labels := map[string]string{}
	for _, key := range []string{"app", "tier"} {
		if v := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t.T, key); v != "" {
			labels[key] = v
		}
	}
	return labels
}

func (t drawer) selector() metav1.LabelSelector {
	var s metav1.LabelSelector
	if rapid.Bool().Draw(t.T, "matchLabels") {
		s.MatchLabels = t.labels()
	}
	for range rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t.T, "expressions") {
		r := metav1.LabelSelectorRequirement{Key: rapid.SampledFrom([]string{"app", "tier"}).Draw(t.T, "key"),
			Operator: rapid.SampledFrom(t.operators).Draw(t.T, "operator")}
		if r.Operator == metav1.LabelSelectorOpIn || r.Operator == metav1.LabelSelectorOpNotIn {
			r.Values = rapid.SampledFrom([][]string{{"a"}, {"b"}, {"a", "b"}}).Draw(t.T, "values")
		}
		s.MatchExpressions = append(s.MatchExpressions, r)
	}
	return s
}

// pod makes a pod of both families. Each of its ports has one name, and each name one port of a
// protocol.
func (t drawer) pod(namespace string, subnet, n int) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("pod-%d", n), Labels: t.labels()},
		Spec:       corev1.PodSpec{NodeName: "node"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{
			{IP: fmt.Sprintf("10.244.%d.%d", subnet, n)}, {IP: fmt.Sprintf("fd00:10:244:%d::%d", subnet, n)}}},
	}
	for i := range rapid.IntRange(0, 4).Draw(t.T, "ports") {
		p := corev1.ContainerPort{Name: rapid.SampledFrom(names).Draw(t.T, "name"),
			ContainerPort: int32(rapid.SampledFrom(numbers).Draw(t.T, "port")),
			Protocol:      rapid.SampledFrom(protocols).Draw(t.T, "protocol")}
		if !slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
			q := c.Ports[0]
			return q.Protocol == p.Protocol && (q.Name == p.Name || q.ContainerPort == p.ContainerPort)
		}) {
			pod.Spec.Containers = append(pod.Spec.Containers,
				corev1.Container{Name: fmt.Sprintf("c%d", i), Ports: []corev1.ContainerPort{p}})
		}
	}
	return pod
}

func (t drawer) peers() (peers []networkingv1.NetworkPolicyPeer) {
	for range rapid.IntRange(0, 3).Draw(t.T, "peers") {
		var p networkingv1.NetworkPolicyPeer
		switch rapid.IntRange(0, 3).Draw(t.T, "peer") {
		case 0:
			p.PodSelector = new(t.selector())
		case 1:
			p.NamespaceSelector = new(t.selector())
		case 2:
			p.PodSelector, p.NamespaceSelector = new(t.selector()), new(t.selector())
		case 3:
			p.IPBlock = &networkingv1.IPBlock{CIDR: rapid.SampledFrom(blocks).Draw(t.T, "cidr")}
			within := netip.MustParsePrefix(p.IPBlock.CIDR)
			for _, b := range blocks {
				x := netip.MustParsePrefix(b)
				if x.Bits() > within.Bits() && within.Overlaps(x) && rapid.Bool().Draw(t.T, "except "+b) {
					p.IPBlock.Except = append(p.IPBlock.Except, b)
				}
			}
		}
		peers = append(peers, p)
	}
	return peers
}

func (t drawer) ports() (ports []networkingv1.NetworkPolicyPort) {
	for range rapid.SampledFrom([]int{0, 0, 1, 2, 3}).Draw(t.T, "ports") {
		var p networkingv1.NetworkPolicyPort
		if rapid.Bool().Draw(t.T, "with protocol") {
			p.Protocol = new(rapid.SampledFrom(protocols).Draw(t.T, "protocol"))
		}
		switch rapid.IntRange(0, 3).Draw(t.T, "kind of port") {
		case 0: // all ports of the protocol
		case 1:
			p.Port = new(intstr.FromString(rapid.SampledFrom(names).Draw(t.T, "name")))
		case 2:
			p.Port = new(intstr.FromInt(rapid.SampledFrom(numbers).Draw(t.T, "port")))
		case 3:
			p.Port = new(intstr.FromInt(rapid.SampledFrom(numbers).Draw(t.T, "port")))
			p.EndPort = new(p.Port.IntVal + rapid.SampledFrom([]int32{0, 1, 27, 57000}).Draw(t.T, "more"))
		}
		ports = append(ports, p)
	}
	return ports
}

func (t drawer) policy(namespaces []string, n int) *networkingv1.NetworkPolicy {
	o := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("policy-%d", n),
		Namespace: rapid.SampledFrom(namespaces).Draw(t.T, "namespace")}}
	if rapid.Bool().Draw(t.T, "for some pods") {
		o.Spec.PodSelector = t.selector()
	}
	o.Spec.PolicyTypes = rapid.SampledFrom([][]networkingv1.PolicyType{nil, {"Ingress"}, {"Egress"},
		{"Ingress", "Egress"}}).Draw(t.T, "policyTypes")
	for range rapid.IntRange(0, 2).Draw(t.T, "ingress") {
		o.Spec.Ingress = append(o.Spec.Ingress,
			networkingv1.NetworkPolicyIngressRule{From: t.peers(), Ports: t.ports()})
	}
	for range rapid.IntRange(0, 2).Draw(t.T, "egress") {
		o.Spec.Egress = append(o.Spec.Egress,
			networkingv1.NetworkPolicyEgressRule{To: t.peers(), Ports: t.ports()})
	}
	return o
}

func (t drawer) cluster() (o objects) {
	namespaces := []string{"one", "two", "three"}
	for i, n := range namespaces {
		o.namespaces = append(o.namespaces,
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n, Labels: t.labels()}})
		for j := range 4 {
			o.pods = append(o.pods, t.pod(n, i+1, j+1))
		}
	}
	for i := range rapid.IntRange(0, 6).Draw(t.T, "policies") {
		o.policies = append(o.policies, t.policy(namespaces, i))
	}
	return o
}

// packets calls yield for packets between all pairs of different pods, and of pods and external
// addresses, in both families.
func packets(o objects, yield func(packet)) {
	for _, v6 := range []bool{false, true} {
		var ends []end
		for _, pod := range o.pods {
			for _, ip := range pod.Status.PodIPs {
				ends = append(ends, end{netip.MustParseAddr(ip.IP), pod})
			}
		}
		for _, a := range external {
			ends = append(ends, end{addr: netip.MustParseAddr(a)})
		}
		ends = slices.DeleteFunc(ends, func(e end) bool { return e.addr.Is6() != v6 })
		for i, from := range ends {
			for j, to := range ends {
				if i == j || from.pod == nil && to.pod == nil {
					continue
				}
				yield(packet{from, to, "ICMP", 0})
				for _, protocol := range protocols {
					for _, port := range append(slices.Clone(numbers), 79, 107, 57080, 65535) {
						yield(packet{from, to, protocol, uint16(port)})
					}
				}
			}
		}
	}
}

// counts are how many packets were judged, and what became of them.
type counts struct{ packets, dropped, byCyclonus int }

// compare judges all packets of a cluster by package policy and by others.
func compare(t interface {
	Helper()
	Fatalf(string, ...any)
}, o objects, judges map[string]judge, n *counts) {
	t.Helper()
	ours := hairpin(t, o)
	packets(o, func(p packet) {
		want := ours(p)
		n.packets++
		if !want.egress || !want.ingress {
			n.dropped++
		}
		if judges["cyclonus"] != nil {
			n.byCyclonus++
		}
		for name, theirs := range judges {
			if got := theirs(p); got != want {
				text, _ := yaml.Marshal(o.policies)
				t.Fatalf("%s > %s %d/%s: accepted by package policy %+v, by %s %+v\n%s",
					p.from.addr, p.to.addr, p.port, p.protocol, want, name, got, text)
			}
		}
	})
}

// TestRandomClusters compares the three evaluators in random clusters of three namespaces with four
// pods each and up to six policies. cyclonus has no part in those with the operator NotIn, see
// TestDifferences.
func TestRandomClusters(t *testing.T) {
	k := newKubeNetworkPolicies(t)
	var n counts
	rapid.Check(t, func(t *rapid.T) {
		d := drawer{t, []metav1.LabelSelectorOperator{metav1.LabelSelectorOpIn, metav1.LabelSelectorOpExists,
			metav1.LabelSelectorOpDoesNotExist}}
		notIn := rapid.SampledFrom([]bool{false, false, true}).Draw(t, "NotIn")
		if notIn {
			d.operators = append(d.operators, metav1.LabelSelectorOpNotIn)
		}
		o := d.cluster()
		judges := map[string]judge{"kube-network-policies": k.judge(t, o)}
		if !notIn {
			judges["cyclonus"] = cyclonus(o)
		}
		compare(t, o, judges, &n)
	})
	t.Logf("%+v", n)
	if n.dropped < n.packets/10 || n.dropped > n.packets*9/10 || n.byCyclonus < n.packets/10 {
		t.Errorf("the clusters are too alike: %+v", n)
	}
}
