package store_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"hairpin/cluster"
	"hairpin/cluster/store"
)

// The rules are those of kube-proxy (service semantics, input).

const (
	tcp  = corev1.ProtocolTCP
	udp  = corev1.ProtocolUDP
	sctp = corev1.ProtocolSCTP
)

func ptr[T any](v T) *T { return &v }

// TestServicesThatAreNotServed: headless Services, ExternalName, and those with another proxy have
// no Frontends. They and their slices cause no problem, whatever they contain.
func TestServicesThatAreNotServed(t *testing.T) {
	bad := slice("web-1", "web", endpointPort("", tcp, 8080), "010.0.0.1")
	labelled := func(key string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Labels = map[string]string{key: ""} }
	}
	for name, s := range map[string]*corev1.Service{
		"headless":       service("web", "None"),
		"headless label": service("web", "10.96.0.1", labelled("service.kubernetes.io/headless")),
		"other proxy":    service("web", "10.96.0.1", labelled("service.kubernetes.io/service-proxy-name")),
		"ExternalName": service("web", "", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName, s.Spec.ClusterIPs = corev1.ServiceTypeExternalName, "example.org", nil
		}),
	} {
		t.Run(name, func(t *testing.T) { want(t, storeOf(s, bad).Snapshot()) })
	}
	t.Run("labelled slices", func(t *testing.T) {
		for _, key := range []string{"service.kubernetes.io/headless", "service.kubernetes.io/service-proxy-name"} {
			s := edited(bad.DeepCopy(), func(s *discoveryv1.EndpointSlice) { s.Labels[key] = "x" })
			want(t, storeOf(service("web", "10.96.0.1"), s).Snapshot(), "web 10.96.0.1:80/tcp →")
			want(t, storeOf(s).Snapshot())
		}
	})
	t.Run("no longer served", func(t *testing.T) {
		s := storeOf(service("web", "10.96.0.1"), slice("web-1", "web", endpointPort("", tcp, 8080), "10.244.0.5"))
		want(t, s.Snapshot(), "web 10.96.0.1:80/tcp → 10.244.0.5:8080")
		s.Set(service("web", "None"))
		want(t, s.Snapshot())
	})
}

