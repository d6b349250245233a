package walk

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/walk/packet"
)

// TestNotDelivered checks where and why a packet is dropped, as real systems drop it.
func TestNotDelivered(t *testing.T) {
	for _, c := range []struct {
		name, to, want string
		from           Point
		change         func(t *testing.T, s datapath.State)
	}{
		{"unused cluster IP", "10.96.0.99:80", "no machine on the external network has 10.96.0.99", inHost(1), nil},
		{"unused pod address", "10.244.1.99:80", "no neighbour on ovn-k8s-mp0 has 10.244.1.99", inHost(1), nil},
		{"no dummy next hop", "10.96.0.11:80", "no neighbour on breth0 has 169.254.169.4", inHost(1),
			func(t *testing.T, s datapath.State) {
				delete(s.Host.Neighbors, host.NeighborKey{Link: "breth0", IP: addr("169.254.169.4")})
			}},
		{"no route at all", "9.9.9.9:80", "the host has no route to 9.9.9.9", inHost(1),
			func(t *testing.T, s datapath.State) {
				delete(s.Host.Routes, host.RouteKey{Table: 254, Prefix: prefix("0.0.0.0/0")})
			}},
		// Without table 4 the host would get a packet from itself: the reason for OVN's masquerade
		// address.
		{"no masquerade towards the host", "10.96.0.21:80", "its own address 172.18.0.3 as the source (martian source)",
			inHost(1), func(t *testing.T, s datapath.State) {
				changeFlow(t, s, "table=4,priority=32768,ip",
					func(f *flow.Flow) { f.Actions = []flow.Action{flow.Resubmit{Table: 3}} })
			}},
		{"MAC not rewritten", "10.96.0.21:80", "the frame is for 0a:58:a9:fe:a9:04, breth0 has 02:42:ac:12:00:03",
			inHost(1), func(t *testing.T, s datapath.State) {
				s.Host.Links["breth0"] = host.Link{Name: "breth0", MAC: mac("02:42:ac:12:00:03")}
				changeFlow(t, s, "table=3",
					func(f *flow.Flow) { f.Actions = []flow.Action{flow.Output{Port: flow.Local}} })
			}},
		// Without the masquerade in zone 64001 the gateway router gets a packet from its own
		// address.
		{"no masquerade towards OVN", "10.96.0.11:80", "GR_n1 lr_in_ip_input drops it: its source 172.18.0.3",
			inHost(1), func(t *testing.T, s datapath.State) {
				changeFlow(t, s, "table=0,priority=500,ip,in_port=LOCAL,nw_dst=10.96.0.0/16",
					func(f *flow.Flow) { f.Actions = []flow.Action{flow.Resubmit{Table: 2}} })
			}},
		// The gateway router must not have the node's own address as an endpoint
		// (docs/design/origins.md#load-balancers).
		{"own address as endpoint", "10.96.0.21:80",
			"GR_n1 lr_in_arp_resolve drops it: 172.18.0.3 is the router's own address", inHost(1),
			func(t *testing.T, s datapath.State) {
				row[*nb.LoadBalancer](t, s, nb.TableLoadBalancer,
					"host1-gateway-tcp").VIPs[0].Backends = []netip.AddrPort{ap("172.18.0.3:8081")}
			}},
		{"no dummy next hop in OVN", "10.96.0.21:80", "no neighbour of rtoe-GR_n1 has 169.254.169.4", inHost(1),
			func(t *testing.T, s datapath.State) {
				delete(s.NB, nb.Key{Table: nb.TableMACBinding, Name: "rtoe-GR_n1 169.254.169.4"})
			}},
		{"no route in OVN", "10.96.0.12:80", "ovn_cluster_router has no route to 10.244.2.3", inHost(1),
			func(t *testing.T, s datapath.State) {
				delete(s.NB, nb.Key{Table: nb.TableRoute, Name: "ovn_cluster_router dst-ip 10.244.0.0/16 100.88.0.1"})
			}},
		{"own router address", "10.244.1.1:80", "10.244.1.1 is the router's own address", inPod(1, "pod%d"), nil},
		{"no bridge mapping", "9.9.9.9:80", `no bridge is mapped to network "physnet"`, inPod(1, "pod%d"),
			func(t *testing.T, s datapath.State) {
				s.Bridge.Settings["ovn-bridge-mappings"] = "other:breth0"
			}},
		{"no flow to the node", "10.96.0.12:80", "br-tun drops it", inHost(1), func(t *testing.T, s datapath.State) {
			tunnelsTo(s, func(f *flow.Flow, _ *flow.Tunnel) { s.Bridge.Flows.Delete(f.ID()) })
		}},
		{"wrong tunnel end", "10.96.0.12:80", `no node has 172.18.0.9`, inHost(1),
			func(t *testing.T, s datapath.State) {
				tunnelsTo(s, func(_ *flow.Flow, to *flow.Tunnel) { to.Peer = addr("172.18.0.9") })
			}},
		{"wrong tunnel key", "10.96.0.12:80", "br-tun drops it", inHost(1), func(t *testing.T, s datapath.State) {
			tunnelsTo(s, func(_ *flow.Flow, to *flow.Tunnel) { to.Ports = 77 })
		}},
		{"another's tunnel", "10.96.0.12:80", "br-tun drops it", inHost(1), func(t *testing.T, s datapath.State) {
			p := s.Bridge.Ports["tunnels"]
			p.Local = addr("172.18.0.9")
			s.Bridge.Ports["tunnels"] = p
		}},
		{"a mark in a tunnel", "10.96.0.12:80", "has no route for a tunnel's packet with a mark: 42", inPod(1, "pod%d"),
			func(t *testing.T, s datapath.State) {
				s.NB.Add(&nb.Policy{Router: "ovn_cluster_router", Priority: 9, Match: "ip4.src == 10.244.1.3",
					Action: nb.Allow, Options: map[string]string{"pkt_mark": "42"}})
				for _, f := range s.Bridge.Flows.All() {
					f.Actions = slices.DeleteFunc(f.Actions,
						func(a flow.Action) bool { return f.Bridge == "br-tun" && a == flow.SetPktMark{} })
				}
			}},
		{"pod without a port", "10.96.0.11:80", "no neighbour of rtos-n1 has 10.244.1.3", inHost(1),
			func(t *testing.T, s datapath.State) {
				delete(s.NB, nb.Key{Table: nb.TableSwitchPort, Name: "default_pod1"})
			}},
		{"port without a pod", "10.244.1.7:80", "no interface is bound to port old", inHost(1),
			func(t *testing.T, s datapath.State) {
				s.NB.Add(&nb.SwitchPort{Name: "old", Switch: "n1", Addresses: []string{"0a:58:0a:f4:01:07 10.244.1.7"}})
			}},
		{"not the pod's address", "10.96.0.11:80",
			"port security of default_podb1 (n1 ls_in_apply_port_sec) drops it: 10.244.1.4 with 0a:58:0a:f4:01:04",
			inPod(1, "podb%d"), func(t *testing.T, s datapath.State) {
				row[*nb.SwitchPort](t, s, nb.TableSwitchPort,
					"default_podb1").PortSecurity = []string{"0a:58:0a:f4:01:04 10.244.1.9 fd00:10:244:1::4"}
			}},
		{"not the pod's MAC", "10.96.0.11:80", "port security of default_podb1 (n1 ls_in_apply_port_sec) drops it",
			inPod(1, "podb%d"), func(t *testing.T, s datapath.State) {
				row[*nb.SwitchPort](t, s, nb.TableSwitchPort,
					"default_podb1").PortSecurity = []string{"0a:58:0a:f4:01:09"}
			}},
		{"not for the pod", "10.96.0.11:80",
			"port security of default_pod1 (n1 ls_out_apply_port_sec) drops it: 10.244.1.3 with 0a:58:0a:f4:01:03",
			inHost(1), func(t *testing.T, s datapath.State) {
				row[*nb.SwitchPort](t, s, nb.TableSwitchPort,
					"default_pod1").PortSecurity = []string{"0a:58:0a:f4:01:03 fd00:10:244:1::3"}
			}},
		{"policy", "172.18.0.100:80", "a policy of ovn_cluster_router drops it", inPod(1, "pod%d"),
			func(t *testing.T, s datapath.State) {
				s.NB.Add(&nb.Policy{Router: "ovn_cluster_router", Priority: 9, Match: "ip4.dst == 172.18.0.0/16",
					Action: nb.Drop})
			}},
		{"nft", "10.96.0.11:80", "nft drops it on the way out of the host", inHost(1),
			func(t *testing.T, s datapath.State) {
				s.NFT[nft.Inet].Chains["x"] = &nft.Chain{Name: "x", Type: "filter", Hook: "postrouting",
					Rules: []nft.Rule{{Matches: []nft.Match{nft.OutInterface{Name: "breth0"}}, Do: nft.Drop{}}}}
			}},
		{"flow drops", "172.18.0.100:80", "breth0 drops it", inHost(1), func(t *testing.T, s datapath.State) {
			changeFlow(t, s, "table=0,priority=100,ip,in_port=LOCAL",
				func(f *flow.Flow) { f.Actions = []flow.Action{flow.Drop{}} })
		}},
		{"load balancer that only drops", "10.96.0.50:80", "dropped: nobody-both-tcp has no endpoint",
			inPod(1, "pod%d"), func(t *testing.T, s datapath.State) {
				row[*nb.LoadBalancer](t, s, nb.TableLoadBalancer, "nobody-both-tcp").Options["reject"] = "false"
			}},
		// Real OVN 25.03 does this, and OVN-Kubernetes says so. A choice by the client's
		// address alone drops nothing.
		{"affinity with a timeout", "10.96.0.12:80", "OVN drops the first packet of a client with affinity",
			inPod(1, "pod%d"), func(t *testing.T, s datapath.State) {
				row[*nb.LoadBalancer](t, s, nb.TableLoadBalancer, "pod2-both-tcp").Options["affinity_timeout"] = "10800"
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := byHand(2)
			if c.change != nil {
				c.change(t, w.States["n1"])
			}
			tr := walk(t, w, c.from, tcp(c.to))
			if tr.Verdict.Delivered || tr.Verdict.Answered || !strings.Contains(tr.Verdict.Reason, c.want) {
				t.Errorf("want %q\n%s", c.want, tr)
			}
		})
	}
}

