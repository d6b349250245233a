package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	v1 "hairpin/api/v1"
)

// TestProblems: Problems keeps MostProblems of each field, at any index, and counts each other one
// once.
func TestProblems(t *testing.T) {
	var p Problems
	web := Owner{"Service", "default", "web"}
	for range 2 {
		for i := range 52_000 {
			p.Add(web, fmt.Sprintf("spec.externalIPs[%d]", i), "%d is no address", i)
		}
	}
	p.Add(web, "spec.ports", "%s", strings.Repeat("x", 260_000))
	p.Add(Owner{"Service", "default", "other"}, "spec.ports", "two ports")
	list := p.List()
	if p.Len() != 52_002 || len(list) != MostProblems+3 {
		t.Errorf("%d problems, %d listed", p.Len(), len(list))
	}
	if more := list[MostProblems]; more.Error() != "Service/default/web: spec.externalIPs[]: and 51980 more problems" {
		t.Error(more)
	}
	if long := list[MostProblems+1].Message; len(long) > mostMessage || !strings.HasSuffix(long, "bytes more)") {
		t.Errorf("a message of %d bytes", len(long))
	}
	list = SortProblems(list)
	var texts []string
	for _, x := range list[:len(list)-1] {
		texts = append(texts, x.Error())
	}
	// The other Service's, then one of spec.ports and 19 addresses of web's.
	if len(list) != MostProblems+2 || texts[0] != "Service/default/other: spec.ports: two ports" ||
		!strings.Contains(texts[MostProblems], "spec.ports: xxx") {
		t.Errorf("%d: %s", len(list), strings.Join(texts, "\n"))
	}
	if last := list[len(list)-1].Error(); last != "Service/default/web: and 51981 more problems" {
		t.Error(last)
	}
}

// TestSortProblems: shortening in two steps counts as many problems as in one, and no object has
// more than MostProblems.
func TestSortProblems(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		problem := rapid.Custom(func(t *rapid.T) Problem {
			return Problem{
				Owner:   Owner{Kind: "Pod", Name: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "pod")},
				Field:   rapid.SampledFrom([]string{"", "spec.x[1]", "spec.x[2]", "y"}).Draw(t, "field"),
				Message: fmt.Sprint(rapid.IntRange(0, 60).Draw(t, "message")),
			}
		})
		all := rapid.SliceOfNDistinct(problem, 0, 150, rapid.ID).Draw(t, "problems")
		half := rapid.IntRange(0, len(all)).Draw(t, "half")
		once := SortProblems(slices.Clone(all))
		twice := SortProblems(slices.Concat(SortProblems(slices.Clone(all[:half])), all[half:]))
		want := map[string]int{}
		for _, p := range all {
			want[p.Owner.Name]++
		}
		for _, list := range [][]Problem{once, twice, SortProblems(slices.Clone(once))} {
			if !slices.IsSortedFunc(list, Problem.Compare) {
				t.Fatalf("not sorted: %v", list)
			}
			listed, count := map[string]int{}, map[string]int{}
			for _, p := range list {
				count[p.Owner.Name] += max(1, p.More)
				if p.More == 0 {
					listed[p.Owner.Name]++
				}
			}
			for pod, n := range want {
				if count[pod] != n || listed[pod] != min(n, MostProblems) {
					t.Fatalf("pod %s has %d problems: %d are listed, %d counted", pod, n, listed[pod], count[pod])
				}
			}
		}
	})
}

func TestCut(t *testing.T) {
	for _, text := range []string{"short", strings.Repeat("wörd ", 300), strings.Repeat("ö", 1000),
		strings.Repeat("x", 1025), strings.Repeat("x", 1024)} {
		got := Cut(text, 1024)
		if len(got) > 1024 || !utf8.ValidString(got) || len(text) <= 1024 && got != text {
			t.Errorf("%d bytes are %d: %q", len(text), len(got), got)
		}
		if begin, end, is := strings.Cut(got, " … ("); is {
			if want := fmt.Sprintf("%d bytes more)", len(text)-len(begin)); end != want ||
				!strings.HasPrefix(text, begin) || len(begin) < 900 {
				t.Errorf("%q, want %q", end, want)
			}
		}
	}
	if got := Cut(strings.Repeat("wörd ", 300), 1024); !strings.HasSuffix(strings.Split(got, " … ")[0], "wörd") {
		t.Errorf("a word is cut: %q", got)
	}
}