func TestMergeOfSlices(t *testing.T) {
	web := service("web", "10.96.0.1", ports(port("http", tcp, 80), port("metrics", tcp, 9090)))
	http, metrics := endpointPort("http", tcp, 8080), endpointPort("metrics", tcp, 9100)
	for _, c := range []struct {
		name    string
		objects []any
		want    []string
	}{
		{"several slices", []any{
			slice("b", "web", http, "10.244.1.6", "10.244.0.5"), slice("a", "web", http, "10.244.0.9"),
			slice("other", "db", http, "10.244.7.7"),
		}, []string{
			"web:http 10.96.0.1:80/tcp → 10.244.0.5:8080 10.244.0.9:8080 10.244.1.6:8080",
			"web:metrics 10.96.0.1:9090/tcp →",
			"EndpointSlice/default/other: metadata.labels[kubernetes.io/service-name]: there is no Service/default/db",
		}},
		{"one slice with both ports", []any{
			edited(slice("a", "web", http, "10.244.0.5"),
				func(s *discoveryv1.EndpointSlice) { s.Ports = append(s.Ports, metrics) }),
		}, []string{"web:http 10.96.0.1:80/tcp → 10.244.0.5:8080", "web:metrics 10.96.0.1:9090/tcp → 10.244.0.5:9100"}},
		{"first address of an endpoint", []any{
			edited(slice("a", "web", http, "10.244.0.5"), func(s *discoveryv1.EndpointSlice) {
				s.Endpoints[0].Addresses = append(s.Endpoints[0].Addresses, "10.244.0.6", "nonsense")
				s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{})
			}),
		}, []string{"web:http 10.96.0.1:80/tcp → 10.244.0.5:8080", "web:metrics 10.96.0.1:9090/tcp →"}},
		{"nil port, nil name, nil protocol", []any{
			edited(slice("a", "web", discoveryv1.EndpointPort{Name: ptr("http")}, "10.244.0.5"),
				func(s *discoveryv1.EndpointSlice) {
					s.Ports = append(s.Ports, discoveryv1.EndpointPort{Port: ptr[int32](1)},
						discoveryv1.EndpointPort{Name: ptr("metrics"), Port: ptr[int32](2)})
				}),
		}, []string{"web:http 10.96.0.1:80/tcp →", "web:metrics 10.96.0.1:9090/tcp → 10.244.0.5:2"}},
		{"duplicates: the fittest stays", []any{
			edited(slice("a", "web", http, "10.244.0.5", "10.244.0.6"), func(s *discoveryv1.EndpointSlice) {
				s.Endpoints[0].Conditions.Ready, s.Endpoints[0].NodeName = ptr(false), ptr("old")
				s.Endpoints[1].Conditions.Ready, s.Endpoints[1].Conditions.Serving = ptr(false), ptr(false)
			}),
			edited(slice("b", "web", http, "10.244.0.5", "10.244.0.6"), func(s *discoveryv1.EndpointSlice) {
				s.Endpoints[0].NodeName = ptr("new")
				s.Endpoints[1].Conditions.Ready, s.Endpoints[1].NodeName = ptr(false), ptr("serving")
			}),
		}, []string{"web:http 10.96.0.1:80/tcp → 10.244.0.5:8080 on new 10.244.0.6:8080 on serving unready",
			"web:metrics 10.96.0.1:9090/tcp →"}},
		{"duplicates: the one with a node name, then with hints, stays", []any{
			slice("a", "web", http, "10.244.0.5", "10.244.0.6", "10.244.0.7"),
			edited(slice("b", "web", http, "10.244.0.5", "10.244.0.6", "10.244.0.7"),
				func(s *discoveryv1.EndpointSlice) {
					s.Endpoints[0].NodeName, s.Endpoints[2].NodeName = ptr("node-b"), ptr("node-b")
					s.Endpoints[1].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "z"}}}
					s.Endpoints[2].Conditions.Ready, s.Endpoints[2].Conditions.Serving = ptr(false), ptr(true)
				}),
			edited(slice("c", "web", http, "10.244.0.5"), func(s *discoveryv1.EndpointSlice) {
				s.Endpoints[0].NodeName = ptr("node-b")
				s.Endpoints[0].Hints = &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: "node-b"}}}
			}),
		}, []string{
			"web:http 10.96.0.1:80/tcp → 10.244.0.5:8080 on node-b nodes[node-b] 10.244.0.6:8080 " +
				"zones[z] 10.244.0.7:8080",
			"web:metrics 10.96.0.1:9090/tcp →",
		}},
		{"host names", []any{
			edited(slice("a", "web", http, "www.example.org"),
				func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN }),
		}, []string{"web:http 10.96.0.1:80/tcp →", "web:metrics 10.96.0.1:9090/tcp →"}},
		{"one name, several numbers", []any{
			slice("a", "web", http, "10.244.0.5"),
			slice("b", "web", endpointPort("http", tcp, 8081), "10.244.0.5", "10.244.0.6"),
		}, []string{"web:http 10.96.0.1:80/tcp → 10.244.0.5:8080 10.244.0.5:8081 10.244.0.6:8081",
			"web:metrics 10.96.0.1:9090/tcp →"}},
	} {
		t.Run(c.name, func(t *testing.T) { want(t, storeOf(append(c.objects, web)...).Snapshot(), c.want...) })
	}
}

