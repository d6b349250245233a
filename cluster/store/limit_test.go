package store_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"hairpin/cluster"
)

// crowd makes one Service with many ports, and one slice that has them all. Each port has its own
// target, or all share one.
func crowd(number, endpoints int, shared bool) (*corev1.Service, *discoveryv1.EndpointSlice) {
	v := service("crowd", "10.96.0.1", ports())
	x := edited(slice("crowd-1", "crowd", discoveryv1.EndpointPort{}),
		func(x *discoveryv1.EndpointSlice) { x.Ports = nil })
	for i := range number {
		name, target := fmt.Sprintf("p%d", i), int32(8080)
		if !shared {
			target += int32(i)
		}
		v.Spec.Ports = append(v.Spec.Ports, port(name, tcp, int32(1+i)))
		x.Ports = append(x.Ports, endpointPort(name, tcp, target))
	}
	for i := range endpoints {
		x.Endpoints = append(x.Endpoints,
			discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.244.%d.%d", i/250, i%250)}})
	}
	return v, x
}

// pairs counts the entries of load balancers: each endpoint, at each address of each port. lists
// counts the lists that Frontends share.
func pairs(s *cluster.Snapshot) (pairs, lists int) {
	seen := map[*cluster.Backend]bool{}
	for _, f := range s.Frontends {
		pairs += len(f.Backends) * (1 + len(f.ExternalIPs) + len(f.LoadBalancerIPs))
		if len(f.Backends) > 0 {
			seen[&f.Backends[0]] = true
		}
	}
	return pairs, len(seen)
}

// TestOneServiceDoesNotExplode: one Service and one slice, each of a size that the API accepts,
// multiply. Every port is served, with as many endpoints as the limit allows, and the Service has a
// problem.
func TestOneServiceDoesNotExplode(t *testing.T) {
	v, x := crowd(3000, 1000, false)
	x.Endpoints[0].Conditions.Ready = ptr(false) // the others are fitter
	first := storeOf(v, x).Snapshot()
	if n, _ := pairs(first); n > 100_000 {
		t.Errorf("%d pairs", n)
	}
	if len(first.Frontends) != 3000 {
		t.Errorf("%d ports are served", len(first.Frontends))
	}
	for i, f := range first.Frontends {
		want := netip.AddrPortFrom(netip.MustParseAddr("10.244.0.1"), 8080+uint16(i))
		if len(f.Backends) != 33 || netip.AddrPortFrom(f.Backends[0].Addr, f.Backends[0].Port) != want {
			t.Fatalf("%s has %d endpoints", f.Key(), len(f.Backends))
		}
	}
	problem := "Service/default/crowd: spec.ports: the endpoints of all ports and addresses are more than 100000: " +
		"33 endpoints of each port are used"
	if got := fmt.Sprint(first.Problems); got != "["+problem+"]" {
		t.Errorf("problems %s", got)
	}
	if again := storeOf(x, v).Snapshot(); !reflect.DeepEqual(first, again) {
		t.Error("another order of events gives another choice")
	}
	s := storeOf(v, x)
	s.Snapshot()
	v, _ = crowd(10, 1000, false)
	s.Set(v)
	if n, _ := pairs(s.Snapshot()); n != 10*1000 || len(s.Snapshot().Problems) > 0 {
		t.Errorf("with ten ports: %d pairs, problems %v", n, s.Snapshot().Problems)
	}
}

// TestManyPortsInOneSlice: several ports of a slice may have the name of one port of the Service.
func TestManyPortsInOneSlice(t *testing.T) {
	v, x := crowd(3000, 1000, false)
	v.Spec.Ports = v.Spec.Ports[:1]
	for i := range x.Ports {
		x.Ports[i].Name = &v.Spec.Ports[0].Name
	}
	s := storeOf(v, x).Snapshot()
	if n, _ := pairs(s); n > 100_000 || n == 0 || len(s.Problems) != 1 {
		t.Errorf("%d pairs, problems %v", n, s.Problems)
	}
}

// TestLargeServicesStayWhole: Services of realistic sizes are not limited.
func TestLargeServicesStayWhole(t *testing.T) {
	for _, c := range []struct{ ports, endpoints, outer int }{{1, 5000, 4}, {20, 5000, 0}, {100, 1000, 0},
		{2, 5000, 9}} {
		v, x := crowd(c.ports, 0, false)
		for i := range c.outer {
			v.Spec.ExternalIPs = append(v.Spec.ExternalIPs, fmt.Sprintf("192.0.2.%d", i))
		}
		s := storeOf(v)
		for i := 0; i < c.endpoints; i += 1000 {
			part := edited(x.DeepCopy(), func(p *discoveryv1.EndpointSlice) { p.Name = fmt.Sprintf("crowd-%d", i) })
			for j := i; j < i+1000; j++ {
				part.Endpoints = append(part.Endpoints,
					discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.244.%d.%d", j/250, j%250)}})
			}
			s.Set(part)
		}
		got := s.Snapshot()
		if n, _ := pairs(got); n != c.ports*c.endpoints*(1+c.outer) || len(got.Problems) > 0 {
			t.Errorf("%+v: %d pairs, problems %v", c, n, got.Problems)
		}
	}
}

// TestPortsWithOneTargetShareEndpoints: DNS has two ports and one list.
func TestPortsWithOneTargetShareEndpoints(t *testing.T) {
	v, x := crowd(60, 1000, true)
	if n, lists := pairs(storeOf(v, x).Snapshot()); n != 60_000 || lists != 1 {
		t.Errorf("%d pairs in %d lists", n, lists)
	}
	v, x = crowd(2, 10, false)
	if n, lists := pairs(storeOf(v, x).Snapshot()); n != 20 || lists != 2 {
		t.Errorf("two targets: %d pairs in %d lists", n, lists)
	}
}

// TestAddressesOfOneServiceAreLimited: ports and external addresses multiply without any endpoint.
func TestAddressesOfOneServiceAreLimited(t *testing.T) {
	v, _ := crowd(1000, 0, false)
	v.Spec.Type = corev1.ServiceTypeLoadBalancer
	v.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}, {IP: "198.51.100.2"}}
	for i := range 1000 {
		v.Spec.ExternalIPs = append(v.Spec.ExternalIPs, fmt.Sprintf("192.0.%d.%d", i/250, i%250))
	}
	s := storeOf(v).Snapshot()
	for _, f := range s.Frontends {
		if len(f.LoadBalancerIPs) != 2 || len(f.ExternalIPs) != 8 || f.ExternalIPs[7].String() != "192.0.0.7" {
			t.Fatalf("%s is served at %v and %v", f.Key(), f.LoadBalancerIPs, f.ExternalIPs)
		}
	}
	want := "Service/default/crowd: spec.externalIPs: 1000 ports and 1002 external addresses multiply to more than " +
		"10000: 10 of the addresses are served"
	if got := fmt.Sprint(s.Problems); got != "["+want+"]" {
		t.Errorf("problems %s", got)
	}
}

