package store_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "hairpin/api/v1"
	"hairpin/cluster"
	"hairpin/cluster/annotation"
	"hairpin/cluster/store"
)

// protected returns objects whose addresses no Service may have: a node, and the API server's
// Service with an endpoint there and one on a machine that is not a node.
func protected() []any {
	worker := node("worker", annotated(annotation.HostCIDRs, `["172.18.0.3/16","fc00:f853:ccd::3/64"]`),
		func(n *corev1.Node) {
			n.Spec.PodCIDRs = []string{"10.244.1.0/24", "fd00:10:244:1::/64"}
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.18.0.3"},
				{Type: corev1.NodeInternalIP, Address: "fc00:f853:ccd::3"}}
		})
	return []any{
		worker,
		service("kubernetes", "10.96.0.1", ports(port("https", corev1.ProtocolTCP, 443))),
		slice("kubernetes", "kubernetes", endpointPort("https", corev1.ProtocolTCP, 8443), "172.18.0.3", "192.0.2.10"),
	}
}

// problemsOf returns the lines of one object.
func problemsOf(s *cluster.Snapshot, o cluster.Owner) (list []string) {
	for _, p := range s.Problems {
		if p.Owner == o {
			list = append(list, p.Error())
		}
	}
	return list
}

func front(t *testing.T, s *cluster.Snapshot, name string, port uint16) *cluster.Frontend {
	t.Helper()
	for _, f := range s.Frontends {
		if f.Owner.Name == name && f.Port == port {
			return f
		}
	}
	t.Fatalf("there is no Frontend %s:%d", name, port)
	return nil
}

func at(texts ...string) (list []netip.Addr) {
	for _, a := range texts {
		list = append(list, netip.MustParseAddr(a))
	}
	return list
}

func TestReservedAddressesAreRejected(t *testing.T) {
	const good = "203.0.113.7"
	for _, c := range []struct {
		port       int32
		ip, reason string
	}{
		{80, "10.96.0.1", "10.96.0.1 is in the ClusterIP range (10.96.0.0/16)"},
		{80, "10.244.1.5", "10.244.1.5 is in the pod range (10.244.0.0/16)"},
		{80, "100.64.0.3", "100.64.0.3 is in the join subnet (100.64.0.0/16)"},
		{80, "100.88.0.3", "100.88.0.3 is in the transit subnet (100.88.0.0/16)"},
		{8443, "172.18.0.3", "172.18.0.3:8443 is the API server's address"},
		{8443, "192.0.2.10", "192.0.2.10:8443 is the API server's address"},
		{22, "172.18.0.3",
			"172.18.0.3 is an address of node worker, where port 22 is reserved for the node ([default] " +
				"reserved-node-ports)"},
		{6081, "172.18.0.3", "172.18.0.3 is an address of node worker, where port 6081 is reserved"},
		{10250, "172.18.0.3", "172.18.0.3 is an address of node worker, where port 10250 is reserved"},
		{80, "0.1.2.3", `0.1.2.3 is a "this network" (0.0.0.0/8) address`},
		{80, "240.0.0.1", "240.0.0.1 is a reserved (240.0.0.0/4) address"},
		// Still allowed: an ingress in the host network, ssh behind a load balancer, other ports of
		// the API server's machine.
		{443, "172.18.0.3", ""},
		{22, "203.0.113.8", ""},
		{443, "192.0.2.10", ""},
	} {
		byExternal := service("s", "10.96.0.7", ports(port("", corev1.ProtocolTCP, c.port)),
			func(s *corev1.Service) { s.Spec.ExternalIPs = []string{c.ip, good} })
		byBalancer := service("s", "10.96.0.7", ports(port("", corev1.ProtocolTCP, c.port)), func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: c.ip}, {IP: good}}
		})
		for field, o := range map[string]*corev1.Service{"spec.externalIPs": byExternal,
			"status.loadBalancer.ingress": byBalancer} {
			s := storeOf(append(protected(), o)...).Snapshot()
			f := front(t, s, "s", uint16(c.port))
			got, want := slices.Concat(f.ExternalIPs, f.LoadBalancerIPs), at(good)
			if c.reason == "" {
				want = at(c.ip, good)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s %s port %d: served at %v, want %v", field, c.ip, c.port, got, want)
			}
			told := problemsOf(s, f.Owner)
			if c.reason == "" && len(told) > 0 || c.reason != "" && (len(told) != 1 ||
				!strings.HasPrefix(told[0], "Service/default/s: "+field) || !strings.Contains(told[0], c.reason)) {
				t.Errorf("%s %s port %d: told %q, want %q", field, c.ip, c.port, told, c.reason)
			}
		}
	}
}

