package plan_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/cluster/clustertest"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/pipeline"
	"hairpin/plan"
	"hairpin/walk"
	"hairpin/walk/packet"
)

// withNodes plans the demo's cluster in a gateway mode, after edit has changed each node, with
// added among its Services.
func withNodes(t *testing.T, mode string, flows bool, edit func(*cluster.Node), added ...*cluster.Frontend) *story {
	t.Helper()
	w := demoIn(t, mode, flows)
	s := *w.Snapshot
	s.Nodes = nil
	for _, n := range w.Snapshot.Nodes {
		changed := *n
		if edit != nil {
			edit(&changed)
		}
		s.Nodes = append(s.Nodes, &changed)
	}
	s.Frontends = append(append([]*cluster.Frontend{}, w.Snapshot.Frontends...), added...)
	w = walk.World{Snapshot: &s, States: map[string]datapath.State{}}
	for _, n := range s.Nodes {
		state, problems := plan.Node(&s, n.Name)
		if state.NB == nil {
			t.Fatal(problems)
		}
		check(t, state)
		w.States[n.Name] = state
	}
	return &story{world: w, walker: walk.New(w)}
}

// at adds addresses to a Frontend.
func at(f *cluster.Frontend, external ...string) *cluster.Frontend {
	for _, a := range external {
		f.ExternalIPs = append(f.ExternalIPs, addr(a))
	}
	return f
}

// answered walks a connection whose sender must get a reply.
func (s *story) answered(t *testing.T, words string) walk.Trace {
	t.Helper()
	trace, err := s.trace(strings.Fields(words))
	if err != nil {
		t.Errorf("%s: %v", words, err)
	} else if !trace.Verdict.Answered {
		t.Errorf("%s: no reply:\n%s", words, trace)
	}
	return trace
}

// TestClientIsServiceAddress: a client gets replies even if its own address is one of a Service, at
// another port or without endpoints, under policy Local and Cluster.
func TestClientIsServiceAddress(t *testing.T) {
	for mode, flows := range everyEngine {
		t.Run(mode+map[bool]string{true: " openflow", false: " ovn"}[flows], func(t *testing.T) {
			front := at(frontend("front", "10.96.66.1:8443", 0, "10.244.1.3:8080"), "172.18.0.3", "192.0.2.1")
			nobody := at(frontend("nobody", "10.96.66.9:9999", 0), "172.18.0.100", "172.18.0.4")
			s := withNodes(t, mode, flows, nil, front, nobody)
			for _, from := range []string{"host/node-a", "host/node-b", "pod/default/pod-a1", "pod/default/pod-b1",
				"outside/192.0.2.1@node-a", "outside/172.18.0.100"} {
				for _, nodePort := range []string{"172.18.0.3:30020", "172.18.0.3:30001"} {
					s.answered(t, from+" tcp "+nodePort)
				}
			}
		})
	}
}

// TestSourcePortOfService: the node's own connections, those of its pods included, get their
// replies, although their source port is a port of a Service at the node's address. A client of the
// Service is served as before.
func TestSourcePortOfService(t *testing.T) {
	const explained = 32768 // the source port of walks
	np := frontend("np", "10.96.70.1:80", explained, "10.244.3.3:8080")
	np6 := frontend("np", "[fd00:10:96::7001]:80", explained, "[fd00:10:244:3::3]:8080")
	grpc := at(frontend("grpc", "10.96.70.2:32768", 0, "10.244.2.3:8080"), "172.18.0.3")
	grpc.Protocol = cluster.UDP
	for mode, flows := range everyEngine {
		for variant, edit := range map[string]func(*cluster.Node){
			"": nil, " userspace": func(n *cluster.Node) { n.Gateway.Userspace = true }, " redirect": redirects,
		} {
			t.Run(mode+map[bool]string{true: " openflow", false: " ovn"}[flows]+variant, func(t *testing.T) {
				s := withNodes(t, mode, flows, edit, np, np6, grpc)
				from := []string{
					"pod/default/pod-a1 tcp 1.1.1.1:80", "pod/default/pod-b1 tcp [2001:db8::1]:443",
					"host/node-a tcp 172.18.0.5:6443",
					"host/node-a udp 1.1.1.1:53", "host/node-a tcp 1.1.1.1:80",
				}
				if variant == " redirect" {
					from = append(from, "host/node-a tcp 10.10.10.100:80", "host/node-a tcp [fd10::64]:80",
						"pod/default/pod-a1 tcp 10.10.10.100:80")
					if len(s.world.States["node-a"].Redirect.Programs) < 2 {
						t.Error("there are no programs")
					}
				}
				for _, words := range from {
					s.answered(t, words)
				}
				trace := s.answered(t, "outside/172.18.0.100 tcp 172.18.0.3:32768")
				if got := trace.Verdict.Seen.DstPort; got != 8080 {
					t.Errorf("a client of the NodePort reaches port %d:\n%s", got, trace)
				}
			})
		}
	}
}

