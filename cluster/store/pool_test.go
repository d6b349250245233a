package store_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/api/v1alpha1"
	"hairpin/cluster"
	"hairpin/cluster/store"
)

func pool(name string, created int, ranges ...string) *v1alpha1.LoadBalancerPool {
	return &v1alpha1.LoadBalancerPool{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(int64(created), 0))},
		Spec:       v1alpha1.LoadBalancerPoolSpec{Ranges: ranges},
	}
}

// announcing sets the status of a pool: an address, the node that announces it, and Services.
func announcing(p *v1alpha1.LoadBalancerPool, address, node string, services ...string) *v1alpha1.LoadBalancerPool {
	p.Status.Addresses = append(p.Status.Addresses, v1alpha1.PoolAddress{Address: address, Node: node,
		Services: services})
	return p
}

// TestPortsOfLoadBalancers: a port that is no port number is none of a LoadBalancer's.
func TestPortsOfLoadBalancers(t *testing.T) {
	o := service("web", "10.96.0.9", ports(port("http", tcp, 80), port("bad", tcp, 65536+443)),
		func(s *corev1.Service) {
			s.Spec.Type, s.Spec.LoadBalancerClass = corev1.ServiceTypeLoadBalancer, ptr("hairpin.dev/l2")
		})
	got := storeOf(o).Snapshot().LoadBalancers[0].Ports
	if want := []cluster.LoadBalancerPort{{Protocol: cluster.TCP, Port: 80}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestPools: which ranges a pool has, and why not.
func TestPools(t *testing.T) {
	for _, c := range []struct {
		text, want, problem string
	}{
		{"192.0.2.0/30", "192.0.2.0-192.0.2.3", ""},
		{"192.0.2.7/32", "192.0.2.7", ""},
		{"192.0.2.10-192.0.2.12", "192.0.2.10-192.0.2.12", ""},
		{"fd10::/126", "fd10::-fd10::3", ""},
		{"192.0.2.1/30", "", "192.0.2.1/30 does not begin with its first address, 192.0.2.0"},
		{"192.0.2.1", "",
			`"192.0.2.1" is neither a prefix such as 192.0.2.0/26 nor a range such as 192.0.2.10-192.0.2.20`},
		{"192.0.2.9-192.0.2.1", "",
			"192.0.2.9-192.0.2.1 is not a range: the first address must not be after the last one"},
		{"192.0.2.9-fd10::1", "", "192.0.2.9-fd10::1 is not a range: the first address must not be after the last one"},
		{"0.0.0.0/0", "", "0.0.0.0/0 overlaps 0.0.0.0/32: Services cannot have the unspecified address"},
		{"169.254.1.0/24", "", "169.254.1.0/24 overlaps 169.254.0.0/16: Services cannot have a link-local address"},
		{"223.255.255.0-224.0.0.1", "",
			"223.255.255.0-224.0.0.1 overlaps 224.0.0.0/4: Services cannot have a multicast address"},
		{"10.95.255.0-10.96.0.1", "", "10.95.255.0-10.96.0.1 overlaps the ClusterIP range (10.96.0.0/16): its " +
			"addresses are not used"},
		{"10.244.7.0/24", "",
			"10.244.7.0-10.244.7.255 overlaps the pod range (10.244.0.0/16): its addresses are not used"},
		{"100.64.0.0/20", "", "100.64.0.0-100.64.15.255 overlaps the join subnet (100.64.0.0/16): its addresses " +
			"are not used"},
		{"203.0.113.8-203.0.113.9", "", "203.0.113.8-203.0.113.9 overlaps 203.0.113.0-203.0.113.8 of " +
			"LoadBalancerPool/old, which is older: its addresses are not used"},
	} {
		st := storeOf(append(protected(), pool("old", 1, "203.0.113.0-203.0.113.8"), pool("new", 2, c.text))...)
		s := st.Snapshot()
		got, problem := "", ""
		for _, r := range s.Pools[0].Ranges {
			got += r.String()
		}
		for _, p := range s.Problems {
			if p.Owner == s.Pools[0].Owner {
				problem += p.Message
			}
		}
		if got != c.want || problem != c.problem || s.Pools[0].Owner.Name != "new" {
			t.Errorf("%s is %q: %q", c.text, got, problem)
		}
		st.Set(pod("one", "worker", "10.244.1.9"))
		if again := st.Snapshot(); again.Pools[0] != s.Pools[0] || again == s {
			t.Error("what did not change is another pointer")
		}
	}
}

// TestPoolBeyondLimit: load-balancer-ranges limits pools.
func TestPoolBeyondLimit(t *testing.T) {
	config := cluster.DefaultConfig()
	config.LoadBalancerIPs = cluster.AllowedRanges{Set: true, Ranges: prefixes("192.0.2.0/24")}
	st := store.New(config)
	st.Set(pool("a", 1, "192.0.2.128/25", "192.0.2.255-192.0.3.0"))
	s := st.Snapshot()
	if got := fmt.Sprint(s.Pools[0].Ranges); got != "[192.0.2.128-192.0.2.255]" || len(s.Problems) != 1 {
		t.Errorf("%s: %v", got, s.Problems)
	}
}

// TestExternalIPsOfPools checks that spec.externalIPs cannot take an address of a pool.
func TestExternalIPsOfPools(t *testing.T) {
	web := service("web", "10.96.0.9",
		func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.1", "192.0.3.1"} })
	st := storeOf(append(protected(), web)...)
	owner := cluster.Owner{Kind: "Service", Namespace: "default", Name: "web"}
	count := func() (n int) {
		for _, f := range st.Snapshot().Frontends {
			if f.Owner == owner {
				n += len(f.ExternalIPs)
			}
		}
		return n
	}
	if count() != 2 {
		t.Fatal("without a pool, both are served")
	}
	st.Set(pool("a", 9, "192.0.2.0/24"))
	if count() != 1 {
		t.Error("it is served at an address of the pool")
	}
	if got := problemsOf(st.Snapshot(), owner); !slices.Equal(
		got, []string{"Service/default/web: spec.externalIPs: 192.0.2.1 is an address of LoadBalancerPool/a, which " +
			"its Services get only in their status: not served there"}) {
		t.Errorf("%q", got)
	}
	st.Delete(pool("a", 9))
	if count() != 2 {
		t.Error("the pool is gone, and it is not served there")
	}
}

// TestLoadBalancerServices: which Services get addresses of pools, and what they request.
func TestLoadBalancerServices(t *testing.T) {
	class := func(name string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.LoadBalancerClass = &name }
	}
	annotate := func(key, value string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Annotations = map[string]string{key: value} }
	}
	for _, c := range []struct {
		name     string
		byClass  bool // load-balancer-default is false
		service  *corev1.Service
		want     string
		problems int
	}{
		{"ours", true, service("web", "10.96.0.9", withBalancer(1, "192.0.2.1"), class("hairpin.dev/l2")),
			"[IPv4] [] [192.0.2.1] false", 0},
		{"another class", false, service("web", "10.96.0.9", withBalancer(1), class("example.com/other")), "", 0},
		{"no class", true, service("web", "10.96.0.9", withBalancer(1)), "", 0},
		{"no class, by default", false, service("web", "10.96.0.9", withBalancer(1)), "[IPv4] [] [] false", 0},
		{"no load balancer", false, service("web", "10.96.0.9"), "", 0},
		{"requested", false, service("web", "10.96.0.9", withBalancer(1),
			annotate(v1alpha1.AnnotationAddresses, "192.0.2.5, fd10::5, 192.0.2.6, 127.0.0.1")),
			"[IPv4] [192.0.2.5] [] false", 3},
		{"requested by field", false, service("web", "10.96.0.9", withBalancer(1),
			func(s *corev1.Service) { s.Spec.LoadBalancerIP = "192.0.2.5" }), "[IPv4] [192.0.2.5] [] false", 0},
		{"another program's status", false, service("web", "10.96.0.9", withBalancer(1), func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "lb.example.com"}}
		}), "[IPv4] [] [] true", 0},
	} {
		config := cluster.DefaultConfig()
		config.LoadBalancer.Default = !c.byClass
		st := store.New(config)
		st.Set(c.service)
		s, got := st.Snapshot(), ""
		for _, l := range s.LoadBalancers {
			got = fmt.Sprint(l.Families, l.Requested, l.Ingress, l.Foreign)
		}
		if got != c.want || len(s.Problems) != c.problems {
			t.Errorf("%s: %q, not %q; %v", c.name, got, c.want, s.Problems)
		}
		st.Delete(c.service)
		if s := st.Snapshot(); len(s.LoadBalancers) > 0 {
			t.Error("it is gone, and something is left")
		}
	}
}