// The matching row with the highest priority applies to packets from pods, after load balancing,
// except packets to themselves. Replies are exempt.
func TestACL(t *testing.T) {
	w := byHand(2)
	s := w.States["n1"].NB
	s.Add(&nb.ACL{Switch: "n1", Priority: 1001, Match: `udp.dst == 8080 && inport == "stor-n1"`, Action: nb.Allow},
		&nb.ACL{Switch: "n1", Priority: 1000, Match: "udp.dst == 8080", Action: nb.Drop})
	ask := func(from Point, to string, source uint16, p cluster.Protocol) Trace {
		q := tcp(to)
		q.Protocol, q.SrcPort = p, source
		return walk(t, w, from, q)
	}
	const drops = "an ACL of n1 ls_in_acl_after_lb_eval drops it: udp.dst == 8080"
	for _, c := range []struct {
		name string
		tr   Trace
		why  string // empty: delivered
	}{
		{"to the port", ask(inPod(1, "podb%d"), "10.244.1.3:8080", 40000, cluster.UDP), drops},
		{"by a Service", ask(inPod(1, "podb%d"), "10.96.0.11:80", 40000, cluster.UDP), drops},
		{"by a Service to itself", ask(inPod(1, "pod%d"), "10.96.0.11:80", 40000, cluster.UDP), ""},
		{"TCP", ask(inPod(1, "podb%d"), "10.244.1.3:8080", 40000, cluster.TCP), ""},
		{"another port", ask(inPod(1, "podb%d"), "10.244.1.3:8081", 40000, cluster.UDP), ""},
		{"a reply", ask(inPod(1, "podb%d"), "10.244.1.3:9090", 8080, cluster.UDP), ""},
		{"by the router", ask(inPod(2, "pod%d"), "10.244.1.3:8080", 40000, cluster.UDP), ""},
	} {
		if v := c.tr.Verdict; v.Delivered != (c.why == "") || v.Reason != c.why && c.why != "" || v.Delivered &&
			!v.Answered {
			t.Errorf("%s: want %q\n%s", c.name, c.why, c.tr)
		}
	}
	s.Add(&nb.ACL{Switch: "n1", Priority: 1002, Match: "ip4", Action: "allow-related"})
	q := tcp("10.244.1.3:80")
	if tr, err := Walk(w, inPod(1, "podb%d"), q); err == nil ||
		!strings.Contains(err.Error(), `action "allow-related" is not known`) {
		t.Errorf("%v\n%v", err, tr)
	}
}

