package walk

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/datapath/ovs"
	"hairpin/delta"
	"hairpin/walk/packet"
)

// The fixture has the topology, flows, routes and load balancers of
// docs/design/origins.md#host-to-service, as tested by hand on real Open vSwitch and OVN: nodes n1,
// n2 … with a pod (pod1) and another one (podb1) each.

func addr(format string, args ...any) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf(format, args...))
}
func prefix(format string, args ...any) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf(format, args...))
}
func ap(format string, args ...any) netip.AddrPort {
	return netip.MustParseAddrPort(fmt.Sprintf(format, args...))
}
func mac(format string, args ...any) cluster.MAC {
	m, err := cluster.ParseMAC(fmt.Sprintf(format, args...))
	if err != nil {
		panic(err)
	}
	return m
}

func nodeOwner(i int) cluster.Owner { return cluster.Owner{Kind: "Node", Name: fmt.Sprintf("n%d", i)} }
func podOwner(name string) cluster.Owner {
	return cluster.Owner{Kind: "Pod", Namespace: "default", Name: name}
}

// byHand returns the World of n nodes.
func byHand(n int) World {
	w := World{Snapshot: &cluster.Snapshot{Config: cluster.DefaultConfig()}, States: map[string]datapath.State{}}
	for i := 1; i <= n; i++ {
		w.Snapshot.Nodes = append(w.Snapshot.Nodes, byHandNode(i))
		for k, name := range [...]string{"pod%d", "podb%d"} {
			name = fmt.Sprintf(name, i)
			w.Snapshot.Pods = append(w.Snapshot.Pods, &cluster.Pod{Owner: podOwner(name), Node: fmt.Sprintf("n%d", i),
				IPs: []netip.Addr{addr("10.244.%d.%d", i, k+3), addr("fd00:10:244:%d::%d", i, k+3)},
				MAC: mac("0a:58:0a:f4:%02x:%02x", i, k+3)})
		}
	}
	for i := 1; i <= n; i++ {
		s := datapath.State{NB: nb.State{}, Bridge: byHandBridge(i), NFT: byHandNFT(i), Host: byHandHost(i)}
		byHandTopology(s.NB, i)
		for j := 1; j <= n; j++ {
			if j != i {
				byHandPeer(&s.Bridge, i, j)
			}
		}
		byHandServices(s.NB, i, n)
		w.States[fmt.Sprintf("n%d", i)] = s
	}
	return w
}

func byHandNode(i int) *cluster.Node {
	addresses := []netip.Prefix{prefix("172.18.0.%d/16", i+2), prefix("fc00:f853:ccd::%d/64", i+2)}
	return &cluster.Node{Name: fmt.Sprintf("n%d", i), ID: i + 2,
		Addresses:     []netip.Addr{addresses[0].Addr(), addresses[1].Addr()},
		HostAddresses: append(addresses, prefix("172.20.0.%d/32", i), prefix("fd00:20::%d/128", i)),
		PodCIDRs:      []netip.Prefix{prefix("10.244.%d.0/24", i), prefix("fd00:10:244:%d::/64", i)},
		Gateway: cluster.Gateway{Mode: "shared", Bridge: "breth0", Uplink: "eth0", MAC: mac("02:42:ac:12:00:%02x", i+2),
			Addresses: addresses,
			NextHops:  []netip.Addr{addr("172.18.0.1"), addr("fc00:f853:ccd::1")}, Userspace: true},
	}
}