// TestSourceRangesOfOneServiceAreLimited: clients in omitted ranges have no access.
func TestSourceRangesOfOneServiceAreLimited(t *testing.T) {
	v, _ := crowd(1000, 0, false)
	v.Spec.Type = corev1.ServiceTypeLoadBalancer
	v.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}, {IP: "198.51.100.2"}}
	for i := range 1000 {
		v.Spec.LoadBalancerSourceRanges = append(v.Spec.LoadBalancerSourceRanges,
			fmt.Sprintf("10.%d.%d.0/24", i/250, i%250))
	}
	s := storeOf(v).Snapshot()
	for _, f := range s.Frontends {
		if len(f.SourceRanges) != 50 || !f.Restricted {
			t.Fatalf("%s is open to %d ranges", f.Key(), len(f.SourceRanges))
		}
	}
	want := "Service/default/crowd: spec.loadBalancerSourceRanges: 1000 ranges, for 2000 addresses and ports, " +
		"multiply to more than 100000: the first 50 ranges may reach them"
	if got := fmt.Sprint(s.Problems); got != "["+want+"]" {
		t.Errorf("problems %s", got)
	}
}

// BenchmarkLargeService makes a Snapshot of one Service with 3 000 ports and one slice of 1 000
// endpoints, and a second one when the slice changes.
func BenchmarkLargeService(b *testing.B) {
	v, x := crowd(3000, 1000, false)
	y := x.DeepCopy()
	slices.Reverse(y.Endpoints)
	y.Endpoints[5].Conditions.Ready = ptr(false)
	b.ReportAllocs()
	for b.Loop() {
		s := storeOf(v, x)
		s.Snapshot()
		s.Set(y)
		s.Snapshot()
	}
}