// A packet may arrive although its reply does not.
func TestNotAnswered(t *testing.T) {
	w := byHand(1)
	s := w.States["n1"]
	delete(s.Host.Neighbors, host.NeighborKey{Link: "breth0", IP: addr("169.254.169.1")})
	tr := walk(t, w, inHost(1), tcp("10.96.0.21:80"))
	if v := tr.Verdict; !v.Delivered || v.Answered ||
		v.AnswerReason != "the reply does not arrive: no neighbour on breth0 has 169.254.169.1" {
		t.Errorf("%s", tr)
	}
	w = byHand(1)
	changeFlow(t, w.States["n1"], "table=5,priority=32768,ip",
		func(f *flow.Flow) { f.Actions = []flow.Action{flow.Resubmit{Table: 2}} })
	tr = walk(t, w, inHost(1), tcp("10.96.0.21:80"))
	if v := tr.Verdict; !v.Delivered || v.Answered {
		t.Errorf("the reply was not translated back, and yet answered\n%s", tr)
	}
	w = byHand(1)
	w.States["n1"].NB.Add(&nb.Policy{Router: "ovn_cluster_router", Priority: 2, Match: "ip4.dst == 10.244.1.3",
		Action: nb.Allow})
	delete(w.States["n1"].NB, nb.Key{Table: nb.TableNAT, Name: "GR_n1 snat 172.18.0.3 10.244.1.0/24 "})
	tr = walk(t, w, inPod(1, "pod%d"), tcp("172.18.0.100:80"))
	if v := tr.Verdict; !v.Delivered || v.Seen.Src != addr("10.244.1.3") ||
		v.AnswerReason != "the reply does not arrive: no machine on the external network has 10.244.1.3" {
		t.Errorf("a pod that leaves untranslated gets no answer\n%s", tr)
	}
}