func byHandTopology(s nb.State, i int) {
	o := nodeOwner(i)
	n, gr := fmt.Sprintf("n%d", i), fmt.Sprintf("GR_n%d", i)
	chassis := "chassis-" + n
	join, ext := "rtoj-"+gr, "rtoe-"+gr
	port := func(sw, name, peer string, addresses ...string) {
		s.Add(&nb.SwitchPort{Name: name, Switch: sw, Type: "router", Addresses: addresses,
			Options: map[string]string{"router-port": peer}, Owner: o})
	}
	s.Add(
		&nb.Group{Name: "both", Owner: o}, &nb.Group{Name: "switch", Owner: o}, &nb.Group{Name: "gateway", Owner: o},
		&nb.Router{Name: "ovn_cluster_router", Owner: o},
		&nb.RouterPort{Name: "rtoj-ovn_cluster_router", Router: "ovn_cluster_router", MAC: mac("0a:58:64:40:00:01"),
			Networks: []netip.Prefix{prefix("100.64.0.1/16"), prefix("fd98::1/64")}, Owner: o},
		&nb.RouterPort{Name: "rtos-" + n, Router: "ovn_cluster_router", MAC: mac("0a:58:0a:f4:%02x:01", i),
			Networks: []netip.Prefix{prefix("10.244.%d.1/24", i), prefix("fd00:10:244:%d::1/64", i)}, Chassis: chassis,
			Owner: o},
		&nb.Switch{Name: "join", Owner: o},
		&nb.Switch{Name: n, OtherConfig: map[string]string{"subnet": fmt.Sprintf("10.244.%d.0/24", i)},
			Groups: []string{"both", "switch"}, Owner: o},
		&nb.Switch{Name: "ext_" + n, Owner: o},
		&nb.SwitchPort{Name: "k8s-" + n, Switch: n,
			Addresses: []string{fmt.Sprintf("0a:58:0a:f4:%02x:02 10.244.%d.2 fd00:10:244:%d::2", i, i, i)}, Owner: o},
		&nb.SwitchPort{Name: fmt.Sprintf("default_pod%d", i), Switch: n,
			Addresses: []string{fmt.Sprintf("0a:58:0a:f4:%02x:03 10.244.%d.3 fd00:10:244:%d::3", i, i, i)},
			Owner:     podOwner(fmt.Sprintf("pod%d", i))},
		&nb.SwitchPort{Name: fmt.Sprintf("default_podb%d", i), Switch: n,
			Addresses: []string{fmt.Sprintf("0a:58:0a:f4:%02x:04 10.244.%d.4 fd00:10:244:%d::4", i, i, i)},
			Owner:     podOwner(fmt.Sprintf("podb%d", i))},
		&nb.Router{Name: gr, Options: map[string]string{"chassis": chassis, "lb_force_snat_ip": "router_ip",
			"snat-ct-zone": "0", "dynamic_neigh_routers": "false"}, Groups: []string{"both", "gateway"}, Owner: o},
		&nb.RouterPort{Name: join, Router: gr, MAC: mac("0a:58:64:40:00:%02x", i+2),
			Networks: []netip.Prefix{prefix("100.64.0.%d/16", i+2), prefix("fd98::%d/64", i+2)}, Owner: o},
		&nb.RouterPort{Name: ext, Router: gr, MAC: mac("02:42:ac:12:00:%02x", i+2),
			Networks: []netip.Prefix{prefix("172.18.0.%d/16", i+2), prefix("fc00:f853:ccd::%d/64", i+2)}, Owner: o},
		&nb.SwitchPort{Name: "breth0_" + n, Switch: "ext_" + n, Type: "localnet", Addresses: []string{"unknown"},
			Options: map[string]string{"network_name": "physnet"}, Owner: o},
		&nb.MACBinding{Port: ext, IP: addr("169.254.169.4"), MAC: mac("0a:58:a9:fe:a9:04"), Owner: o},
		&nb.MACBinding{Port: ext, IP: addr("fd69::4"), MAC: mac("0a:58:a9:fe:a9:04"), Owner: o},
		&nb.SwitchPort{Name: "others-" + n, Switch: "transit_switch",
			Addresses: []string{"0a:58:64:58:00:01 100.88.0.1 fd97::1"}, Owner: o},
		&nb.Switch{Name: "transit_switch",
			OtherConfig: map[string]string{"interconn-ts": "transit_switch", "requested-tnl-key": "16711683"},
			Owner:       o},
		&nb.RouterPort{Name: "rtots-" + n, Router: "ovn_cluster_router", MAC: mac("0a:58:64:58:00:%02x", i+2),
			Networks: []netip.Prefix{prefix("100.88.0.%d/16", i+2), prefix("fd97::%d/64", i+2)}, Owner: o},
	)
	port("join", "jtor-ovn_cluster_router", "rtoj-ovn_cluster_router", "router")
	port("join", "jtor-"+gr, join, "router")
	port(n, "stor-"+n, "rtos-"+n, "router")
	port("ext_"+n, "etor-"+gr, ext, mac("02:42:ac:12:00:%02x", i+2).String())
	s.Add(&nb.SwitchPort{Name: "tstor-" + n, Switch: "transit_switch", Type: "router", Addresses: []string{"router"},
		Options: map[string]string{"router-port": "rtots-" + n, "requested-tnl-key": fmt.Sprint(i + 2)}, Owner: o})
	byHandRoutes(s, i)
}

