package store_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/cluster"
	"hairpin/cluster/annotation"
	"hairpin/cluster/store"
)

// TestExtraAddresses: a Pod gets extra addresses that its Namespace's annotation allows, and none
// that another object has.
func TestExtraAddresses(t *testing.T) {
	space := func(ranges string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default",
			Annotations: map[string]string{annotation.ExtraRanges: ranges}}}
	}
	asks := func(list string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "vip",
				Annotations: map[string]string{annotation.ExtraAddresses: list}},
			Spec:   corev1.PodSpec{NodeName: "node-a"},
			Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.244.1.3"}}},
		}
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-a"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.1.0/24"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP,
			Address: "172.18.0.3"}}},
	}
	const all = "0.0.0.0/0,::/0"
	for _, c := range []struct{ ranges, asked, gets, says string }{
		{"10.244.1.192/27", "10.244.1.200", "10.244.1.200", ""},
		{"10.244.1.192/27, 192.0.2.0/24", "192.0.2.7 10.244.1.200", "192.0.2.7 10.244.1.200", ""},
		{"", "10.244.1.200", "",
			"10.244.1.200 is not within annotation k8s.ovn.org/extra-address-ranges of Namespace/default: the " +
				"pod must not use it"},
		{"10.244.1.192/27", "10.244.1.100 10.244.1.200", "10.244.1.200", "10.244.1.100 is not within annotation"},
		{all, "10.96.0.1", "", "10.96.0.1 is in the ClusterIP range"},
		{all, "100.64.0.7", "", "100.64.0.7 is in the join subnet"},
		{all, "100.88.0.7", "", "the transit subnet"},
		{all, "169.254.169.3", "", "a link-local address"},
		{all, "fd69::3", "", "the masquerade subnet"},
		{all, "10.244.1.1", "", "10.244.1.1 is the cluster router's"},
		{all, "10.244.1.2", "", "10.244.1.2 is ovn-k8s-mp0's"},
		{all, "10.244.2.9", "", "10.244.2.9 is in the range of pods, but not of node node-a"},
		{all, "172.18.0.3", "", "172.18.0.3 is an address of node node-a"},
		{all, "nonsense", "", "nonsense"},
	} {
		s := store.New(cluster.DefaultConfig())
		pod := asks(c.asked)
		for _, o := range []any{node, pod, space(c.ranges)} {
			s.Set(o)
		}
		got := s.Snapshot()
		var extra []string
		for _, a := range got.Pods[0].Extra {
			extra = append(extra, a.String())
		}
		if strings.Join(extra, " ") != c.gets {
			t.Errorf("ranges %q: who asks for %q gets %q, want %q", c.ranges, c.asked, extra, c.gets)
		}
		told := slices.ContainsFunc(got.Problems, func(p cluster.Problem) bool {
			return p.Owner.Kind == "Pod" && strings.Contains(p.Message, c.says)
		})
		if told != (c.says != "") {
			t.Errorf("ranges %q, asked for %q: problems %v, want one with %q", c.ranges, c.asked, got.Problems, c.says)
		}
	}

	s := store.New(cluster.DefaultConfig())
	for _, o := range []any{node, asks("10.244.1.200"), space("10.244.1.192/27")} {
		s.Set(o)
	}
	before := s.Snapshot().Pods[0]
	s.Set(service("other", "10.96.0.9"))
	if after := s.Snapshot().Pods[0]; after != before {
		t.Error("a Pod changed, because a Service came")
	}
	s.Set(space(""))
	if after := s.Snapshot(); len(after.Pods[0].Extra) != 0 || len(after.Problems) != 1 {
		t.Errorf("the Namespace allows nothing any more: %v, %v", after.Pods[0].Extra, after.Problems)
	}
	s.Set(space("10.244.1.192/27"))
	if after := s.Snapshot(); !slices.Equal(after.Pods[0].Extra, []netip.Addr{netip.MustParseAddr("10.244.1.200")}) ||
		len(after.Problems) != 0 {
		t.Errorf("the Namespace allows it again: %v, %v", after.Pods[0].Extra, after.Problems)
	}
	s.Delete(asks(""))
	if after := s.Snapshot(); len(after.Pods) != 0 || len(after.Problems) != 0 {
		t.Errorf("the Pod went: %v, %v", after.Pods, after.Problems)
	}
}