// A Service without endpoints rejects packets. The rejection reaches a pod. On real OVN it does not
// reach the host: the gateway router translates it, and sends it to the source MAC of the packet,
// which is its own. skip_snat and another source MAC in table 2 correct both.
func TestRejected(t *testing.T) {
	w := byHand(2)
	for _, to := range []string{"10.96.0.50:80", "[fd00:10:96::50]:80"} {
		tr := walk(t, w, inPod(1, "pod%d"), tcp(to))
		if v := tr.Verdict; v.Delivered || !v.Rejected || !v.Answered {
			t.Errorf("pod\n%s", tr)
		}
	}
	tr := walk(t, w, inHost(1), tcp("10.96.0.50:80"))
	if v := tr.Verdict; !v.Rejected || v.Answered ||
		!strings.Contains(v.AnswerReason, "is behind port etor-GR_n1, where the packet comes from") {
		t.Errorf("host\n%s", tr)
	}
	s := w.States["n1"]
	row[*nb.LoadBalancer](t, s, nb.TableLoadBalancer, "nobody-both-tcp").Options["skip_snat"] = "true"
	changeFlow(t, s, "table=2", func(f *flow.Flow) {
		f.Actions = slices.Insert(slices.Clone(f.Actions), 0,
			flow.Action(flow.SetEthSrc{MAC: mac("0a:58:a9:fe:a9:04")}))
	})
	if tr = walk(t, w, inHost(1), tcp("10.96.0.50:80")); !tr.Verdict.Rejected || !tr.Verdict.Answered {
		t.Errorf("host, cured\n%s", tr)
	}
	udp := tcp("10.96.0.50:80")
	udp.Protocol = cluster.UDP
	if tr = walk(t, w, inPod(1, "pod%d"), udp); !tr.Verdict.Rejected || tr.Verdict.Answered ||
		tr.Verdict.AnswerReason != "the ICMP error is not followed" {
		t.Errorf("UDP\n%s", tr)
	}
}