func byHandRoutes(s nb.State, i int) {
	o := nodeOwner(i)
	n, gr := fmt.Sprintf("n%d", i), fmt.Sprintf("GR_n%d", i)
	route := func(router string, p netip.Prefix, hop netip.Addr, out string) {
		s.Add(&nb.Route{Router: router, Prefix: p, NextHop: hop, OutPort: out, Owner: o})
	}
	type family struct {
		pods, own, masquerade, all, join, joins                netip.Prefix
		router, dummy, gateway, joinIP, node, mp0, sec, others netip.Addr
		word                                                   string
	}
	for _, f := range []family{
		{prefix("10.244.0.0/16"), prefix("10.244.%d.0/24", i), prefix("169.254.169.0/29"), prefix("0.0.0.0/0"),
			prefix("100.64.0.%d/32", i+2), prefix("100.64.0.0/17"),
			addr("100.64.0.1"), addr("169.254.169.4"), addr("172.18.0.1"), addr("100.64.0.%d", i+2),
			addr("172.18.0.%d", i+2), addr("10.244.%d.2", i), addr("172.20.0.%d", i), addr("100.88.0.1"), "ip4"},
		{prefix("fd00:10:244::/48"), prefix("fd00:10:244:%d::/64", i), prefix("fd69::/125"), prefix("::/0"),
			prefix("fd98::%d/128", i+2), prefix("fd98::/112"),
			addr("fd98::1"), addr("fd69::4"), addr("fc00:f853:ccd::1"), addr("fd98::%d", i+2),
			addr("fc00:f853:ccd::%d", i+2), addr("fd00:10:244:%d::2", i), addr("fd00:20::%d", i), addr("fd97::1"),
			"ip6"},
	} {
		route(gr, f.pods, f.router, "")
		route(gr, f.masquerade, f.dummy, "rtoe-"+gr)
		route(gr, f.all, f.gateway, "rtoe-"+gr)
		route("ovn_cluster_router", f.join, f.joinIP, "")
		s.Add(&nb.Route{Router: "ovn_cluster_router", Prefix: f.pods, NextHop: f.joinIP, BySource: true, Owner: o})
		route("ovn_cluster_router", f.pods, f.others, "")
		route("ovn_cluster_router", f.joins, f.others, "")
		for _, a := range []netip.Addr{f.node, f.sec} {
			s.Add(&nb.Policy{Router: "ovn_cluster_router", Priority: 1004,
				Match:  fmt.Sprintf("inport == \"rtos-%s\" && %s.dst == %s /* %s */", n, f.word, a, n),
				Action: nb.Reroute, NextHops: []netip.Addr{f.mp0}, Owner: o})
		}
		host := f.masquerade.Addr().Next().Next()
		if f.word == "ip6" {
			host = addr("fd69::2")
		}
		s.Add(
			&nb.NAT{Router: gr, Type: nb.SNAT, External: f.node, Logical: f.own, Owner: o},
			&nb.NAT{Router: gr, Type: nb.SNAT, External: f.joinIP, Logical: f.all,
				Match: fmt.Sprintf("outport == %q", "rtoj-"+gr), Owner: o},
			&nb.NAT{Router: gr, Type: nb.SNAT, External: f.node, Logical: netip.PrefixFrom(host, host.BitLen()),
				Match: fmt.Sprintf("outport == %q", "rtoe-"+gr), Owner: o},
		)
	}
}