// TestAnnounced: the addresses in the status of pools that a node must announce.
func TestAnnounced(t *testing.T) {
	local := func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }
	http := ports(port("http", corev1.ProtocolTCP, 80))
	served := service("web", "10.96.0.9", http, withBalancer(1, "192.0.2.1"))
	mine := func() *v1alpha1.LoadBalancerPool { return pool("a", 1, "192.0.2.0/24") }
	selecting := announcing(mine(), "192.0.2.1", "worker", "default/web")
	selecting.Spec.NodeSelector.MatchLabels = map[string]string{"edge": "yes"}
	moved := announcing(mine(), "192.0.2.1", "worker", "default/web")
	moved.Status.Addresses[0].Previous = []v1alpha1.PreviousNode{{Node: "second"}, {Node: "first"}}
	for _, c := range []struct {
		name string
		also []any
		want string
	}{
		{"announced", []any{served, announcing(mine(), "192.0.2.1", "worker", "default/web")},
			"Service/default/web [192.0.2.1] [{192.0.2.1 worker}] [] 0"},
		{"moved", []any{served, moved}, "Service/default/web [192.0.2.1] [{192.0.2.1 worker}] [] 0 " +
			"after [{192.0.2.1 first} {192.0.2.1 second}]"},
		{"no node yet", []any{served, announcing(mine(), "192.0.2.1", "", "default/web")},
			"Service/default/web [192.0.2.1] [] [] 0"},
		{"nodes of the pool", []any{served, selecting}, "Service/default/web [192.0.2.1] [{192.0.2.1 worker}] [] 1"},
		{"policy Local", []any{service("web", "10.96.0.9", http, withBalancer(1, "192.0.2.1"), local),
			announcing(mine(), "192.0.2.1", "worker", "default/web")},
			"Service/default/web [192.0.2.1] [{192.0.2.1 worker}] [worker] 0"},
		{"shared: the oldest stands for all", []any{served, service("mate", "10.96.0.8", withBalancer(2, "192.0.2.1")),
			announcing(mine(), "192.0.2.1", "worker", "default/web", "default/mate")},
			"Service/default/web [192.0.2.1] [{192.0.2.1 worker}] [] 0"},
		{"an EgressService has it", []any{served, egressService("web", onHost("worker")),
			announcing(mine(), "192.0.2.1", "worker", "default/web")}, ""},
		{"no such Service", []any{announcing(mine(), "192.0.2.1", "worker", "default/gone")}, ""},
		{"the Service does not have it", []any{served, announcing(mine(), "192.0.2.2", "worker", "default/web")}, ""},
		{"not of the pool", []any{served,
			announcing(pool("a", 1, "192.0.3.0/24"), "192.0.2.1", "worker", "default/web")},
			""},
		{"an address of an older EgressIP", []any{served, egressIP("e", "192.0.2.1"),
			announcing(mine(), "192.0.2.1", "worker", "default/web")}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := slice("web", "web", endpointPort("http", corev1.ProtocolTCP, 8080), "10.244.1.4", "10.244.1.3")
			for i := range x.Endpoints {
				x.Endpoints[i].NodeName = new("worker")
			}
			st := storeOf(append(append(protected(), x), c.also...)...)
			got := ""
			var announced *cluster.EgressIP
			for _, e := range st.Snapshot().EgressIPs {
				if e.OnlyAnnounced() {
					got += fmt.Sprint(e.Owner, " ", e.Addresses, e.Assigned, e.Service.OnlyOn, " ",
						len(e.Service.Nodes.Requirements))
					announced = e
					if e.Previous != nil {
						got += fmt.Sprint(" after ", e.Previous)
					}
				}
			}
			if got != c.want {
				t.Errorf("%q, not %q", got, c.want)
			}
			st.Set(pod("one", "worker", "10.244.1.9"))
			if again := st.Snapshot().EgressIPs; announced != nil && !slices.Contains(again, announced) {
				t.Error("what did not change is another pointer")
			}
		})
	}
}