// redirects adds eBPF programs to a node's links: eth0 in mode detached, and eth1.
func redirects(n *cluster.Node) {
	n.Gateway.Redirect = true
	last := n.ID + 2
	n.Links = []cluster.HostLink{{
		Name: "eth1", Index: 3, MAC: cluster.MAC{2, 0x42, 10, 10, 10, byte(last)}, MTU: 1500,
		Addresses: []netip.Prefix{prefix(fmt.Sprintf("10.10.10.%d/24", last)),
			prefix(fmt.Sprintf("fd10::%x/64", last))},
	}}
	n.HostAddresses = slices.Concat(n.HostAddresses, n.Links[0].Addresses)
	if n.Gateway.Mode == cluster.ModeDetached {
		n.Links = append(n.Links, cluster.HostLink{
			Name: "eth0", Index: 2, MAC: cluster.MAC{2, 0x42, 0xac, 18, 0, byte(last)}, MTU: 1500,
			Addresses: []netip.Prefix{prefix(fmt.Sprintf("172.18.0.%d/16", last)),
				prefix(fmt.Sprintf("fc00:f853:ccd::%x/64", last))},
			Routes: []cluster.HostRoute{{Prefix: prefix("0.0.0.0/0"), Via: addr("172.18.0.1")},
				{Prefix: prefix("::/0"), Via: addr("fc00:f853:ccd::1")}},
		})
	}
}

// TestSourcePortOfPodWithEgressIP: the same for a pod with an egress address, if its connection to
// another node's host leaves with the node's address.
func TestSourcePortOfPodWithEgressIP(t *testing.T) {
	const explained = 32768 // the source port of walks
	np := frontend("np", "10.96.70.1:80", explained, "10.244.3.3:8080")
	np6 := frontend("np", "[fd00:10:96::7001]:80", explained, "[fd00:10:244:3::3]:8080")
	for mode, flows := range everyEngine {
		t.Run(mode+map[bool]string{true: " openflow", false: " ovn"}[flows], func(t *testing.T) {
			s := *withNodes(t, mode, flows, redirects, np, np6).world.Snapshot
			s.Namespaces = []*cluster.Namespace{{Name: "default"}}
			e := clustertest.EgressIP("e", 0, "172.18.0.33", "fc00:f853:ccd::33")
			for _, a := range e.Addresses {
				e.Assigned = append(e.Assigned, cluster.Assignment{Address: a, Node: "node-a"})
			}
			s.EgressIPs = []*cluster.EgressIP{e}
			w := worldOf(t, &s)
			x := &story{world: w, walker: walk.New(w)}
			for _, words := range []string{
				"pod/default/pod-a1 tcp 172.18.0.5:6443", "pod/default/pod-a1 tcp [fc00:f853:ccd::5]:6443",
				"pod/default/pod-b1 tcp 172.18.0.5:6443",
				"pod/default/pod-a1 tcp 1.1.1.1:80", "pod/default/pod-b1 tcp [2001:db8::1]:443",
			} {
				x.answered(t, words)
			}
		})
	}
}