// byHandPeer adds node i's configuration for node j.
func byHandPeer(s *ovs.State, i, j int) {
	for line := range strings.Lines(strings.NewReplacer("OWN", fmt.Sprint(i+2), "PEER", fmt.Sprint(j+2), "MAC",
		fmt.Sprintf("0a:58:64:58:00:%02x", j+2),
		"IN", fmt.Sprintf("0x%x", (j+2)<<16|i+2), "TO",
		fmt.Sprintf("set_field:0->pkt_mark,set_field:0xff0003->tun_id,set_field:0x%x->tun_metadata0,set_field:172.18.0.%d->tun_dst,output:tunnels", (i+2)<<16|j+2, j+2),
		"N",
		fmt.Sprint(j)).Replace(`cookie=0xdeff105,priority=100,tun_id=0xff0003,tun_src=172.18.0.PEER,tun_metadata0=IN,in_port=tunnels actions=set_field:0a:58:64:58:00:01->eth_src,output:"tun-int"
cookie=0xdeff105,priority=110,in_port="tun-int",dl_dst=MAC actions=TO
cookie=0xdeff105,priority=100,ip,in_port="tun-int",nw_dst=10.244.N.0/24 actions=set_field:MAC->eth_dst,TO
cookie=0xdeff105,priority=100,ip,in_port="tun-int",nw_dst=100.64.0.PEER actions=set_field:MAC->eth_dst,TO
cookie=0xdeff105,priority=100,ipv6,in_port="tun-int",ipv6_dst=fd00:10:244:N::/64 actions=set_field:MAC->eth_dst,TO
cookie=0xdeff105,priority=100,ipv6,in_port="tun-int",ipv6_dst=fd98::PEER actions=set_field:MAC->eth_dst,TO
`)) {
		f, err := flow.ParseFlow(strings.TrimSpace(line))
		if err != nil {
			panic(err)
		}
		f.Bridge, f.Owner = "br-tun", nodeOwner(j)
		s.Flows.Put(f.ID(), f)
	}
}

