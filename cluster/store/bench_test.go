package store_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"hairpin/cluster"
	"hairpin/cluster/annotation"
	"hairpin/cluster/store"
)

// many makes n Services with two endpoints each.
func many(n int) []any {
	var out []any
	for i := range n {
		name := fmt.Sprintf("service-%05d", i)
		out = append(out, service(name, fmt.Sprintf("10.96.%d.%d", i/256, i%256), ports(port("http", tcp, 80))),
			manySlice(i, 0))
	}
	return out
}

func manySlice(i, turn int) *discoveryv1.EndpointSlice {
	name := fmt.Sprintf("service-%05d", i)
	s := slice(name+"-x7x7x", name, endpointPort("http", tcp, 8080),
		fmt.Sprintf("10.244.%d.%d", i/250, i%250), fmt.Sprintf("10.245.%d.%d", i/250, turn%250))
	for j := range s.Endpoints {
		s.Endpoints[j].NodeName = ptr("node-a")
	}
	return s
}

// BenchmarkSnapshot changes one EndpointSlice of many and takes a Snapshot, and compares with a new
// Store. In "bad", each Service has a problem.
func BenchmarkSnapshot(b *testing.B) {
	for _, n := range []int{1_000, 10_000} {
		for _, bad := range []bool{false, true} {
			objects := many(n)
			if bad {
				for _, o := range objects {
					if s, ok := o.(*corev1.Service); ok {
						s.Spec.ExternalIPs = []string{"127.0.0.1"}
					}
				}
			}
			begin := time.Now()
			s := storeOf(objects...)
			first := s.Snapshot()
			fromNothing := time.Since(begin)
			if len(first.Frontends) != n || (len(first.Problems) == n) != bad {
				b.Fatalf("%d frontends, problems %v", len(first.Frontends), len(first.Problems))
			}
			b.Run(fmt.Sprintf("services=%d/bad=%v", n, bad), func(b *testing.B) {
				b.ReportAllocs()
				turn := 0
				for b.Loop() {
					turn++
					s.Set(manySlice(turn%n, turn))
					if s.Snapshot() == first {
						b.Fatal("nothing changed")
					}
				}
				each := float64(b.Elapsed()) / float64(turn)
				b.ReportMetric(float64(fromNothing)/each, "x-from-nothing")
			})
		}
	}
}

// BenchmarkNodeJoins adds a node to a thousand, sets its ID a moment later, and removes it, with
// Services that have endpoints there.
func BenchmarkNodeJoins(b *testing.B) {
	for _, n := range []int{0, 10_000} {
		objects := many(n)
		for i := range 1000 {
			objects = append(objects, joining(i, true))
		}
		config := cluster.DefaultConfig()
		config.ClusterSubnets[0].HostLength = 26 // as the nodes' ranges
		s := store.New(config)
		for _, o := range objects {
			s.Set(o)
		}
		last := s.Snapshot()
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for _, change := range []func(){
					func() { s.Set(joining(1000, false)) }, func() { s.Set(joining(1000, true)) },
					func() { s.Delete(joining(1000, true)) },
				} {
					change()
					next := s.Snapshot()
					if next == last || len(next.Frontends) != n {
						b.Fatal("nothing changed, or too much")
					}
					last = next
				}
			}
		})
	}
}

// joining returns a node, without or with its ID.
func joining(i int, numbered bool) *corev1.Node {
	c := node(fmt.Sprintf("n%05d", i), annotated(annotation.HostCIDRs,
		fmt.Sprintf(`["172.18.%d.%d/16"]`, i/250, i%250)))
	c.Spec.PodCIDRs = []string{fmt.Sprintf("10.244.%d.%d/26", i/4, i%4*64)}
	c.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP,
		Address: fmt.Sprintf("172.18.%d.%d", i/250, i%250)}}
	if numbered {
		c.Annotations[annotation.NodeID] = fmt.Sprint(i + 1)
	}
	return c
}
