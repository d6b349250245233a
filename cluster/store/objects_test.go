package store_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/cluster"
	"hairpin/cluster/store"
)

// service makes a single-stack Service with one TCP port 80 without a name; edits modify it.
func service(name, ip string, edits ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip},
			Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	for _, edit := range edits {
		edit(s)
	}
	return s
}

func ports(list ...corev1.ServicePort) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Ports = list }
}

func port(name string, protocol corev1.Protocol, number int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Protocol: protocol, Port: number}
}

// slice makes an EndpointSlice of a Service with one port and ready endpoints. Its family is that
// of the first address.
func slice(name, service string, p discoveryv1.EndpointPort, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{p},
	}
	for i, a := range addresses {
		if i == 0 && strings.Contains(a, ":") {
			s.AddressType = discoveryv1.AddressTypeIPv6
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

func endpointPort(name string, protocol corev1.Protocol, number int32) discoveryv1.EndpointPort {
	return discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &number}
}

func edited(s *discoveryv1.EndpointSlice, edit func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	edit(s)
	return s
}

func node(name string, edits ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}}}
	for _, edit := range edits {
		edit(n)
	}
	return n
}

func annotated(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Annotations[key] = value }
}

func pod(name, node string, ips ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "u-1"},
		Spec: corev1.PodSpec{NodeName: node}}
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

func storeOf(objects ...any) *store.Store {
	s := store.New(cluster.DefaultConfig())
	for _, o := range objects {
		s.Set(o)
	}
	return s
}

// want compares the text of a Snapshot: a line per Frontend and per Problem.
func want(t *testing.T, s *cluster.Snapshot, lines ...string) {
	t.Helper()
	got := describe(s)
	if strings.Join(got, "\n") != strings.Join(lines, "\n") {
		t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(lines, "\n  "))
	}
}

// describe omits default values: "web 10.96.0.1:80/tcp → 10.244.0.5:8080".
func describe(s *cluster.Snapshot) []string {
	var out []string
	for _, f := range s.Frontends {
		name := f.Owner.Name
		if f.PortName != "" {
			name += ":" + f.PortName
		}
		line := fmt.Sprintf("%s %s/%s", name, netip.AddrPortFrom(f.ClusterIP, f.Port), f.Protocol)
		add := func(is bool, format string, args ...any) {
			if is {
				line += " " + fmt.Sprintf(format, args...)
			}
		}
		add(f.NodePort != 0, "nodePort=%d", f.NodePort)
		add(f.ExternalIPs != nil, "external=%s", f.ExternalIPs)
		add(f.LoadBalancerIPs != nil, "lb=%s", f.LoadBalancerIPs)
		add(f.Affinity != 0, "affinity=%s", f.Affinity)
		add(f.ExternalLocal, "etp=Local")
		add(f.InternalLocal, "itp=Local")
		add(true, "→")
		for _, b := range f.Backends {
			add(true, "%s", netip.AddrPortFrom(b.Addr, b.Port))
			add(b.Node != "", "on %s", b.Node)
			add(b.Zone != "", "in %s", b.Zone)
			add(!b.Ready, "unready")
			add(!b.Serving, "unserving")
			add(b.Terminating, "terminating")
			add(b.ForZones != nil, "zones%s", b.ForZones)
			add(b.ForNodes != nil, "nodes%s", b.ForNodes)
		}
		out = append(out, line)
	}
	for _, p := range s.Problems {
		out = append(out, p.Error())
	}
	return out
}