func TestDualStack(t *testing.T) {
	both := service("web", "10.96.0.1", func(s *corev1.Service) {
		s.Spec.ClusterIPs = []string{"10.96.0.1", "fd00:10:96::1"}
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.Ports[0].NodePort = 30080
		s.Spec.ExternalIPs = []string{"192.0.2.1", "2001:db8::1", "192.0.2.1"}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
			{IP: "192.0.2.7"}, {IP: "2001:db8::7", IPMode: ptr(corev1.LoadBalancerIPModeVIP)},
			{IP: "192.0.2.8", IPMode: ptr(corev1.LoadBalancerIPModeProxy)}, {Hostname: "lb.example.org"},
		}
	})
	v4, v6 := slice("four", "web", endpointPort("", tcp, 8080), "10.244.0.5"),
		slice("six", "web", endpointPort("", tcp, 8081), "fd00:10:244::5")
	front4 := "web 10.96.0.1:80/tcp nodePort=30080 external=[192.0.2.1] lb=[192.0.2.7] →"
	front6 := "web [fd00:10:96::1]:80/tcp nodePort=30080 external=[2001:db8::1] lb=[2001:db8::7] →"
	want(t, storeOf(both, v4, v6).Snapshot(), front4+" 10.244.0.5:8080", front6+" [fd00:10:244::5]:8081")
	want(t, storeOf(both, v6).Snapshot(), front4, front6+" [fd00:10:244::5]:8081")

	mixed := slice("four", "web", endpointPort("", tcp, 8080), "10.244.0.5", "fd00:10:244::5", "fd00:10:244::6")
	want(t, storeOf(both, mixed).Snapshot(), front4+" 10.244.0.5:8080", front6,
		"EndpointSlice/default/four: endpoints[1].addresses[0]: fd00:10:244::5 is not an IPv4 address (and 1 "+
			"more endpoints like it)")

	both.Spec.Type = corev1.ServiceTypeNodePort
	want(t, storeOf(both).Snapshot(), "web 10.96.0.1:80/tcp nodePort=30080 external=[192.0.2.1] →",
		"web [fd00:10:96::1]:80/tcp nodePort=30080 external=[2001:db8::1] →")
}

func TestProtocols(t *testing.T) {
	s := storeOf(
		service("dns", "10.96.0.10", ports(port("dns", udp, 53), port("dns-tcp", tcp, 53), port("dns-sctp", sctp, 53))),
		slice("a", "dns", endpointPort("dns", udp, 5353), "10.244.0.5"),
		slice("b", "dns", endpointPort("dns-tcp", tcp, 5354), "10.244.0.5"),
		slice("c", "dns", endpointPort("dns-sctp", sctp, 5355), "10.244.0.5"),
		slice("wrong", "dns", endpointPort("dns", tcp, 1), "10.244.0.5"),
	)
	want(t, s.Snapshot(), "dns:dns-tcp 10.96.0.10:53/tcp → 10.244.0.5:5354",
		"dns:dns 10.96.0.10:53/udp → 10.244.0.5:5353", "dns:dns-sctp 10.96.0.10:53/sctp → 10.244.0.5:5355")
}

func TestConditionsAndHints(t *testing.T) {
	s := edited(slice("a", "web", endpointPort("", tcp, 8080), "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"),
		func(s *discoveryv1.EndpointSlice) {
			e := s.Endpoints
			e[1].Conditions = discoveryv1.EndpointConditions{Ready: ptr(false)}
			e[2].Conditions = discoveryv1.EndpointConditions{Ready: ptr(false), Serving: ptr(true),
				Terminating: ptr(true)}
			e[3].Conditions = discoveryv1.EndpointConditions{Ready: ptr(false), Serving: ptr(false),
				Terminating: ptr(false)}
			e[0].Zone, e[0].NodeName = ptr("z1"), ptr("node-a")
			e[0].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "z1"}, {Name: "z2"}},
				ForNodes: []discoveryv1.ForNode{{Name: "node-a"}}}
		})
	want(t, storeOf(service("web", "10.96.0.1"), s).Snapshot(),
		"web 10.96.0.1:80/tcp → 10.0.0.1:8080 on node-a in z1 zones[z1 z2] nodes[node-a] 10.0.0.2:8080 unready "+
			"10.0.0.3:8080 unready terminating 10.0.0.4:8080 unready unserving")
}

func TestAffinityAndPolicies(t *testing.T) {
	with := func(seconds *int32) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: seconds},
			}
		}
	}
	outside := "Service/default/web: spec.sessionAffinityConfig.clientIP.timeoutSeconds: %s is not within 1 to " +
		"86400; 10800 is used"
	for _, c := range []struct {
		seconds *int32
		want    []string
	}{
		{nil, []string{"web 10.96.0.1:80/tcp affinity=3h0m0s →"}},
		{ptr[int32](1), []string{"web 10.96.0.1:80/tcp affinity=1s →"}},
		{ptr[int32](86400), []string{"web 10.96.0.1:80/tcp affinity=24h0m0s →"}},
		{ptr[int32](0), []string{"web 10.96.0.1:80/tcp affinity=3h0m0s →", fmt.Sprintf(outside, "0")}},
		{ptr[int32](86401), []string{"web 10.96.0.1:80/tcp affinity=3h0m0s →", fmt.Sprintf(outside, "86401")}},
	} {
		want(t, storeOf(service("web", "10.96.0.1", with(c.seconds))).Snapshot(), c.want...)
	}
	want(t, storeOf(service("web", "10.96.0.1",
		func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP })).Snapshot(),
		"web 10.96.0.1:80/tcp affinity=3h0m0s →")
	want(t, storeOf(service("web", "10.96.0.1", func(s *corev1.Service) {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		s.Spec.InternalTrafficPolicy = ptr(corev1.ServiceInternalTrafficPolicyLocal)
	})).Snapshot(), "web 10.96.0.1:80/tcp etp=Local itp=Local →")
}