// byHandServices adds the load balancers of lbs.sh: .1j pod of node j, .2j host of node j, .30 all
// pods, .40 this node's secondary address, .50 no endpoint; node port 30015 to all pods.
func byHandServices(s nb.State, i, n int) {
	add := func(name, group, vip4, vip6 string, backends ...string) {
		var to [2][]netip.AddrPort
		for _, b := range backends {
			a := netip.MustParseAddrPort(b)
			k := 0
			if a.Addr().Is6() {
				k = 1
			}
			to[k] = append(to[k], a)
		}
		for _, p := range []cluster.Protocol{cluster.TCP, cluster.UDP} {
			s.Add(&nb.LoadBalancer{Name: name + "-" + group + "-" + p.String(), Protocol: p, Groups: []string{group},
				VIPs: []nb.VIP{{Addr: netip.MustParseAddrPort(vip4), Backends: to[0]},
					{Addr: netip.MustParseAddrPort(vip6), Backends: to[1]}},
				Options: map[string]string{"reject": "true", "event": "false",
					"hairpin_snat_ip": "169.254.169.5 fd69::5", "skip_snat": "false"},
				Owner: cluster.Owner{Kind: "Service", Namespace: "default", Name: name}})
		}
	}
	var all []string
	for j := 1; j <= n; j++ {
		all = append(all, fmt.Sprintf("10.244.%d.3:8080", j), fmt.Sprintf("[fd00:10:244:%d::3]:8080", j))
	}
	for j := 1; j <= n; j++ {
		vip4, vip6 := fmt.Sprintf("10.96.0.%d:80", 10+j), fmt.Sprintf("[fd00:10:96::%d]:80", 10+j)
		add(fmt.Sprintf("pod%d", j), "both", vip4, vip6, all[2*j-2], all[2*j-1])
		vip4, vip6 = fmt.Sprintf("10.96.0.%d:80", 20+j), fmt.Sprintf("[fd00:10:96::%d]:80", 20+j)
		own4, own6 := fmt.Sprintf("172.18.0.%d:8081", j+2), fmt.Sprintf("[fc00:f853:ccd::%d]:8081", j+2)
		if j != i {
			add(fmt.Sprintf("host%d", j), "both", vip4, vip6, own4, own6)
			continue
		}
		add(fmt.Sprintf("host%d", j), "switch", vip4, vip6, own4, own6)
		add(fmt.Sprintf("host%d", j), "gateway", vip4, vip6, "169.254.169.2:8081", "[fd69::2]:8081")
	}
	add("all", "both", "10.96.0.30:80", "[fd00:10:96::30]:80", all...)
	add("nodeport", "both", fmt.Sprintf("172.18.0.%d:30015", i+2), fmt.Sprintf("[fc00:f853:ccd::%d]:30015", i+2),
		all...)
	add("secondary", "both", "10.96.0.40:80", "[fd00:10:96::40]:80", fmt.Sprintf("172.20.0.%d:8081", i),
		fmt.Sprintf("[fd00:20::%d]:8081", i))
	add("nobody", "both", "10.96.0.50:80", "[fd00:10:96::50]:80")
}