// TestProblemsOfOneObject: any object has at most MostProblems and a count in a Snapshot, and its
// values that are kept are small.
func TestProblemsOfOneObject(t *testing.T) {
	const many = 3000
	list := func(format string) (texts []string) {
		for i := range many {
			texts = append(texts, fmt.Sprintf(format, i/250, i%250))
		}
		return texts
	}
	annotated := func(annotation, format string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: "x", Namespace: "default",
			Annotations: map[string]string{annotation: strings.Join(list(format), ",")}}
	}
	service := func(change func(*corev1.Service)) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "default"}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.10",
			Ports: []corev1.ServicePort{{Port: 80}, {Port: 81, Name: "b"}},
		}}
		change(s)
		return s
	}
	var ports []corev1.ServicePort
	var endpoints []discoveryv1.Endpoint
	var ingress []corev1.LoadBalancerIngress
	var podIPs []corev1.PodIP
	var peers []networkingv1.NetworkPolicyPeer
	for _, a := range list("10.244.%d.%d:") {
		ports = append(ports, corev1.ServicePort{Name: a, Port: 80})
		endpoints = append(endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
		ingress = append(ingress, corev1.LoadBalancerIngress{IP: a[:len(a)-1]})
		podIPs = append(podIPs, corev1.PodIP{IP: a})
		peers = append(peers, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: a}})
	}
	for name, object := range map[string]any{
		"words of a Pod's annotation": &corev1.Pod{ObjectMeta: annotated(AnnotationExtraAddresses, "x%d-%d"),
			Spec: corev1.PodSpec{NodeName: "a"}},
		"words of a Namespace's annotation": &corev1.Namespace{ObjectMeta: annotated(AnnotationExtraRanges, "x%d-%d")},
		"addresses of a Pod": &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x"},
			Spec: corev1.PodSpec{NodeName: "a"}, Status: corev1.PodStatus{PodIPs: podIPs}},
		"external IPs":            service(func(s *corev1.Service) { s.Spec.ExternalIPs = list("x%d.%d") }),
		"external IPs of pods":    service(func(s *corev1.Service) { s.Spec.ExternalIPs = list("10.244.%d.%d") }),
		"load balancer addresses": service(func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = ingress }),
		"cluster IPs":             service(func(s *corev1.Service) { s.Spec.ClusterIPs = list("10.97.%d.%d") }),
		"ports":                   service(func(s *corev1.Service) { s.Spec.Ports = ports }),
		"source ranges": service(func(s *corev1.Service) {
			s.Spec.LoadBalancerSourceRanges = list("x%d.%d")
		}),
		"endpoints": &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "default",
			Labels: map[string]string{discoveryv1.LabelServiceName: "x"}},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints},
		"egress addresses": &v1.EgressIP{ObjectMeta: metav1.ObjectMeta{Name: "x"},
			Spec: v1.EgressIPSpec{EgressIPs: list("x%d.%d")}},
		"peers of a policy": &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "default"},
			Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{From: peers}}}},
		"service ranges": &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "x"},
			Spec: networkingv1.ServiceCIDRSpec{CIDRs: list("x%d.%d")}},
		"host addresses": &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "x",
			Annotations: map[string]string{AnnotationHostCIDRs: `["` + strings.Join(list("9.9.%d.%d/32"), `","`) +
				`"]`}}},
	} {
		s := NewStore(Config{ClusterSubnets: []ClusterSubnet{{CIDR: netip.MustParsePrefix("10.244.0.0/16"),
			HostLength: 24}}})
		s.Set(object)
		// else a slice has no Service
		s.Set(service(func(s *corev1.Service) { s.Name, s.Spec.ClusterIP = "web", "10.96.0.11" }))
		problems := map[Owner]int{}
		for _, p := range s.Snapshot().Problems {
			problems[p.Owner]++
			if len(p.Error()) > 2*mostMessage {
				t.Errorf("%s: a problem has %d bytes", name, len(p.Error()))
			}
		}
		if len(problems) == 0 {
			t.Errorf("%s: no problem", name)
		}
		for o, n := range problems {
			if n > MostProblems+1 {
				t.Errorf("%s: %s has %d problems", name, o, n)
			}
		}
	}
}
