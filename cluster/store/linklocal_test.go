package store_test

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/cluster"
	"hairpin/cluster/store"
)

// TestLinkLocalIngress: an IPv4 link-local address of a load balancer is served only if
// load-balancer-ranges lists it; as an external IP it is never served.
func TestLinkLocalIngress(t *testing.T) {
	link, out := netip.MustParseAddr("169.254.77.10"), netip.MustParseAddr("198.51.100.10")
	for name, c := range map[string]struct {
		limit cluster.AllowedRanges
		want  []netip.Addr
	}{
		"no limit": {cluster.AllowedRanges{}, []netip.Addr{out}},
		"not listed": {
			cluster.AllowedRanges{Set: true, Ranges: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}},
			[]netip.Addr{out}},
		"listed": {cluster.AllowedRanges{Set: true, Ranges: []netip.Prefix{netip.MustParsePrefix("169.254.77.0/24")}},
			[]netip.Addr{link}},
		"all are": {cluster.AllowedRanges{Set: true, Ranges: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}},
			[]netip.Addr{link, out}},
		"a masquerade": {cluster.AllowedRanges{Set: true,
			Ranges: []netip.Prefix{netip.MustParsePrefix("169.254.169.0/24")}}, nil},
	} {
		s := store.New(cluster.Config{LoadBalancerIPs: c.limit,
			Gateway: cluster.GatewayConfig{
				MasqueradeSubnets: []netip.Prefix{netip.MustParsePrefix("169.254.169.0/29")}}})
		s.Set(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "default"}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.10", Ports: []corev1.ServicePort{{Port: 80}},
			ExternalIPs: []string{"169.254.77.11"},
		}, Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
			{IP: link.String()}, {IP: out.String()}, {IP: "fe80::10"}, {IP: "169.254.169.3"},
		}}}})
		f := s.Snapshot().Frontends[0]
		if !slices.Equal(f.LoadBalancerIPs, c.want) || len(f.ExternalIPs) > 0 {
			t.Errorf("%s: served at %s and %s, want %s", name, f.LoadBalancerIPs, f.ExternalIPs, c.want)
		}
	}
}