// byHandFlows are the flows of flows.sh: P patch port, E uplink, M MAC, I and J the node's
// addresses, S number.
const byHandFlows = `
table=0,priority=500,ip,in_port=P,nw_src=I,nw_dst=169.254.169.2,actions=ct(commit,table=4,zone=64001,nat(dst=I))
table=0,priority=500,ip,in_port=P,nw_src=I,nw_dst=172.20.0.S,actions=ct(commit,table=4,zone=64001)
table=0,priority=500,ip,in_port=LOCAL,nw_dst=169.254.169.1,actions=ct(table=5,zone=64002,nat)
table=0,priority=500,ip,in_port=LOCAL,nw_dst=10.96.0.0/16,actions=ct(commit,table=2,zone=64001,nat(src=169.254.169.2))
table=0,priority=500,ip,in_port=P,nw_src=10.96.0.0/16,nw_dst=169.254.169.2,actions=ct(table=3,zone=64001,nat)
table=0,priority=500,ipv6,in_port=P,ipv6_src=J,ipv6_dst=fd69::2,actions=ct(commit,table=4,zone=64001,nat(dst=J))
table=0,priority=500,ipv6,in_port=P,ipv6_src=J,ipv6_dst=fd00:20::S,actions=ct(commit,table=4,zone=64001)
table=0,priority=500,ipv6,in_port=LOCAL,ipv6_dst=fd69::1,actions=ct(table=5,zone=64002,nat)
table=0,priority=500,ipv6,in_port=LOCAL,ipv6_dst=fd00:10:96::/112,actions=ct(commit,table=2,zone=64001,nat(src=fd69::2))
table=0,priority=500,ipv6,in_port=P,ipv6_src=fd00:10:96::/112,ipv6_dst=fd69::2,actions=ct(table=3,zone=64001,nat)
table=2,priority=32768,actions=set_field:M->eth_dst,output:P
table=3,priority=32768,actions=move:NXM_OF_ETH_DST[]->NXM_OF_ETH_SRC[],set_field:M->eth_dst,LOCAL
table=4,priority=32768,ip,actions=ct(commit,table=3,zone=64002,nat(src=169.254.169.1))
table=4,priority=32768,ipv6,actions=ct(commit,table=3,zone=64002,nat(src=fd69::1))
table=5,priority=32768,ip,actions=ct(commit,table=2,zone=64001,nat)
table=5,priority=32768,ipv6,actions=ct(commit,table=2,zone=64001,nat)
table=0,priority=205,udp,in_port=E,dl_dst=M,tp_dst=6081,actions=LOCAL
table=0,priority=200,udp,in_port=E,tp_dst=6081,actions=NORMAL
table=0,priority=200,udp,in_port=LOCAL,tp_dst=6081,actions=output:E
table=0,priority=110,tcp,in_port=E,nw_dst=I,tp_dst=30015,actions=output:P
table=0,priority=110,tcp,in_port=P,nw_src=I,tp_src=30015,actions=output:E
table=0,priority=110,tcp6,in_port=E,ipv6_dst=J,tp_dst=30015,actions=output:P
table=0,priority=110,tcp6,in_port=P,ipv6_src=J,tp_src=30015,actions=output:E
table=0,priority=105,ip,in_port=P,pkt_mark=0x3f0,actions=ct(commit,zone=64000,nat(src=I),exec(set_field:0x1->ct_mark)),output:E
table=0,priority=105,ipv6,in_port=P,pkt_mark=0x3f0,actions=ct(commit,zone=64000,nat(src=J),exec(set_field:0x1->ct_mark)),output:E
table=0,priority=109,ip,in_port=P,nw_src=10.244.N.0/24,actions=ct(commit,zone=64000,exec(set_field:0x1->ct_mark)),output:E
table=0,priority=109,ipv6,in_port=P,ipv6_src=fd00:10:244:N::/64,actions=ct(commit,zone=64000,exec(set_field:0x1->ct_mark)),output:E
table=0,priority=104,ip,in_port=P,nw_src=10.244.0.0/16,actions=drop
table=0,priority=104,ipv6,in_port=P,ipv6_src=fd00:10:244::/48,actions=drop
table=0,priority=100,ip,in_port=P,actions=ct(commit,zone=64000,exec(set_field:0x1->ct_mark)),output:E
table=0,priority=100,ip,in_port=LOCAL,actions=ct(commit,zone=64000,exec(set_field:0x2->ct_mark)),output:E
table=0,priority=100,ipv6,in_port=P,actions=ct(commit,zone=64000,exec(set_field:0x1->ct_mark)),output:E
table=0,priority=100,ipv6,in_port=LOCAL,actions=ct(commit,zone=64000,exec(set_field:0x2->ct_mark)),output:E
table=0,priority=50,ip,in_port=E,actions=ct(table=1,zone=64000,nat)
table=0,priority=50,ipv6,in_port=E,actions=ct(table=1,zone=64000,nat)
table=0,priority=10,in_port=E,dl_dst=M,actions=output:P,LOCAL
table=0,priority=10,in_port=P,dl_src=M,actions=NORMAL
table=0,priority=9,in_port=P,actions=drop
table=0,priority=0,actions=NORMAL
table=1,priority=100,ct_state=+est+trk,ct_mark=0x1,ip,actions=output:P
table=1,priority=100,ct_state=+rel+trk,ct_mark=0x1,ip,actions=output:P
table=1,priority=100,ct_state=+est+trk,ct_mark=0x2,ip,actions=LOCAL
table=1,priority=100,ct_state=+rel+trk,ct_mark=0x2,ip,actions=LOCAL
table=1,priority=100,ct_state=+est+trk,ct_mark=0x1,ipv6,actions=output:P
table=1,priority=100,ct_state=+rel+trk,ct_mark=0x1,ipv6,actions=output:P
table=1,priority=100,ct_state=+est+trk,ct_mark=0x2,ipv6,actions=LOCAL
table=1,priority=100,ct_state=+rel+trk,ct_mark=0x2,ipv6,actions=LOCAL
table=1,priority=10,dl_dst=M,actions=LOCAL
table=1,priority=0,actions=NORMAL
`

