package assign_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/plan/assign"
)

// nodePool makes a pool of the addresses of all nodes.
func nodePool(name string, ports ...uint16) *cluster.Pool {
	p := pool(name)
	p.NodeAddresses = true
	for _, x := range ports {
		p.Ports = append(p.Ports, cluster.PortRange{First: x, Last: x})
	}
	return p
}

// on sets the ports of a Service.
func on(ports ...uint16) func(*cluster.LoadBalancer) {
	return func(l *cluster.LoadBalancer) {
		l.Ports = nil
		for _, x := range ports {
			l.Ports = append(l.Ports, cluster.LoadBalancerPort{Protocol: cluster.TCP, Port: x})
		}
	}
}

// recorded makes a Service that has ports at an address.
func recorded(address string, ports ...uint16) func(*cluster.LoadBalancer) {
	return func(l *cluster.LoadBalancer) {
		ingress(address)(l)
		for _, x := range ports {
			l.Recorded = append(l.Recorded, cluster.IngressPort{Address: addr(address),
				LoadBalancerPort: cluster.LoadBalancerPort{Protocol: cluster.TCP, Port: x}})
		}
	}
}

func hostPort(address string, port uint16) cluster.HostPort {
	return cluster.HostPort{Address: addr(address),
		LoadBalancerPort: cluster.LoadBalancerPort{Protocol: cluster.TCP, Port: port}}
}