// TestBadServices: each has one problem, keeps its valid parts, and does not affect others.
func TestBadServices(t *testing.T) {
	other := []any{service("other", "10.96.0.99"), slice("other-1", "other", endpointPort("", tcp, 1), "10.244.0.9")}
	otherLine := "other 10.96.0.99:80/tcp → 10.244.0.9:1"
	for _, c := range []struct {
		name string
		edit func(*corev1.Service)
		want []string
	}{
		{"cluster IP", func(s *corev1.Service) { s.Spec.ClusterIPs = []string{"010.96.0.1", "fd00:10:96::1"} },
			[]string{
				"web [fd00:10:96::1]:80/tcp →",
				`Service/default/web: spec.clusterIPs[0]: "010.96.0.1" is not an IPv4 or IPv6 address in canonical form`}},
		{"mapped cluster IP", func(s *corev1.Service) { s.Spec.ClusterIPs = []string{"::ffff:10.96.0.1"} }, []string{
			`Service/default/web: spec.clusterIPs[0]: "::ffff:10.96.0.1" is not an IPv4 or IPv6 address in canonical form`}},
		{"two of a family", func(s *corev1.Service) { s.Spec.ClusterIPs = []string{"10.96.0.1", "10.96.0.2"} },
			[]string{
				"web 10.96.0.1:80/tcp →",
				"Service/default/web: spec.clusterIPs[1]: 10.96.0.2 is a second address of its " +
					"family; the first is used"}},
		{"no cluster IP", func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil }, []string{
			"Service/default/web: spec.clusterIPs: the Service has no cluster IP"}},
		{"only clusterIP", func(s *corev1.Service) { s.Spec.ClusterIPs = nil }, []string{"web 10.96.0.1:80/tcp →"}},
		{"no port", ports(), []string{"Service/default/web: spec.ports: the Service has no port"}},
		{"port 0", ports(port("a", tcp, 0), port("b", tcp, 1)), []string{
			"web:b 10.96.0.1:1/tcp →", "Service/default/web: spec.ports[0].port: 0 is not a port number (1 to 65535)"}},
		{"port 65536", ports(port("a", tcp, 65535), port("b", tcp, 65536)), []string{
			"web:a 10.96.0.1:65535/tcp →",
			"Service/default/web: spec.ports[1].port: 65536 is not a port number (1 to 65535)"}},
		{"node port", ports(corev1.ServicePort{Port: 80, NodePort: 70000}), []string{
			"Service/default/web: spec.ports[0].nodePort: 70000 is not a port number (1 to 65535)"}},
		{"protocol", ports(port("a", "tcp", 80), port("b", udp, 80)), []string{
			"web:b 10.96.0.1:80/udp →",
			`Service/default/web: spec.ports[0].protocol: "tcp" is not a protocol of ports (TCP, UDP, SCTP)`}},
		{"no protocol", ports(port("", "", 80)), []string{"web 10.96.0.1:80/tcp →"}},
		{"name twice", ports(port("a", tcp, 80), port("a", udp, 81)), []string{
			"web:a 10.96.0.1:80/tcp →",
			`Service/default/web: spec.ports[1].name: "a" is the name of another port already`}},
		{"bad name", ports(port("a\nb'", tcp, 80), port("b", tcp, 81)), []string{
			"web:b 10.96.0.1:81/tcp →",
			`Service/default/web: spec.ports[0].name: "a\nb'" is not a DNS label (RFC 1123)`}},
		{"dual stack tells once", func(s *corev1.Service) {
			s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, "fd00:10:96::1")
			s.Spec.Ports[0].Port = -1
			s.Spec.ExternalIPs = []string{"", "127.0.0.1", "169.254.1.1", "0.0.0.0", "224.0.0.1", "255.255.255.255",
				"fe80::1%eth0"}
		}, []string{
			`Service/default/web: spec.externalIPs[0]: "" is not an IPv4 or IPv6 address in canonical form`,
			"Service/default/web: spec.externalIPs[1]: 127.0.0.1 is a loopback address, which other " +
				"machines cannot reach",
			"Service/default/web: spec.externalIPs[2]: 169.254.1.1 is a link-local address, which other " +
				"machines cannot reach",
			"Service/default/web: spec.externalIPs[3]: 0.0.0.0 is the unspecified address, which other " +
				"machines cannot reach",
			"Service/default/web: spec.externalIPs[4]: 224.0.0.1 is a multicast address, which other " +
				"machines cannot reach",
			"Service/default/web: spec.externalIPs[5]: 255.255.255.255 is the broadcast address, which other " +
				"machines cannot reach",
			`Service/default/web: spec.externalIPs[6]: "fe80::1%eth0" is not an IPv4 or IPv6 address in canonical form`,
			"Service/default/web: spec.ports[0].port: -1 is not a port number (1 to 65535)",
		}},
		{"words", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.SessionAffinity, s.Spec.ExternalTrafficPolicy = "Nodeport", "clientIP", "local"
			s.Spec.InternalTrafficPolicy = ptr(corev1.ServiceInternalTrafficPolicy("all"))
		}, []string{
			"web 10.96.0.1:80/tcp →",
			`Service/default/web: spec.externalTrafficPolicy: "local" is not one of ["Cluster" "Local"]`,
			`Service/default/web: spec.internalTrafficPolicy: "all" is not one of ["Cluster" "Local"]`,
			`Service/default/web: spec.sessionAffinity: "clientIP" is not one of ["ClientIP" "None"]`,
			`Service/default/web: spec.type: "Nodeport" is not one of ["ClusterIP" "NodePort" "LoadBalancer" "ExternalName"]`,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			want(t, storeOf(append(other, service("web", "10.96.0.1", c.edit))...).Snapshot(),
				append([]string{otherLine}, c.want...)...)
		})
	}
}