// TestNodeAddressPools: which ports a pool of node addresses has, and why not.
func TestNodeAddressPools(t *testing.T) {
	p := pool("own", 1)
	p.Spec.NodeAddresses = &v1alpha1.NodeAddresses{Ports: []string{"80", "8000-8099", "0", "90-80", "x"}}
	s := storeOf(p).Snapshot()
	if got := fmt.Sprint(s.Pools[0].NodeAddresses, s.Pools[0].Ports); got != "true [80 8000-8099]" ||
		len(s.Problems) != 3 {
		t.Errorf("%s: %v", got, s.Problems)
	}
	p.Spec.NodeSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "edge", Operator: "Near"}}
	if s := storeOf(p).Snapshot(); len(s.Pools[0].Ports) > 0 || len(s.Problems) != 4 {
		t.Errorf("without a valid selector: %v, %v", s.Pools[0].Ports, s.Problems)
	}
}

// TestIngressPorts: a Service is served at a load balancer address at the ports that the status
// records there without an error, or at all if it records none.
func TestIngressPorts(t *testing.T) {
	web := service("web", "10.96.0.9", withBalancer(1), ports(port("http", corev1.ProtocolTCP, 80),
		port("dns", corev1.ProtocolUDP, 53), port("https", corev1.ProtocolTCP, 443)))
	web.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
		{IP: "192.0.2.1", Ports: []corev1.PortStatus{{Port: 80, Protocol: corev1.ProtocolTCP},
			{Port: 443, Protocol: corev1.ProtocolTCP, Error: new(cluster.ErrorPort)},
			{Port: 53, Protocol: corev1.ProtocolTCP}}},
		{IP: "192.0.2.2"},
	}
	got := ""
	for _, f := range storeOf(web).Snapshot().Frontends {
		got += fmt.Sprint(f.Protocol, f.Port, f.LoadBalancerIPs, " ")
	}
	if want := "tcp 80 [192.0.2.1 192.0.2.2] tcp 443 [192.0.2.2] udp 53 [192.0.2.2] "; got != want {
		t.Errorf("served: %q, not %q", got, want)
	}
}