// TestRefusedFollowsTheCluster: a range, node or endpoint of the API server that is added later
// takes the address from a Service, which gets it back when that is removed.
func TestRefusedFollowsTheCluster(t *testing.T) {
	taker := service("s", "10.96.0.7", ports(port("", corev1.ProtocolTCP, 22)),
		func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"198.51.100.3"} })
	s := storeOf(append(protected(), taker)...)
	served := func(want bool, when string) {
		t.Helper()
		if got := len(front(t, s.Snapshot(), "s", 22).ExternalIPs) == 1; got != want {
			t.Errorf("%s: served %v, want %v", when, got, want)
		}
	}
	served(true, "at first")
	later := node("later", func(n *corev1.Node) {
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "198.51.100.3"}}
	})
	s.Set(later)
	served(false, "a node has the address")
	s.Delete(later)
	served(true, "the node is gone")
	api := slice("kubernetes", "kubernetes", endpointPort("https", corev1.ProtocolTCP, 22), "198.51.100.3")
	s.Set(api)
	served(false, "the API server is there")
	s.Delete(api)
	served(true, "it is gone")
	more := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"198.51.100.0/24"}}}
	s.Set(more)
	served(false, "it is a cluster IP")
	s.Delete(more)
	served(true, "it is none any more")
}