func TestBadSlices(t *testing.T) {
	good := slice("good", "web", endpointPort("", tcp, 8080), "10.244.0.5")
	for _, c := range []struct {
		name  string
		slice *discoveryv1.EndpointSlice
		want  []string
	}{
		{"address", slice("bad", "web", endpointPort("", tcp, 8080), "010.0.0.1", "10.244.0.6"), []string{
			"web 10.96.0.1:80/tcp → 10.244.0.5:8080 10.244.0.6:8080",
			`EndpointSlice/default/bad: endpoints[0].addresses[0]: "010.0.0.1" is not an IPv4 or IPv6 address in canonical form`}},
		{"loopback", slice("bad", "web", endpointPort("", tcp, 8080), "127.0.0.1"), []string{
			"web 10.96.0.1:80/tcp → 10.244.0.5:8080",
			"EndpointSlice/default/bad: endpoints[0].addresses[0]: 127.0.0.1 is a loopback address, which other " +
				"machines cannot reach"}},
		{"port", slice("bad", "web", endpointPort("", tcp, 65536), "10.244.0.6"), []string{
			"web 10.96.0.1:80/tcp → 10.244.0.5:8080",
			"EndpointSlice/default/bad: ports[0].port: 65536 is not a port number (1 to 65535)"}},
		{"port that no Service port names", slice("bad", "web", endpointPort("other", tcp, 0), "10.244.0.6"), []string{
			"web 10.96.0.1:80/tcp → 10.244.0.5:8080",
			"EndpointSlice/default/bad: ports[0].port: 0 is not a port number (1 to 65535)"}},
		{"protocol", slice("bad", "web", endpointPort("", "QUIC", 8080), "10.244.0.6"), []string{
			"web 10.96.0.1:80/tcp → 10.244.0.5:8080",
			`EndpointSlice/default/bad: ports[0].protocol: "QUIC" is not a protocol of ports (TCP, UDP, SCTP)`}},
		{"address type", edited(slice("bad", "web", endpointPort("", tcp, 8080), "10.244.0.6"),
			func(s *discoveryv1.EndpointSlice) { s.AddressType = "ipv4" }), []string{
			"web 10.96.0.1:80/tcp → 10.244.0.5:8080",
			`EndpointSlice/default/bad: addressType: "ipv4" is not an address type (IPv4, IPv6, FQDN)`}},
		{"no label", slice("bad", "", endpointPort("", tcp, 8080), "10.244.0.6"), []string{
			"web 10.96.0.1:80/tcp → 10.244.0.5:8080",
			"EndpointSlice/default/bad: metadata.labels[kubernetes.io/service-name]: names no Service, so " +
				"the slice serves none"}},
		{"unknown Service", slice("bad", "nobody", endpointPort("", tcp, 0), "10.244.0.6"), []string{
			"web 10.96.0.1:80/tcp → 10.244.0.5:8080",
			"EndpointSlice/default/bad: metadata.labels[kubernetes.io/service-name]: there is no Service/default/nobody",
			"EndpointSlice/default/bad: ports[0].port: 0 is not a port number (1 to 65535)"}},
		{"other namespace", edited(slice("bad", "web", endpointPort("", tcp, 8080), "10.244.0.6"),
			func(s *discoveryv1.EndpointSlice) { s.Namespace = "prod" }), []string{
			"web 10.96.0.1:80/tcp → 10.244.0.5:8080",
			"EndpointSlice/prod/bad: metadata.labels[kubernetes.io/service-name]: there is no Service/prod/web"}},
	} {
		t.Run(c.name,
			func(t *testing.T) { want(t, storeOf(c.slice, good, service("web", "10.96.0.1")).Snapshot(), c.want...) })
	}
}