// TestNodeAddresses: which Services get addresses of nodes, and which of their ports are served
// there.
func TestNodeAddresses(t *testing.T) {
	local := func(l *cluster.LoadBalancer) { l.Local = true }
	other := func(l *cluster.LoadBalancer) { l.Owner.Namespace = "other" }
	pools := []*cluster.Pool{nodePool("n", 22, 80, 443, 6443, 10250, 30080)}
	with := func(s *cluster.Snapshot, edit func(*cluster.Snapshot)) *cluster.Snapshot {
		edit(s)
		return s
	}
	frontend := func(name string, edit func(*cluster.Frontend)) *cluster.Frontend {
		f := &cluster.Frontend{Owner: cluster.Owner{Kind: "Service", Namespace: "default", Name: name}, UID: name,
			Created: time.Unix(1000, 0), Family: cluster.IPv4, Protocol: cluster.TCP, Port: 80,
			ClusterIP: addr("10.96.0.9")}
		edit(f)
		return f
	}
	endpoints := func(ready ...string) func(*cluster.Snapshot) {
		return func(s *cluster.Snapshot) {
			s.Frontends = append(s.Frontends, frontend("x", func(f *cluster.Frontend) {
				f.ExternalLocal = true
				for _, n := range ready {
					f.Backends = append(f.Backends, cluster.Backend{Node: n, Ready: true})
				}
			}))
		}
	}
	for _, c := range []struct {
		name string
		s    *cluster.Snapshot
		want string
	}{
		{"all nodes", pooled(pools, loadBalancer("x", 0)), "x: 172.18.0.2 tcp/80; 172.18.0.3 tcp/80"},
		{"both families", pooled(pools, loadBalancer("x", 0, dual)),
			"x: fc00:f853:ccd::2 tcp/80; fc00:f853:ccd::3 tcp/80; 172.18.0.2 tcp/80; 172.18.0.3 tcp/80"},
		{"ports of several Services", pooled(pools, loadBalancer("x", 0), loadBalancer("y", 1, other, on(443))),
			"x: 172.18.0.2 tcp/80; 172.18.0.3 tcp/80\ny: 172.18.0.2 tcp/443; 172.18.0.3 tcp/443"},
		{"the oldest has a port", pooled(pools, loadBalancer("x", 1), loadBalancer("y", 0)),
			"x: PortNotAvailable: tcp port 80 of 172.18.0.2 is one of Service/default/y; PortNotAvailable: tcp port 80 of " +
				"172.18.0.3 is one of Service/default/y\ny: 172.18.0.2 tcp/80; 172.18.0.3 tcp/80"},
		{"an older Service asks for a port of another", pooled(pools, loadBalancer("thief", 0, on(80, 443)),
			loadBalancer("x", 5, recorded("172.18.0.2", 80), recorded("172.18.0.3", 80))),
			"thief: 172.18.0.2 tcp/80 PortNotAvailable tcp/443; 172.18.0.3 tcp/80 PortNotAvailable tcp/443; " +
				"PortNotAvailable: tcp port 80 of 172.18.0.2 is one of Service/default/x; PortNotAvailable: tcp port 80 of " +
				"172.18.0.3 is one of Service/default/x\nx: 172.18.0.2 tcp/80; 172.18.0.3 tcp/80"},
		{"a port that is not listed", pooled(pools, loadBalancer("x", 0, on(80, 5432)), loadBalancer("y", 0, on(25))),
			"x: 172.18.0.2 tcp/80 tcp/5432 PortNotAvailable; 172.18.0.3 tcp/80 tcp/5432 PortNotAvailable; " +
				"PortNotAvailable: tcp port 5432 is not in spec.nodeAddresses.ports of LoadBalancerPool/n\n" +
				"y: PortNotAvailable: tcp port 25 is not in spec.nodeAddresses.ports of LoadBalancerPool/n"},
		{"ports of the nodes, though listed", pooled(pools, loadBalancer("x", 0, on(22)), loadBalancer("y", 0, on(10250))),
			"x: PortNotAvailable: 172.18.0.2 is an address of node node-a, where port 22 is reserved for the node ([default] " +
				"reserved-node-ports); PortNotAvailable: 172.18.0.3 is an address of node node-b, where port 22 is reserved " +
				"for the node ([default] reserved-node-ports)\n" +
				"y: PortNotAvailable: 172.18.0.2 is an address of node node-a, where port 10250 is reserved for the node " +
				"([default] reserved-node-ports); PortNotAvailable: 172.18.0.3 is an address of node node-b, where port " +
				"10250 is reserved for the node ([default] reserved-node-ports)"},
		{"another's NodePort and health check port", with(pooled(pools, loadBalancer("x", 0, on(443, 30080))),
			func(s *cluster.Snapshot) {
				s.Frontends = append(s.Frontends, frontend("f", func(f *cluster.Frontend) {
					f.NodePort, f.HealthCheckNodePort = 30080, 443
				}))
			}), "x: PortNotAvailable: port 443 is the health check port of Service/default/f; " +
			"PortNotAvailable: tcp port 30080 is the NodePort of Service/default/f"},
		{"a program of the host and a hostPort win, though the Service has the ports", with(pooled(pools,
			loadBalancer("x", 0, on(80, 443), recorded("172.18.0.2", 80, 443), recorded("172.18.0.3", 80, 443))),
			func(s *cluster.Snapshot) {
				s.Nodes[0].HostPorts.Used = []cluster.HostPort{hostPort("172.18.0.2", 80), hostPort("172.18.0.3", 80)}
				s.Nodes[1].HostPorts.Used = []cluster.HostPort{hostPort("172.18.0.3", 443)}
				s.Nodes[1].HostPorts.Used[0].Pod = cluster.Owner{Kind: "Pod", Namespace: "shop", Name: "proxy"}
			}), "x: 172.18.0.2 tcp/80 PortNotAvailable tcp/443; 172.18.0.3 tcp/80 tcp/443 PortNotAvailable; " +
			"PortNotAvailable: tcp port 80 of 172.18.0.2 is used by a program of node node-a; " +
			"PortNotAvailable: tcp port 443 of 172.18.0.3 is a hostPort of Pod/shop/proxy"},
		{"a port in use of another protocol", with(pooled(pools, loadBalancer("x", 0)), func(s *cluster.Snapshot) {
			used := hostPort("172.18.0.2", 80)
			used.Protocol = cluster.UDP
			s.Nodes[0].HostPorts.Used = []cluster.HostPort{used}
		}), "x: 172.18.0.2 tcp/80; 172.18.0.3 tcp/80"},
		{"no node has reported its ports, and there is another pool", with(pooled(append(slices.Clone(pools),
			pool("z", "172.18.0.50-172.18.0.51")), loadBalancer("x", 0)), func(s *cluster.Snapshot) {
			s.Nodes = s.Nodes[:1]
			s.Nodes[0].HostPorts.Checked = nil
		}), "x: PortNotReported: node node-a has not reported whether its host uses tcp port 80 of 172.18.0.2"},
		{"no node has reported a port that no Service can have", with(pooled(append(slices.Clone(pools),
			pool("z", "172.18.0.50-172.18.0.51")), loadBalancer("x", 0, on(22))), func(s *cluster.Snapshot) {
			s.Nodes[0].HostPorts.Checked, s.Nodes[1].HostPorts.Checked = nil, nil
		}), "x: 172.18.0.50"},
		{"a node that has not reported its ports", with(pooled(pools, loadBalancer("x", 0),
			loadBalancer("y", 1, on(443), recorded("172.18.0.2", 443))), func(s *cluster.Snapshot) {
			s.Nodes[0].HostPorts.Checked = nil
		}), "x: 172.18.0.3 tcp/80; " +
			"PortNotReported: node node-a has not reported whether its host uses tcp port 80 of 172.18.0.2\n" +
			"y: 172.18.0.2 tcp/443; 172.18.0.3 tcp/443"},
		{"a range of another pool has a node's address", pooled(append([]*cluster.Pool{pool("a", "172.18.0.2-172.18.0.9")},
			pools...), loadBalancer("x", 0, recorded("172.18.0.2", 80))), "x: 172.18.0.2 tcp/80; 172.18.0.3 tcp/80"},
		{"a program of the host that is its own endpoint", with(pooled(pools, loadBalancer("x", 0)),
			func(s *cluster.Snapshot) {
				s.Nodes[0].HostPorts.Used = []cluster.HostPort{hostPort("172.18.0.2", 80)}
				s.Frontends = append(s.Frontends, frontend("x", func(f *cluster.Frontend) {
					f.Backends = []cluster.Backend{{Addr: addr("172.18.0.2"), Port: 80}, {Addr: addr("10.244.1.9")}}
				}))
			}), "x: 172.18.0.3 tcp/80; PortNotAvailable: tcp port 80 of 172.18.0.2 is used by a program of node node-a"},
		{"a younger Service's NodePort takes none", with(pooled(pools, loadBalancer("x", 0, on(30080),
			recorded("172.18.0.2", 30080))), func(s *cluster.Snapshot) {
			s.Nodes = s.Nodes[:1]
			s.Frontends = append(s.Frontends, frontend("f", func(f *cluster.Frontend) {
				f.Created, f.NodePort = time.Unix(2000, 0), 30080
			}))
		}), "x: 172.18.0.2 tcp/30080"},
		{"a port of another class's Service", with(pooled(pools, loadBalancer("x", 0, on(80, 443))),
			func(s *cluster.Snapshot) {
				s.Frontends = append(s.Frontends, frontend("f", func(f *cluster.Frontend) {
					f.LoadBalancerIPs = []netip.Addr{addr("172.18.0.2")}
				}))
			}), "x: 172.18.0.2 tcp/80 PortNotAvailable tcp/443; 172.18.0.3 tcp/80 tcp/443; " +
			"PortNotAvailable: tcp port 80 of 172.18.0.2 is one of Service/default/f"},
		{"policy Local", with(pooled(pools, loadBalancer("x", 0, local)), endpoints("node-b")),
			"x: 172.18.0.3 tcp/80"},
		{"policy Local without endpoints", with(pooled(pools, loadBalancer("x", 0, local)), endpoints()),
			"x: NoMatchingNodeFound: LoadBalancerPool/n selects no node with an IPv4 address and a ready endpoint " +
				"(externalTrafficPolicy: Local)"},
		{"a node that is not ready", with(pooled(pools, loadBalancer("x", 0)), func(s *cluster.Snapshot) {
			s.Nodes[0].Egress.Ready = false
		}), "x: 172.18.0.3 tcp/80"},
		{"no node is ready", with(pooled(pools, loadBalancer("x", 0)), func(s *cluster.Snapshot) {
			s.Nodes[0].Egress.Ready, s.Nodes[1].Egress.Leaving = false, true
		}), "x: 172.18.0.2 tcp/80; 172.18.0.3 tcp/80"},
		{"a node that claims another's address", with(pooled(pools, loadBalancer("x", 0)), func(s *cluster.Snapshot) {
			s.Nodes[1].Created = time.Unix(5000, 0)
			s.Nodes[1].Addresses = slices.Clone(s.Nodes[0].Addresses)
		}), "x: 172.18.0.2 tcp/80"},
		{"a requested address", pooled(pools, loadBalancer("x", 0, wants("172.18.0.2"))),
			"x: AddressNotAvailable: 172.18.0.2 is in no LoadBalancerPool"},
		{"an EgressIP", pooled(pools, loadBalancer("e", 1, egress("n"))),
			"e: NoLoadBalancerPool: LoadBalancerPool/n has addresses of nodes, with which no pods leave"},
		{"an address of a range stays", pooled([]*cluster.Pool{nodePool("a", 80), pool("b", "172.18.0.50-172.18.0.51")},
			loadBalancer("x", 0, ingress("172.18.0.50")), loadBalancer("y", 1, on(5432))),
			"x: 172.18.0.50\ny: 172.18.0.51"},
		{"addresses of nodes stay", pooled([]*cluster.Pool{pool("a", "172.18.0.50-172.18.0.51"), nodePool("b", 80)},
			loadBalancer("x", 0, recorded("172.18.0.2", 80))), "x: 172.18.0.2 tcp/80; 172.18.0.3 tcp/80"},
		{"without the pool", pooled(nil, loadBalancer("x", 0, recorded("172.18.0.2", 80))),
			"x: NoLoadBalancerPool: no LoadBalancerPool with IPv4 addresses selects the Service"},
	} {
		if got := tellAllocated(c.s); got != c.want {
			t.Errorf("%s: allocated\n%s\nnot\n%s", c.name, got, c.want)
		}
	}
}