func TestRangesOfExternalAddresses(t *testing.T) {
	c := cluster.DefaultConfig()
	c.ExternalIPs = cluster.AllowedRanges{Set: true, Ranges: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/28")}}
	c.LoadBalancerIPs = cluster.AllowedRanges{Set: true}
	s := store.New(c)
	s.Set(service("s", "10.96.0.7", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.ExternalIPs = []string{"203.0.113.7", "203.0.113.17"}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.8"}}
	}))
	f := front(t, s.Snapshot(), "s", 80)
	if !slices.Equal(f.ExternalIPs, at("203.0.113.7")) || len(f.LoadBalancerIPs) > 0 {
		t.Errorf("served at %v and %v", f.ExternalIPs, f.LoadBalancerIPs)
	}
	want := []string{
		"Service/default/s: spec.externalIPs: 203.0.113.17 is not within [default] external-ip-ranges: not served there",
		"Service/default/s: status.loadBalancer.ingress: 203.0.113.8 is not within [default] " +
			"load-balancer-ranges: not served there",
	}
	if got := problemsOf(s.Snapshot(), f.Owner); !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

func TestImpossibleEndpoints(t *testing.T) {
	for ip, reason := range map[string]string{
		"0.1.2.3":          "(0.0.0.0/8)",
		"240.0.0.1":        "(240.0.0.0/4)",
		"10.96.0.1":        "10.96.0.1 is in the ClusterIP range (10.96.0.0/16): cannot be an endpoint",
		"100.64.0.3":       "100.64.0.3 is in the join subnet (100.64.0.0/16): cannot be an endpoint",
		"100.88.0.3":       "100.88.0.3 is in the transit subnet (100.88.0.0/16): cannot be an endpoint",
		"10.244.1.1":       "10.244.1.1 is the cluster router's: cannot be an endpoint",
		"10.244.1.2":       "10.244.1.2 is ovn-k8s-mp0's: cannot be an endpoint",
		"fd00:10:244:1::2": "fd00:10:244:1::2 is ovn-k8s-mp0's: cannot be an endpoint",
		"fd00:10:96::1":    "fd00:10:96::1 is in the ClusterIP range (fd00:10:96::/112): cannot be an endpoint",
	} {
		clusterIP, good := "10.96.0.7", []string{"10.244.1.3", "172.18.0.3"}
		if strings.Contains(ip, ":") {
			clusterIP, good = "fd00:10:96::7", []string{"fd00:10:244:1::3", "fc00:f853:ccd::3"}
		}
		s := storeOf(append(protected(), service("s", clusterIP),
			slice("s-1", "s", endpointPort("", corev1.ProtocolTCP, 8080), good[0], ip, good[1]))...).Snapshot()
		var got []netip.Addr
		for _, b := range front(t, s, "s", 80).Backends {
			got = append(got, b.Addr)
		}
		want := at(good...)
		slices.SortFunc(want, netip.Addr.Compare)
		if !slices.Equal(got, want) {
			t.Errorf("%s: endpoints %v, want %v", ip, got, want)
		}
		told := problemsOf(s, cluster.Owner{Kind: "EndpointSlice", Namespace: "default", Name: "s-1"})
		if len(told) != 1 || !strings.Contains(told[0], reason) {
			t.Errorf("%s: told %q, want %q", ip, told, reason)
		}
	}
}

// TestImpossibleEndpointOfTheAPI: the endpoints of the API server's Service are checked like all
// others.
func TestImpossibleEndpointOfTheAPI(t *testing.T) {
	objects := append(protected(), slice("kubernetes", "kubernetes", endpointPort("https", corev1.ProtocolTCP, 8443),
		"10.96.0.1"))
	if f := front(t, storeOf(objects...).Snapshot(), "kubernetes", 443); len(f.Backends) != 0 {
		t.Errorf("endpoints %v", f.Backends)
	}
}

func TestEgressIPAndServiceWantOneAddress(t *testing.T) {
	egress := func(age int) *v1.EgressIP {
		return &v1.EgressIP{
			ObjectMeta: metav1.ObjectMeta{Name: "e", CreationTimestamp: metav1.NewTime(time.Unix(int64(age), 0))},
			Spec: v1.EgressIPSpec{EgressIPs: []string{"203.0.113.7", "203.0.113.9"},
				NamespaceSelector: &metav1.LabelSelector{}},
		}
	}
	for _, c := range []struct {
		name                string
		service, egress     int // seconds
		served, carried     bool
		byBalancer, deleted bool
	}{
		{name: "the EgressIP is older", service: 20, egress: 10, carried: true},
		{name: "the Service is older", service: 10, egress: 20, served: true},
		{name: "the EgressIP is older than a load balancer", service: 20, egress: 10, carried: true, byBalancer: true},
		{name: "the load balancer is older", service: 10, egress: 20, served: true, byBalancer: true},
		{name: "the older one goes", service: 20, egress: 10, served: true, deleted: true},
	} {
		o := service("s", "10.96.0.7", func(s *corev1.Service) {
			s.CreationTimestamp = metav1.NewTime(time.Unix(int64(c.service), 0))
			s.Spec.ExternalIPs = []string{"203.0.113.7"}
			if c.byBalancer {
				s.Spec.ExternalIPs, s.Spec.Type = nil, corev1.ServiceTypeLoadBalancer
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.7"}}
			}
		})
		st := storeOf(o, egress(c.egress))
		s := st.Snapshot()
		if c.deleted {
			st.Delete(egress(c.egress))
			s = st.Snapshot()
		}
		f := front(t, s, "s", 80)
		if got := len(f.ExternalIPs)+len(f.LoadBalancerIPs) == 1; got != c.served {
			t.Errorf("%s: served %v", c.name, got)
		}
		if c.deleted {
			continue
		}
		e := s.EgressIPs[0]
		want := []cluster.Claim{{Address: netip.MustParseAddr("203.0.113.7"), By: f.Owner}}
		if c.carried {
			want = nil
		}
		if !slices.Equal(e.Claimed, want) {
			t.Errorf("%s: claimed %v, want %v", c.name, e.Claimed, want)
		}
		told := problemsOf(s, f.Owner)
		if c.carried && (len(told) != 1 ||
			!strings.Contains(told[0], "203.0.113.7 is an address of EgressIP/e, which is older: not served there")) {
			t.Errorf("%s: told %q", c.name, told)
		}
	}
}