func byHandBridge(i int) ovs.State {
	s := strings.NewReplacer("in_port=P", fmt.Sprintf(`in_port="patch-breth0_n%d-to-br-int"`, i), "output:P",
		fmt.Sprintf(`output:"patch-breth0_n%d-to-br-int"`, i),
		"in_port=E", "in_port=eth0", "output:E", "output:eth0", "=M", fmt.Sprintf("=02:42:ac:12:00:%02x", i+2), ":M",
		fmt.Sprintf(":02:42:ac:12:00:%02x", i+2),
		"=I", fmt.Sprintf("=172.18.0.%d", i+2), "=J", fmt.Sprintf("=fc00:f853:ccd::%d", i+2), "0.S",
		fmt.Sprintf("0.%d", i), "::S", fmt.Sprintf("::%d", i),
		"244.N", fmt.Sprintf("244.%d", i), "244:N", fmt.Sprintf("244:%d", i), "\ntable",
		"\ncookie=0xdeff105,table").Replace(byHandFlows)
	b := ovs.State{Bridge: "breth0"}
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		f, err := flow.ParseFlow(line)
		if err != nil {
			panic(err)
		}
		b.Flows.Put(f.ID(), f)
	}
	b.Settings = map[string]string{"system-id": fmt.Sprintf("chassis-n%d", i),
		"ovn-encap-ip": fmt.Sprintf("172.18.0.%d", i+2), "ovn-bridge-mappings": "physnet:breth0"}
	b.Ports = map[string]ovs.Port{"ovn-k8s-mp0": {Name: "ovn-k8s-mp0", Bridge: "br-int", Type: "internal",
		MAC:         mac("0a:58:0a:f4:%02x:02", i),
		ExternalIDs: map[string]string{"iface-id": fmt.Sprintf("k8s-n%d", i)}, Owner: nodeOwner(i)}}
	b.Bridges = map[string]ovs.Bridge{"br-tun": {Name: "br-tun", Userspace: true, Owner: nodeOwner(i)}}
	for _, p := range []ovs.Port{
		{Name: "tunnels", Bridge: "br-tun", Type: "geneve", Local: addr("172.18.0.%d", i+2)},
		{Name: "tun-int", Bridge: "br-tun", Type: "patch", Peer: "int-tun"},
		{Name: "int-tun", Bridge: "br-int", Type: "patch", Peer: "tun-int",
			ExternalIDs: map[string]string{"iface-id": fmt.Sprintf("others-n%d", i)}},
	} {
		p.Owner = nodeOwner(i)
		b.Ports[p.Name] = p
	}
	for _, f := range b.Flows.All() {
		f.Owner = nodeOwner(i)
	}
	return b
}