// TestSourceNAT checks which source translation of a gateway router applies, as in real OVN: rows
// with a match, then skip_snat, then lb_force_snat_ip, then rows by prefix length. The row of a
// single IPv6 address comes before the load balancer's.
func TestSourceNAT(t *testing.T) {
	gr := func(w World) nb.State { return w.States["n1"].NB }
	without := func(s nb.State) { // the rows with a match
		for k, r := range s {
			if r, ok := r.(*nb.NAT); ok && r.Match != "" {
				delete(s, k)
			}
		}
	}
	skip := func(t *testing.T, w World) {
		row[*nb.LoadBalancer](t, w.States["n1"], nb.TableLoadBalancer, "pod1-both-tcp").Options["skip_snat"] = "true"
	}
	for _, c := range []struct {
		name, to, seen string
		port           uint16
		change         func(t *testing.T, w World)
	}{
		{"forced", "10.96.0.11:80", "100.64.0.3", 40000, func(t *testing.T, w World) { without(gr(w)) }},
		{"skipped", "10.96.0.11:80", "169.254.169.2", 40000,
			func(t *testing.T, w World) { without(gr(w)); skip(t, w) }},
		{"match before skipped", "10.96.0.11:80", "100.64.0.3", 40000, skip},
		{"forced before prefix", "10.96.0.11:80", "100.64.0.3", 40000, func(t *testing.T, w World) {
			without(gr(w))
			gr(w).Add(&nb.NAT{Router: "GR_n1", Type: nb.SNAT, External: addr("9.9.9.9"),
				Logical: prefix("169.254.169.2/32")})
		}},
		{"single IPv6 address before forced", "[fd00:10:96::11]:80", "fd09::9", 40000, func(t *testing.T, w World) {
			without(gr(w))
			gr(w).Add(&nb.NAT{Router: "GR_n1", Type: nb.SNAT, External: addr("fd09::9"),
				Logical: prefix("fd69::2/128")})
		}},
		{"port range", "10.96.0.11:80", "100.64.0.3", 61000, func(t *testing.T, w World) {
			row[*nb.NAT](t, w.States["n1"], nb.TableNAT,
				`GR_n1 snat 100.64.0.3 0.0.0.0/0 outport == "rtoj-GR_n1"`).PortRange = "61000-65535"
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := byHand(1)
			c.change(t, w)
			tr := walk(t, w, inHost(1), tcp(c.to))
			if v := tr.Verdict; !v.Delivered || v.Seen.Src != addr("%s", c.seen) || v.Seen.SrcPort != c.port {
				t.Errorf("want source %s:%d\n%s", c.seen, c.port, tr)
			}
		})
	}
}

// Affinity without a timeout chooses by the client's address.
func TestAffinity(t *testing.T) {
	w := byHand(2)
	row[*nb.LoadBalancer](t, w.States["n1"], nb.TableLoadBalancer, "all-both-tcp").Affinity = true
	tr := walk(t, w, inPod(1, "podb%d"), tcp("10.96.0.30:80"))
	if !tr.Verdict.Answered || !strings.Contains(tr.String(),
		"becomes 10.244.1.3:8080 (hash of the client's address)") ||
		!strings.Contains(tr.String(), "selection_fields=ip_src") {
		t.Errorf("%s", tr)
	}
}