// TestRepliesToClientMAC: in mode shared, a reply goes to the MAC at which the host would send it:
// the client's on a network of the node, else the router's, whichever machine sent the packet.
// Packets from addresses that no external client can have are not served, nor are clients behind a
// router that does not answer.
func TestRepliesToClientMAC(t *testing.T) {
	router := cluster.MAC{0x02, 0, 0, 0, 0, 1}
	second, attacker := cluster.MAC{0x02, 0, 0, 0, 0, 2}, cluster.MAC{0x02, 0, 0, 0, 0, 0x66}
	hops := map[netip.Addr]cluster.MAC{addr("172.18.0.1"): router, addr("172.18.0.254"): second,
		addr("fc00:f853:ccd::1"): router}
	known := withNodes(t, cluster.ModeShared, true, func(n *cluster.Node) { n.Gateway.NextHopMACs = hops })
	dead := withNodes(t, cluster.ModeShared, true,
		func(n *cluster.Node) { n.Gateway.NextHopMACs = map[netip.Addr]cluster.MAC{} })
	for _, x := range []struct {
		name, from string
		mac        cluster.MAC
		routers    *story
		to         cluster.MAC // of the reply; zero if there is none
	}{
		{"a client of the node's network", "172.18.0.100", attacker, known, attacker},
		{"a client behind the default gateway", "192.0.2.1", router, known, router},
		{"a client behind another router of the host's", "192.0.2.1", second, known, second},
		{"a spoofed address", "192.0.2.1", attacker, known, router},
		{"a client of the node's network, gateway dead", "172.18.0.100", attacker, dead, attacker},
		{"a spoofed address, gateway dead", "192.0.2.1", attacker, dead, cluster.MAC{}},
		{"a pod", "10.244.2.3", router, known, cluster.MAC{}},
		{"a cluster IP", "10.96.0.1", router, known, cluster.MAC{}},
		{"a join address", "100.64.0.3", router, known, cluster.MAC{}},
		{"the node itself", "172.18.0.3", router, known, cluster.MAC{}},
		{"another address of the node", "172.20.0.1", router, known, cluster.MAC{}},
		{"loopback", "127.0.0.1", router, known, cluster.MAC{}},
		{"a masquerade address", "169.254.169.2", router, known, cluster.MAC{}},
		{"unspecified", "0.0.0.0", router, known, cluster.MAC{}},
		{"IPv6: a client of the node's network", "fc00:f853:ccd::64", attacker, known, attacker},
		{"IPv6: a link-local address", "fe80::64", attacker, known, attacker},
		{"IPv6: a spoofed address", "2001:db8::1", attacker, known, router},
		{"IPv6: a pod", "fd00:10:244:2::3", router, known, cluster.MAC{}},
	} {
		for _, port := range []uint16{30001, 30020, 30003} { // policy Cluster; Local; Cluster, on the host
			to := addr("172.18.0.3")
			if addr(x.from).Is6() {
				to = addr("fc00:f853:ccd::3")
			}
			trace, err := x.routers.walker.Walk(walk.Point{}, packet.Packet{
				Src: addr(x.from), Dst: to, DstPort: port, Protocol: cluster.TCP, EthSrc: x.mac,
				EthDst: cluster.MAC{0x02, 0x42, 0xac, 0x12, 0, 3},
			})
			if err != nil {
				t.Errorf("%s: %v\n%s", x.name, err, trace)
				continue
			}
			served := x.to != cluster.MAC{}
			if trace.Verdict.Delivered != served || served &&
				!strings.Contains(trace.String(), "to MAC "+x.to.String()) {
				t.Errorf("%s, port %d: served %v, want the reply to %s:\n%s", x.name, port, trace.Verdict.Delivered,
					x.to, trace)
			}
		}
	}
}

// TestRepliesAreOfTheReplyDirection: a packet of the original direction is not taken for a reply if
// the kernel translated its source port as well (+snat), to keep two connections apart.
func TestRepliesAreOfTheReplyDirection(t *testing.T) {
	state := withNodes(t, "shared", true, nil).world.States["node-a"]
	found := 0
	for _, f := range state.Bridge.Flows.All() {
		if f.Bridge != claims.ServiceBridge || f.Table != pipeline.SvcServiceConntrack ||
			f.Match.CTMark != claims.CTMarkOutside {
			continue
		}
		found++
		bits := f.Match.CTState
		if bits.Set&flow.CTRpl == 0 && (bits.Set&flow.CTInv == 0 || bits.Clear&flow.CTDnat == 0) {
			t.Errorf("%s matches requests", f)
		}
	}
	if found == 0 {
		t.Fatal("no flow handles replies")
	}
}