// TestNodeAddressesProperties: over random changes, no two Services have a port at an address, none
// has a port that is not listed, reserved or used by the host, a Service loses no port to another,
// and a new leader changes nothing.
func TestNodeAddressesProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list []*cluster.LoadBalancer
		a, b := nodePool("a", 22, 80, 81), nodePool("b", 81, 82, 10250)
		a.Nodes.Requirements = []cluster.Requirement{{Key: "edge", Operator: "Exists"}}
		pools := []*cluster.Pool{a, b, pool("c", "172.18.0.20-172.18.0.22")}
		held := map[cluster.IngressPort]cluster.Owner{}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			name := rapid.StringMatching("[a-f]").Draw(t, "name")
			i := slices.IndexFunc(list, func(l *cluster.LoadBalancer) bool { return l.Owner.Name == name })
			l := loadBalancer(name, rapid.IntRange(0, 2).Draw(t, "age"))
			if i >= 0 { // a Service's age does not change
				l = new(*list[i])
				list = slices.Delete(list, i, i+1)
			}
			on(rapid.SliceOfNDistinct(rapid.SampledFrom([]uint16{22, 80, 81, 82, 83, 10250}), 1, 3,
				rapid.ID).Draw(t, "ports")...)(l)
			if rapid.Bool().Draw(t, "dual") {
				dual(l)
			}
			if rapid.IntRange(0, 3).Draw(t, "present") > 0 {
				list = append(list, l)
			}
			s := pooled(pools, slices.Clone(list)...)
			s.Nodes[0].Egress.Labels = map[string]string{"edge": ""}
			s.Nodes[1].Egress.Ready = rapid.Bool().Draw(t, "ready")
			for _, n := range s.Nodes {
				for _, a := range n.Addresses {
					if rapid.IntRange(0, 3).Draw(t, "used") == 0 {
						n.HostPorts.Used = append(n.HostPorts.Used,
							hostPort(a.String(), rapid.SampledFrom([]uint16{80, 81, 82}).Draw(t, "used port")))
					}
				}
			}
			given, _ := assign.LoadBalancers(s)
			now := soundPorts(t, s, given)
			for r, owner := range held {
				wants := func(l *cluster.LoadBalancer) bool {
					return l.Owner == owner && slices.Contains(l.Ports, r.LoadBalancerPort)
				}
				if by, taken := now[r]; taken && by != owner && slices.ContainsFunc(list, wants) {
					t.Fatalf("%s has lost %v to %s", owner, r, by)
				}
			}
			held, list = now, nil
			for _, x := range given {
				had := new(*x.Service)
				had.Ingress, had.Recorded = x.Addresses, x.Recorded
				list = append(list, had)
			}
			again := *s
			again.LoadBalancers = list
			next, _ := assign.LoadBalancers(&again)
			for i, x := range next {
				if !slices.Equal(x.Addresses, given[i].Addresses) || !slices.Equal(x.Recorded, given[i].Recorded) {
					t.Fatalf("%s had %v and has %v", x.Service.Owner, given[i], x)
				}
			}
		}
	})
}