// Egress through another node, as in docs/design/origins.md#egressip: a policy with two next hops
// marks or reroutes by address set.
func TestPolicies(t *testing.T) {
	w := byHand(3)
	s := w.States["n1"].NB
	set := func(name string, p ...netip.Prefix) { s.Add(&nb.AddressSet{Name: name, Addresses: p}) }
	set("pods", prefix("10.244.1.3/32"))
	set("nodes", prefix("172.18.0.3/32"), prefix("172.18.0.4/32"))
	s.Add(&nb.Policy{Router: "ovn_cluster_router", Priority: 102,
		Match: "(ip4.src == $pods || ip4.src == $nodes) && ip4.dst == $nodes", Action: nb.Allow,
		Options: map[string]string{"pkt_mark": "1008"}},
		&nb.Policy{Router: "ovn_cluster_router", Priority: 100, Match: "ip4.src == 10.244.1.3", Action: nb.Reroute,
			NextHops: []netip.Addr{addr("100.88.0.4"), addr("100.88.0.5")}})
	// The other nodes send it to their own gateway routers, with an address of the EgressIP.
	for i, ip := range []string{"172.18.0.33", "172.18.0.44"} {
		w.States[fmt.Sprintf("n%d", i+2)].NB.Add(&nb.NAT{Router: fmt.Sprintf("GR_n%d", i+2), Type: nb.SNAT,
			External: addr("%s", ip), Logical: prefix("10.244.1.3/32")})
	}
	row[*nb.SwitchPort](t, w.States["n1"], nb.TableSwitchPort,
		"others-n1").Addresses = []string{"0a:58:64:58:00:01 100.88.0.1", "0a:58:64:58:00:04 100.88.0.4",
		"0a:58:64:58:00:05 100.88.0.5"}
	p := tcp("172.18.0.100:80")
	tr := walk(t, w, inPod(1, "pod%d"), p)
	if v := tr.Verdict; !v.Delivered || v.Seen.Src != addr("172.18.0.33") || !v.Answered {
		t.Errorf("%s", tr)
	}
	if tr = walk(t, w, inPod(1, "pod%d"), p, ap("100.88.0.5:0")); tr.Verdict.Seen.Src != addr("172.18.0.44") ||
		!tr.Verdict.Answered {
		t.Errorf("%s", tr)
	}
	i := slices.IndexFunc(tr.Forward, func(s packet.Step) bool { return s.Stage == "ovn_cluster_router lr_in_policy" })
	if len(tr.Forward[i].Choices) != 2 || !strings.Contains(tr.String(), "one of 100.88.0.4, 100.88.0.5") {
		t.Errorf("%s", tr)
	}
	tr = walk(t, w, inPod(1, "pod%d"), tcp("172.18.0.4:8081"))
	if v := tr.Verdict; !v.Answered || v.Seen.Src != addr("172.18.0.3") || v.At != inHost(2) {
		t.Errorf("%s", tr)
	}
	if !slices.ContainsFunc(tr.Forward,
		func(s packet.Step) bool { return strings.Contains(s.Rule, "pkt_mark=0x3f0") && s.After.Mark == 0x3f0 }) {
		t.Errorf("no flow for the mark\n%s", tr)
	}
}

// Policy routing: a rule sends packets from a source to its own table, which uses a link other than
// the bridge.
func TestRules(t *testing.T) {
	w := byHand(1)
	s := w.States["n1"].Host
	s.Rules = map[host.Rule]cluster.Owner{{Family: cluster.IPv4, Priority: 6000, From: prefix("10.244.1.3/32"),
		Table: 1111}: {}}
	k := host.RouteKey{Table: 1111, Prefix: prefix("0.0.0.0/0")}
	s.Routes[k] = host.Route{RouteKey: k, Link: "eth1"}
	a := host.AddressKey{Link: "eth1", Prefix: prefix("10.10.10.1/24")}
	s.Addresses[a] = host.Address{AddressKey: a, Borrowed: true}
	state := w.States["n1"]
	state.Host = s
	state.NFT[nft.Inet].Chains["egress"] = &nft.Chain{Name: "egress", Type: "nat", Hook: "postrouting", Priority: 100,
		Rules: []nft.Rule{
			{Matches: []nft.Match{nft.OutInterface{Name: "eth1"}, nft.AddrIn{Prefix: prefix("10.244.1.3/32")},
				nft.L4Proto{Protocol: cluster.TCP}}, Do: nft.Masquerade{}}}}
	state.NB.Add(&nb.Policy{Router: "ovn_cluster_router", Priority: 100, Match: "ip4.src == 10.244.1.3",
		Action: nb.Reroute, NextHops: []netip.Addr{addr("10.244.1.2")}})
	w.States["n1"] = state
	tr := walk(t, w, inPod(1, "pod%d"), tcp("9.9.9.9:80"))
	if v := tr.Verdict; !v.Delivered || v.Seen.Src != addr("10.10.10.1") {
		t.Errorf("%s", tr)
	}
	if !strings.Contains(tr.String(), "(rule 6000, table 1111)") {
		t.Errorf("%s", tr)
	}
}

// tunnelsTo lets f change the flows that send to tunnels.
func tunnelsTo(s datapath.State, f func(*flow.Flow, *flow.Tunnel)) {
	for _, x := range s.Bridge.Flows.All() {
		for i, a := range x.Actions {
			if to, is := a.(flow.SetTunnel); is {
				f(x, &to.Tunnel)
				x.Actions[i] = to
			}
		}
	}
}
