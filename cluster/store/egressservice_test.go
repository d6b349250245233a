package store_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "hairpin/api/v1"
	"hairpin/cluster"
)

func egressService(name string, edits ...func(*v1.EgressService)) *v1.EgressService {
	e := &v1.EgressService{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	for _, edit := range edits {
		edit(e)
	}
	return e
}

func onHost(host string) func(*v1.EgressService) {
	return func(e *v1.EgressService) { e.Status.Host = host }
}

// withBalancer gives a Service addresses of a load balancer.
func withBalancer(created int, addresses ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type, s.CreationTimestamp = corev1.ServiceTypeLoadBalancer, metav1.NewTime(time.Unix(int64(created), 0))
		for _, a := range addresses {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
		}
	}
}

// TestEgressServices: the EgressIP of an EgressService and its Service, and rejected addresses.
func TestEgressServices(t *testing.T) {
	own := cluster.Owner{Kind: "EgressService", Namespace: "default", Name: "web"}
	local := func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }
	elsewhere := func(s *corev1.Service) { s.Namespace = "other" }
	http := ports(port("http", corev1.ProtocolTCP, 80))
	other := ports(port("other", corev1.ProtocolTCP, 81))
	for _, c := range []struct {
		name     string
		service  *corev1.Service
		e        *v1.EgressService
		also     []any
		want     string // addresses, assigned, endpoints, nodes with endpoints
		problems []string
	}{
		{"one address", service("web", "10.96.0.9", http, withBalancer(1, "203.0.113.20", "203.0.113.21")),
			egressService("web", onHost("worker")), nil,
			"[203.0.113.20] [{203.0.113.20 worker}] [10.244.1.3 10.244.1.4] []", nil},
		{"no host", service("web", "10.96.0.9", http, withBalancer(1, "203.0.113.20")), egressService("web"), nil,
			"[203.0.113.20] [] [10.244.1.3 10.244.1.4] []", nil},
		{"policy Local", service("web", "10.96.0.9", http, withBalancer(1, "203.0.113.20"), local),
			egressService("web"), nil,
			"[203.0.113.20] [] [10.244.1.3 10.244.1.4] [worker]", nil},
		{"by network", service("web", "10.96.0.9", http, withBalancer(1, "203.0.113.20")),
			egressService("web", onHost("ALL"), func(e *v1.EgressService) { e.Spec.SourceIPBy = "Network" }), nil,
			"[] [] [10.244.1.3 10.244.1.4] []", nil},
		{"a network of its own", service("web", "10.96.0.9", http, withBalancer(1, "203.0.113.20")),
			egressService("web", onHost("worker"), func(e *v1.EgressService) { e.Spec.Network = "blue" }), nil,
			"[203.0.113.20] [{203.0.113.20 worker}] [10.244.1.3 10.244.1.4] [] blue [10.96.0.9]", nil},
		{"the main table", service("web", "10.96.0.9", http, withBalancer(1, "203.0.113.20")),
			egressService("web", onHost("worker"), func(e *v1.EgressService) { e.Spec.Network = "254" }), nil,
			"[] [] [] []",
			[]string{`EgressService/default/web: spec.network: "254" is neither a VRF's name nor the number of a route table of the machine's own`}},
		{"a table of Hairpin", service("web", "10.96.0.9", http, withBalancer(1, "203.0.113.20")),
			egressService("web", onHost("worker"), func(e *v1.EgressService) { e.Spec.Network = "84999" }), nil,
			"[] [] [] []",
			[]string{`EgressService/default/web: spec.network: "84999" is neither a VRF's name nor the number of a route table of the machine's own`}},
		{"another source", service("web", "10.96.0.9", http, withBalancer(1, "203.0.113.20")),
			egressService("web", func(e *v1.EgressService) { e.Spec.SourceIPBy = "Pod" }), nil,
			"[] [] [] []",
			[]string{`EgressService/default/web: spec.sourceIPBy: "Pod" is neither LoadBalancerIP nor Network`}},
		{"a selector that is none", service("web", "10.96.0.9", http, withBalancer(1, "203.0.113.20")),
			egressService("web",
				func(e *v1.EgressService) { e.Spec.NodeSelector.MatchLabels = map[string]string{"a b": ""} }), nil,
			"[] [] [] []",
			[]string{`EgressService/default/web: spec.nodeSelector: is not a label selector: key: Invalid value: "a b": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')`}},
		{"no load balancer", service("web", "10.96.0.9", http), egressService("web", onHost("worker")), nil,
			"[] [] [] []",
			[]string{"EgressService/default/web: metadata.name: Service/default/web is not there, or has no load " +
				"balancer address that is served"}},
		{"external addresses are none", service("web", "10.96.0.9", http,
			func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"203.0.113.20"} }), egressService("web"), nil,
			"[] [] [] []",
			[]string{"EgressService/default/web: metadata.name: Service/default/web is not there, or has no load " +
				"balancer address that is served"}},
		{"a node's address", service("web", "10.96.0.9", http, withBalancer(1, "172.18.0.3")), egressService("web"),
			nil,
			"[] [] [] []",
			[]string{"EgressService/default/web: metadata.name: 172.18.0.3 of Service/default/web is an address of " +
				"node worker itself: pods do not leave with it"}},
		{"an older EgressIP's", service("web", "10.96.0.9", http, withBalancer(1, "203.0.113.20")),
			egressService("web"), []any{egressIP("e", "203.0.113.20")},
			"[] [] [] []",
			[]string{"EgressService/default/web: metadata.name: Service/default/web is not there, or has no load " +
				"balancer address that is served"}},
		{"another tenant's", service("web", "10.96.0.9", http, withBalancer(2, "203.0.113.20")), egressService("web"),
			[]any{service("victim", "10.96.0.8", other, elsewhere, withBalancer(1, "203.0.113.20"))},
			"[] [] [] []",
			[]string{"EgressService/default/web: metadata.name: 203.0.113.20 of Service/default/web is an address " +
				"of Service/other/victim, which is older and in another namespace: pods do not leave with it"}},
		{"shared in a namespace", service("web", "10.96.0.9", http, withBalancer(2, "203.0.113.20")),
			egressService("web"), []any{service("mate", "10.96.0.8", other, withBalancer(1, "203.0.113.20"))},
			"[203.0.113.20] [] [10.244.1.3 10.244.1.4] []", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := slice("web", "web", endpointPort("http", corev1.ProtocolTCP, 8080), "10.244.1.4", "10.244.1.3")
			for i := range x.Endpoints {
				name := "worker"
				x.Endpoints[i].NodeName = &name
			}
			st := storeOf(append(append(protected(), c.service, c.e, x), c.also...)...)
			s := st.Snapshot()
			e := s.EgressIPs[len(s.EgressIPs)-1]
			got := fmt.Sprint(e.Addresses, e.Assigned, e.Service.Endpoints, e.Service.OnlyOn)
			if e.ByTable() && len(e.Addresses) > 0 {
				got += fmt.Sprint(" ", e.Service.Table, " ", e.Service.ClusterIPs)
			}
			if got != c.want || e.Owner != own {
				t.Errorf("%s has %s, not %s", e.Owner, got, c.want)
			}
			if got := problemsOf(s, own); !slices.Equal(got, c.problems) {
				t.Errorf("problems\n%q, not\n%q", got, c.problems)
			}
			st.Set(pod("one", "worker", "10.244.1.9"))
			if again := st.Snapshot(); again.EgressIPs[len(again.EgressIPs)-1] != e || again == s {
				t.Error("what did not change is another pointer")
			}
			st.Delete(c.e)
			if again := st.Snapshot(); len(again.EgressIPs) != len(s.EgressIPs)-1 || len(problemsOf(again, own)) > 0 {
				t.Error("it is gone, and something is left")
			}
		})
	}
}
