package plan_test

import (
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/cluster"
	"hairpin/cluster/store"
	"hairpin/datapath/nb"
	"hairpin/plan"
)

// crowd makes one Service with 3 000 ports, 2 000 of them with a node port, and one slice with 1
// 000 endpoints.
func crowd(policy corev1.ServiceExternalTrafficPolicy) []any {
	v := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "crowd"}}
	v.Spec.Type, v.Spec.ClusterIP, v.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, "10.96.0.7", policy
	v.Spec.ExternalIPs = []string{"192.0.2.1"}
	x := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "crowd-1"},
		AddressType: discoveryv1.AddressTypeIPv4}
	x.Labels = map[string]string{discoveryv1.LabelServiceName: "crowd"}
	for i := range int32(3000) {
		name, number, nodePort := fmt.Sprintf("p%d", i), 1+i, int32(0)
		if i < 2000 {
			nodePort = 30000 + i
		}
		v.Spec.Ports = append(v.Spec.Ports, corev1.ServicePort{Name: name, Port: number, NodePort: nodePort})
		x.Ports = append(x.Ports, discoveryv1.EndpointPort{Name: &name, Port: &number})
	}
	node := "node-a"
	for i := range 1000 {
		x.Endpoints = append(x.Endpoints,
			discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.244.%d.%d", 1+i/250, i%250)}, NodeName: &node})
	}
	return []any{v, x}
}

// planned returns the plan of a node, and the number of endpoints in its load balancers.
func planned(objects []any) (pairs int) {
	facts := store.New(cluster.DefaultConfig())
	for _, o := range objects {
		facts.Set(o)
	}
	s := snapshot(node("node-a", 1, 3))
	s.Frontends = facts.Snapshot().Frontends
	state, _ := plan.Node(s, "node-a")
	for _, row := range state.NB {
		if lb, ok := row.(*nb.LoadBalancer); ok {
			for _, v := range lb.VIPs {
				pairs += len(v.Backends)
			}
		}
	}
	return pairs
}

// TestOneServiceDoesNotExplode: the Northbound database gets a row for each load balancer variant.
// However many ports, addresses and endpoints one Service has, all variants together have at most a
// few times what cluster allows.
func TestOneServiceDoesNotExplode(t *testing.T) {
	for _, policy := range []corev1.ServiceExternalTrafficPolicy{corev1.ServiceExternalTrafficPolicyCluster,
		corev1.ServiceExternalTrafficPolicyLocal} {
		if pairs := planned(crowd(policy)); pairs > 250_000 || pairs < 3000 {
			t.Errorf("policy %s: %d endpoints in load balancers", policy, pairs)
		}
	}
}

// BenchmarkOneServiceAndSlice measures what two objects cost a node, from objects to plan.
func BenchmarkOneServiceAndSlice(b *testing.B) {
	objects := crowd(corev1.ServiceExternalTrafficPolicyCluster)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	timer := startTimer()
	var pairs int
	for range b.N {
		pairs = planned(objects)
	}
	timer.report(b, 1000)
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(pairs), "pairs")
	b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/1e6/float64(b.N), "MB")
}
