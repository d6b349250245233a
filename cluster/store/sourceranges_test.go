package store_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/cluster"
	"hairpin/cluster/store"
)

// TestSourceRanges: source ranges are trimmed; /0 allows all clients of its family; ranges of only
// the other family allow none.
func TestSourceRanges(t *testing.T) {
	for _, c := range []struct {
		ranges []string
		v4, v6 string
		bad    int
	}{
		{nil, "all", "all", 0},
		{[]string{" 10.1.0.0/16 ", "10.0.0.0/8", "192.0.2.7/32"}, "[10.0.0.0/8 192.0.2.7/32]", "[]", 0},
		{[]string{"192.0.2.77/24", "fd00::/16"}, "[192.0.2.0/24]", "[fd00::/16]", 0},
		{[]string{"0.0.0.0/0"}, "all", "[]", 0},
		{[]string{"10.0.0.0/8", "0.0.0.0/0", "::/0"}, "all", "all", 0},
		{[]string{"nonsense"}, "[]", "[]", 1},
	} {
		s := storeOf(service("web", "10.96.0.1", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, c.ranges
			s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, "fd00:10:96::1")
		})).Snapshot()
		got := map[cluster.Family]string{}
		for _, f := range s.Frontends {
			got[f.Family] = "all"
			if f.Restricted {
				got[f.Family] = fmt.Sprint(f.SourceRanges)
			}
		}
		if got[cluster.IPv4] != c.v4 || got[cluster.IPv6] != c.v6 || len(s.Problems) != c.bad {
			t.Errorf("%q: IPv4 %s, IPv6 %s, problems %v", c.ranges, got[cluster.IPv4], got[cluster.IPv6], s.Problems)
		}
	}
}

func TestHealthCheckNodePort(t *testing.T) {
	for policy, want := range map[corev1.ServiceExternalTrafficPolicy]uint16{"Local": 30100, "Cluster": 0} {
		s := storeOf(service("web", "10.96.0.1", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer,
				policy, 30100
		})).Snapshot()
		if got := s.Frontends[0].HealthCheckNodePort; got != want {
			t.Errorf("policy %s: %d, want %d", policy, got, want)
		}
	}
}

// TestServiceCIDRs: ranges of cluster IPs are added and removed at run time.
func TestServiceCIDRs(t *testing.T) {
	s := store.New(cluster.DefaultConfig())
	want := func(text string) {
		t.Helper()
		if got := fmt.Sprint(s.Snapshot().Config.ServiceCIDRs); got != text {
			t.Errorf("%s, want %s", got, text)
		}
	}
	want("[10.96.0.0/16 fd00:10:96::/112]")
	first := s.Snapshot()
	more := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.97.0.0/16", "10.96.128.0/20", "x", "240.1.0.0/16"}}}
	s.Set(more)
	want("[10.96.0.0/16 10.97.0.0/16 fd00:10:96::/112]")
	if n := len(s.Snapshot().Problems); n != 2 {
		t.Errorf("%d problems", n)
	}
	if fmt.Sprint(first.Config.ServiceCIDRs) != "[10.96.0.0/16 fd00:10:96::/112]" {
		t.Error("an old Snapshot changed")
	}
	s.Delete(more)
	want("[10.96.0.0/16 fd00:10:96::/112]")
}