func byHandHost(i int) host.State {
	o := nodeOwner(i)
	s := host.State{Links: map[string]host.Link{}, Addresses: map[host.AddressKey]host.Address{},
		Routes:    map[host.RouteKey]host.Route{},
		Neighbors: map[host.NeighborKey]host.Neighbor{}, Sysctls: map[string]host.Sysctl{
			"net/ipv4/ip_forward":          {Path: "net/ipv4/ip_forward", Value: "1", Owner: o},
			"net/ipv6/conf/all/forwarding": {Path: "net/ipv6/conf/all/forwarding", Value: "1", Owner: o},
		}}
	address := func(link string, p netip.Prefix, borrowed, deprecated bool) {
		k := host.AddressKey{Link: link, Prefix: p}
		s.Addresses[k] = host.Address{AddressKey: k, Borrowed: borrowed, Deprecated: deprecated, Owner: o}
	}
	route := func(p netip.Prefix, link string, via, src netip.Addr, mtu int) {
		k := host.RouteKey{Table: 254, Prefix: p}
		s.Routes[k] = host.Route{RouteKey: k, Link: link, Via: via, Src: src, MTU: mtu, Owner: o}
	}
	neighbor := func(ip netip.Addr, m cluster.MAC) {
		k := host.NeighborKey{Link: "breth0", IP: ip}
		s.Neighbors[k] = host.Neighbor{NeighborKey: k, MAC: m, Owner: o}
	}
	none, own := netip.Addr{}, mac("02:42:ac:12:00:%02x", i+2)
	i4, i6 := addr("172.18.0.%d", i+2), addr("fc00:f853:ccd::%d", i+2)
	address("breth0", prefix("172.18.0.%d/16", i+2), true, false)
	address("breth0", prefix("fc00:f853:ccd::%d/64", i+2), true, false)
	address("breth0", prefix("169.254.169.2/29"), false, true)
	address("breth0", prefix("fd69::2/125"), false, true)
	address("ovn-k8s-mp0", prefix("10.244.%d.2/24", i), false, false)
	address("ovn-k8s-mp0", prefix("fd00:10:244:%d::2/64", i), false, false)
	route(prefix("0.0.0.0/0"), "breth0", addr("172.18.0.1"), none, 0)
	route(prefix("::/0"), "breth0", addr("fc00:f853:ccd::1"), none, 0)
	route(prefix("10.244.0.0/16"), "ovn-k8s-mp0", addr("10.244.%d.1", i), none, 0)
	route(prefix("fd00:10:244::/48"), "ovn-k8s-mp0", addr("fd00:10:244:%d::1", i), none, 0)
	route(prefix("10.96.0.0/16"), "breth0", addr("169.254.169.4"), i4, 1400)
	route(prefix("fd00:10:96::/112"), "breth0", addr("fd69::4"), i6, 1400)
	route(prefix("169.254.169.1/32"), "breth0", none, i4, 1400)
	route(prefix("fd69::1/128"), "breth0", none, i6, 1400)
	neighbor(addr("169.254.169.4"), mac("0a:58:a9:fe:a9:04"))
	neighbor(addr("fd69::4"), mac("0a:58:a9:fe:a9:04"))
	neighbor(addr("169.254.169.1"), own)
	neighbor(addr("fd69::1"), own)
	return s
}

// byHandNFT returns the host's rules for its own node port: "DNAT'ed in iptables to the cluster IP
// address".
func byHandNFT(i int) nft.State {
	o := nodeOwner(i)
	var elements delta.Map[nft.Element, nft.Target]
	svc := cluster.Owner{Kind: "Service", Namespace: "default", Name: "all"}
	elements.Put(nft.Element{Addr: addr("172.18.0.%d", i+2), Protocol: cluster.TCP, Port: 30015},
		nft.Target{Addr: ap("10.96.0.30:80"), Owner: svc})
	return nft.State{nft.Inet: &nft.Table{
		Maps: map[string]*nft.Map{"nodeport4": {Name: "nodeport4", Family: cluster.IPv4,
			Key: []nft.KeyField{nft.KeyIPDst, nft.KeyProto, nft.KeyPort}, Elements: elements}},
		Chains: map[string]*nft.Chain{"output": {Name: "output", Type: "nat", Hook: "output", Priority: -100, Owner: o,
			Rules: []nft.Rule{{Matches: []nft.Match{nft.DstIsLocal{}}, Do: nft.DNATMap{Map: "nodeport4"}, Owner: o}}}},
	}}
}

// walk is Walk, but fails the test on an error.
func walk(t *testing.T, w World, at Point, p packet.Packet, prefer ...netip.AddrPort) Trace {
	t.Helper()
	got, err := New(w).Walk(at, p, prefer...)
	if err != nil {
		t.Fatalf("%v\n%s", err, got)
	}
	return got
}

func tcp(to string) packet.Packet {
	a := netip.MustParseAddrPort(to)
	return packet.Packet{Protocol: cluster.TCP, Dst: a.Addr(), DstPort: a.Port(), SrcPort: 40000}
}

func inHost(i int) Point { return Point{Node: fmt.Sprintf("n%d", i)} }
func inPod(i int, name string) Point {
	return Point{Node: fmt.Sprintf("n%d", i), Pod: podOwner(fmt.Sprintf(name, i))}
}