// soundPorts returns which Service has which port, and checks the records.
func soundPorts(t *rapid.T, s *cluster.Snapshot, given []assign.Allocation) map[cluster.IngressPort]cluster.Owner {
	by := map[cluster.IngressPort]cluster.Owner{}
	for _, x := range given {
		l, onNodes := x.Service, map[netip.Addr]bool{}
		for _, r := range x.Recorded {
			if onNodes[r.Address] = true; r.Error != "" && r.Error != cluster.ErrorPort {
				t.Fatalf("%s: error %s", l.Owner, r.Error)
			}
			if r.Error != "" {
				continue
			}
			if other, taken := by[r]; taken {
				t.Fatalf("%s and %s have %v", other, l.Owner, r)
			}
			lists := func(p *cluster.Pool) bool { return p.NodeAddresses && p.Ports.Has(r.Port) }
			used := cluster.HostPort{Address: r.Address, LoadBalancerPort: r.LoadBalancerPort}
			uses := func(n *cluster.Node) bool { return slices.Contains(n.HostPorts.Used, used) }
			if slices.ContainsFunc(s.Nodes, uses) {
				t.Fatalf("%s has %v, which the host uses", l.Owner, r)
			}
			if by[r] = l.Owner; !slices.Contains(l.Ports, r.LoadBalancerPort) ||
				s.Config.ReservedNodePorts.Has(r.Port) || !slices.ContainsFunc(s.Pools, lists) {
				t.Fatalf("%s has %v", l.Owner, r)
			}
		}
		for a := range maps.Keys(onNodes) {
			if n := slices.IndexFunc(x.Addresses, func(b netip.Addr) bool { return a == b }); n < 0 ||
				!slices.ContainsFunc(s.Nodes, func(n *cluster.Node) bool { return slices.Contains(n.Addresses, a) }) {
				t.Fatalf("%s has %s, not of a node", l.Owner, a)
			}
		}
		if len(x.Addresses)+len(x.Refused) == 0 {
			t.Fatal(fmt.Sprint(l.Owner, " has no address, and no reason"))
		}
	}
	return by
}
