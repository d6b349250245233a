package store_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "hairpin/api/v1"
	"hairpin/cluster"
	"hairpin/cluster/annotation"
	"hairpin/cluster/store"
)

// TestProblemsOfOneObject: any object has at most MaxProblems and a count in a Snapshot, and its
// values that are kept are small.
func TestProblemsOfOneObject(t *testing.T) {
	const many = 3000
	list := func(format string) (texts []string) {
		for i := range many {
			texts = append(texts, fmt.Sprintf(format, i/250, i%250))
		}
		return texts
	}
	annotated := func(name, format string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: "x", Namespace: "default",
			Annotations: map[string]string{name: strings.Join(list(format), ",")}}
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
		"words of a Pod's annotation": &corev1.Pod{ObjectMeta: annotated(annotation.ExtraAddresses, "x%d-%d"),
			Spec: corev1.PodSpec{NodeName: "a"}},
		"words of a Namespace's annotation": &corev1.Namespace{ObjectMeta: annotated(annotation.ExtraRanges, "x%d-%d")},
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
			Annotations: map[string]string{annotation.HostCIDRs: `["` + strings.Join(list("9.9.%d.%d/32"), `","`) +
				`"]`}}},
	} {
		s := store.New(cluster.Config{ClusterSubnets: []cluster.ClusterSubnet{
			{CIDR: netip.MustParsePrefix("10.244.0.0/16"), HostLength: 24}}})
		s.Set(object)
		// else a slice has no Service
		s.Set(service(func(s *corev1.Service) { s.Name, s.Spec.ClusterIP = "web", "10.96.0.11" }))
		problems := map[cluster.Owner]int{}
		for _, p := range s.Snapshot().Problems {
			problems[p.Owner]++
			if len(p.Error()) > 2*1024 {
				t.Errorf("%s: a problem has %d bytes", name, len(p.Error()))
			}
		}
		if len(problems) == 0 {
			t.Errorf("%s: no problem", name)
		}
		for o, n := range problems {
			if n > cluster.MaxProblems+1 {
				t.Errorf("%s: %s has %d problems", name, o, n)
			}
		}
	}
}