func TestTriggered(t *testing.T) {
	at := func(name, time string, family string) *discoveryv1.EndpointSlice {
		s := slice(name, "web", endpointPort("", tcp, 8080), family)
		s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time}
		return s
	}
	s := storeOf(service("web", "10.96.0.1"), at("a", "2026-01-02T03:04:05.5Z", "10.0.0.1"),
		at("b", "2026-01-02T04:04:04+01:00", "10.0.0.2"),
		at("c", "nonsense", "10.0.0.3"), at("d", "2027-01-01T00:00:00Z", "fd00::1"))
	if got := s.Snapshot().Frontends[0].Triggered.Format("15:04:05.0"); got != "03:04:05.5" {
		t.Errorf("triggered at %s", got)
	}
	if f := storeOf(service("web", "10.96.0.1")).Snapshot().Frontends[0]; !f.Triggered.IsZero() {
		t.Errorf("triggered at %s without a slice", f.Triggered)
	}
}

func TestFrontendKey(t *testing.T) {
	f := storeOf(service("web", "10.96.0.1", ports(port("http", tcp, 80)))).Snapshot().Frontends[0]
	if f.Key() != "default/web:http/tcp/IPv4" {
		t.Errorf("key is %s", f.Key())
	}
	if got := cluster.Protocol(7).String(); got != "protocol-7" {
		t.Errorf("protocol 7 is %s", got)
	}
}

// TestAgeOfFrontends: a Service's age comes from its metadata, and takes precedence over UID and
// name.
func TestAgeOfFrontends(t *testing.T) {
	day := func(n int) metav1.Time { return metav1.Date(2026, 1, n, 0, 0, 0, 0, time.UTC) }
	made := func(name, uid string, created metav1.Time) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Name, s.UID, s.CreationTimestamp = name, types.UID(uid), created }
	}
	s := store.New(cluster.DefaultConfig())
	for _, edit := range []func(*corev1.Service){made("a", "1", day(3)), made("b", "3", day(2)), made("c", "2", day(2)),
		made("e", "", day(1)), made("d", "", day(1))} {
		s.Set(service("", "10.96.0.1", edit))
	}
	list := slices.SortedFunc(slices.Values(s.Snapshot().Frontends), (*cluster.Frontend).CompareAge)
	var names string
	for _, f := range list {
		names += f.Owner.Name
	}
	if names != "decba" {
		t.Errorf("the order by age is %s, want decba", names)
	}
	old := s.Snapshot().Frontends[0]
	s.Set(service("", "10.96.0.1", made("a", "9", day(3)))) // deleted and created again
	if f := s.Snapshot().Frontends[0]; f == old || f.UID != "9" {
		t.Errorf("a Service of another UID is %+v", f)
	}
}
