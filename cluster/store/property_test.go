package store_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"hairpin/api/clusternetworkpolicy"
	"hairpin/cluster"
	"hairpin/cluster/annotation"
)

// plain compares netip's values by ==.
func plain() cmp.Option { return cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}) }

// anyObject draws an object from few names and few values, so that they collide; some values are
// invalid.
func anyObject(t *rapid.T) any {
	name := func(prefix string, n int) string {
		return fmt.Sprintf("%s%d", prefix, rapid.IntRange(1, n).Draw(t, prefix))
	}
	ip := func(label string) string {
		return rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2", "010.0.0.1", "127.0.0.1",
			"10.244.1.1", "10.244.2.2", "10.244.2.5", "10.244.2.7"}).Draw(t, label)
	}
	protocol := func() corev1.Protocol {
		return rapid.SampledFrom([]corev1.Protocol{tcp, udp, "QUIC"}).Draw(t, "protocol")
	}
	number := func() int32 { return rapid.SampledFrom([]int32{1, 2, 0, 65536}).Draw(t, "number") }
	switch rapid.IntRange(0, 7).Draw(t, "kind") {
	case 0:
		pods := rapid.SampledFrom([][]string{nil, {"10.244.1.0/24"}, {"10.244.2.0/24"}, {"10.244.2.4/30"}}).Draw(t,
			"range")
		return node(name("node", 3), addresses(ip("address"), ip("address")),
			annotated(annotation.NodeID, rapid.SampledFrom([]string{"1", "2", "x"}).Draw(t, "id")),
			func(n *corev1.Node) { n.Spec.PodCIDRs = pods })
	case 1:
		return pod(name("pod", 3), rapid.SampledFrom([]string{"", "node1", "node2"}).Draw(t, "node"), ip("ip"),
			ip("ip"))
	case 6:
		o := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name("policy", 3)}}
		o.Spec.PodSelector.MatchLabels = rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "-"}),
			rapid.SampledFrom([]string{"x", "y"}), 0, 2).Draw(t, "labels")
		block := &networkingv1.IPBlock{CIDR: fmt.Sprint(ip("block"), "/", number()),
			Except: []string{ip("except") + "/32"}}
		o.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{
			{From: []networkingv1.NetworkPolicyPeer{{IPBlock: block}}}}
		return o
	case 7:
		return &clusternetworkpolicy.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name("policy", 3)},
			Spec: json.RawMessage(fmt.Sprintf(`{"tier":"Admin","priority":%d,"subject":{"namespaces":{}},"egress":[%s]}`,
				number(), rapid.SampledFrom([]string{"", `{"action":"Deny","to":[{"networks":["10.0.0.0/8"]}]}`,
					`{"action":"Deny","to":[{}]}`}).Draw(t, "rule")))}
	case 2, 3:
		return service(name("service", 3), rapid.SampledFrom([]string{"None", "10.96.0.1", "010.96.0.1"}).Draw(t, "ip"),
			ports(port(name("port", 2), protocol(), number()), port(name("port", 2), protocol(), number())),
			func(s *corev1.Service) {
				s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, ip("second"))
				if rapid.Bool().Draw(t, "labelled") {
					s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "x"}
				}
			})
	default:
		s := slice(name("slice", 4), rapid.SampledFrom([]string{"", "service1", "service2", "service3",
			"service4"}).Draw(t, "service"),
			endpointPort(name("port", 2), protocol(), number()), ip("endpoint"), ip("endpoint"))
		s.Ports = append(s.Ports, endpointPort(name("port", 2), protocol(), number()))
		s.Endpoints[1].Conditions.Ready = rapid.SampledFrom([]*bool{nil, ptr(true), ptr(false)}).Draw(t, "ready")
		s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: fmt.Sprintf("2026-01-01T00:00:0%dZ",
			rapid.IntRange(0, 9).Draw(t, "time"))}
		return s
	}
}

func key(o any) string {
	switch o := o.(type) {
	case *corev1.Node:
		return "Node/" + o.Name
	case *corev1.Pod:
		return "Pod/" + o.Name
	case *corev1.Service:
		return "Service/" + o.Name
	case *discoveryv1.EndpointSlice:
		return "EndpointSlice/" + o.Name
	case *networkingv1.NetworkPolicy:
		return "NetworkPolicy/" + o.Name
	case *clusternetworkpolicy.ClusterNetworkPolicy:
		return "ClusterNetworkPolicy/" + o.Name
	}
	return ""
}

// TestSnapshotDoesNotDependOnHistory: after any history of changes and Snapshots, the Store's
// Snapshot equals that of a Store with only the last objects, in any order. Equal values of
// consecutive Snapshots are the same pointers.
func TestSnapshotDoesNotDependOnHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, left := storeOf(), map[string]any{}
		last := s.Snapshot()
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			o := anyObject(t)
			if rapid.IntRange(0, 3).Draw(t, "delete") == 0 {
				s.Delete(o)
				delete(left, key(o))
			} else {
				s.Set(o)
				left[key(o)] = o
			}
			if rapid.Bool().Draw(t, "look") {
				next := s.Snapshot()
				checkShared(t, last, next)
				last = next
			}
		}
		var objects []any
		for _, k := range rapid.Permutation(slices.Sorted(maps.Keys(left))).Draw(t, "order") {
			objects = append(objects, left[k])
		}
		if diff := cmp.Diff(storeOf(objects...).Snapshot(), s.Snapshot(), plain()); diff != "" {
			t.Fatalf("from nothing (-), by the way (+):\n%s", diff)
		}
	})
}

// checkShared checks that equal Frontends are the same pointers.
func checkShared(t *rapid.T, a, b *cluster.Snapshot) {
	byKey := map[string]*cluster.Frontend{}
	for _, f := range a.Frontends {
		byKey[f.Key()] = f
	}
	for _, f := range b.Frontends {
		if old := byKey[f.Key()]; old != nil && old != f && cmp.Equal(old, f, plain()) {
			t.Fatalf("%s did not change and is another pointer", f.Key())
		}
	}
}
