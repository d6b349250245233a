package nb_test

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/datapath/delta"
	"hairpin/datapath/nb"
	"hairpin/datapath/nb/nbtest"
)

func same(a, b nb.State) bool { return maps.EqualFunc(a, b, nb.Equal) }

func TestParseReadsWhatPrintWrote(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := nbtest.States(true).Draw(t, "state")
		text := nb.Print(s)
		got, err := nb.Parse(text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if !same(got, s) {
			t.Fatalf("differs: %v\n%s", nb.Diff(s, got), text)
		}
		if again := nb.Print(got); again != text {
			t.Fatalf("printed again:\n%s\nbefore:\n%s", again, text)
		}
	})
}

func TestDiffLeadsToWant(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gen := nbtest.States(false)
		want, have := gen.Draw(t, "want"), gen.Draw(t, "have")
		d := nb.Diff(want, have)
		if got := nb.State(d.ApplyTo(have)); !same(got, want) {
			t.Fatalf("%v is not %v", got, want)
		}
		if d.Empty() != (nb.Print(want) == nb.Print(have)) {
			t.Fatalf("Diff and Print do not agree: %v", d)
		}
	})
}

func TestEqualSeesEveryField(t *testing.T) {
	p, a := netip.MustParsePrefix, netip.MustParseAddr
	owner := cluster.Owner{Kind: "Node", Name: "x"}
	ap := netip.MustParseAddrPort
	for _, pair := range [][2]nb.Row{
		{&nb.Global{Name: "a"}, &nb.Global{Name: "b"}},
		{&nb.Global{Options: map[string]string{"name": "a"}}, &nb.Global{}},
		{&nb.Chassis{Name: "a", IP: a("10.0.0.1")}, &nb.Chassis{Name: "a", IP: a("10.0.0.2")}},
		{&nb.AddressSet{Addresses: []netip.Prefix{p("10.0.0.1/32")}}, &nb.AddressSet{}},
		{&nb.Group{Name: "a"}, &nb.Group{Name: "a", Owner: owner}},
		{&nb.Router{Groups: []string{"a"}}, &nb.Router{Groups: []string{"b"}}},
		{&nb.RouterPort{Networks: []netip.Prefix{p("10.0.0.1/24")}}, &nb.RouterPort{Networks: []netip.Prefix{p("10.0.0.1/16")}}},
		{&nb.RouterPort{Chassis: "a"}, &nb.RouterPort{}},
		{&nb.Switch{OtherConfig: map[string]string{"a": ""}}, &nb.Switch{}},
		{&nb.SwitchPort{Addresses: []string{"a"}}, &nb.SwitchPort{Addresses: []string{"b"}}},
		{&nb.MACBinding{MAC: cluster.MAC{1}}, &nb.MACBinding{}},
		{&nb.QoS{Mark: 1}, &nb.QoS{Mark: 2}},
		{&nb.Route{OutPort: "a"}, &nb.Route{}},
		{&nb.Policy{NextHops: []netip.Addr{a("10.0.0.1")}}, &nb.Policy{NextHops: []netip.Addr{a("10.0.0.2")}}},
		{&nb.Policy{Action: nb.Allow}, &nb.Policy{Action: nb.Drop}},
		{&nb.NAT{PortRange: "1-2"}, &nb.NAT{}},
		{&nb.LoadBalancer{VIPs: []nb.VIP{{Addr: ap("10.0.0.1:80")}}}, &nb.LoadBalancer{VIPs: []nb.VIP{{Addr: ap("10.0.0.1:80"), Backends: []netip.AddrPort{ap("10.0.0.2:80")}}}}},
		{&nb.LoadBalancer{Affinity: true}, &nb.LoadBalancer{}},
		{&nb.LoadBalancer{Groups: []string{"a"}}, &nb.LoadBalancer{}},
		{&nb.Router{Name: "a"}, &nb.Switch{Name: "a"}},
	} {
		if nb.Equal(pair[0], pair[1]) || nb.Equal(pair[1], pair[0]) {
			t.Errorf("%s and %s are equal", nb.Line(pair[0]), nb.Line(pair[1]))
		}
		if !nb.Equal(pair[0], pair[0]) {
			t.Errorf("%s is not equal to itself", nb.Line(pair[0]))
		}
	}
	x := &nb.RouterPort{Networks: []netip.Prefix{p("10.0.0.1/24"), p("fd00::1/64")}, Options: map[string]string{}}
	y := &nb.RouterPort{Networks: []netip.Prefix{p("fd00::1/64"), p("10.0.0.1/24")}}
	if !nb.Equal(x, y) {
		t.Error("sets in another order, and an empty map, make a difference")
	}
}

func TestTextIsOvnNbctl(t *testing.T) {
	for _, line := range []string{
		`set NB_Global . name=node-a options:name=node-a # Node/node-a`,
		`chassis-add node-b geneve 172.18.0.3 -- set Chassis node-b hostname=node-b other_config:is-remote=true # Node/node-b`,
		`create Address_Set name=nodes 'addresses=10.0.0.1,10.1.0.0/16,"fd00::1"'`,
		`create Load_Balancer_Group name=g`,
		`lr-add GR_node-a -- set Logical_Router GR_node-a options:chassis=node-a 'options:lb_force_snat_ip="10.0.0.1 fd00::1"' -- --id=@g0 get Load_Balancer_Group g -- add Logical_Router GR_node-a load_balancer_group @g0`,
		`lrp-add ovn_cluster_router rtos-node-a 0a:58:0a:f4:01:01 10.244.1.1/24 fd00:10:244:1::1/64 -- lrp-set-gateway-chassis rtos-node-a node-a 1 # Node/node-a`,
		`ls-add transit_switch -- set Logical_Switch transit_switch other_config:interconn-ts=transit_switch other_config:requested-tnl-key=16711683`,
		`lsp-add join jtor-GR_node-a -- lsp-set-type jtor-GR_node-a router -- lsp-set-addresses jtor-GR_node-a router -- lsp-set-options jtor-GR_node-a router-port=rtoj-GR_node-a`,
		`create Static_MAC_Binding logical_port=rtoe-GR_node-a ip=169.254.169.4 'mac="0a:58:a9:fe:a9:04"' override_dynamic_mac=true`,
		`lr-route-add GR_node-a 0.0.0.0/0 172.18.0.1 rtoe-GR_node-a`,
		`--policy=src-ip lr-route-add ovn_cluster_router 10.244.0.0/16 100.64.0.3`,
		`lr-policy-add ovn_cluster_router 1004 'inport == "rtos-node-a" && ip4.dst == 172.18.0.3' reroute 10.244.1.2`,
		`lr-policy-add ovn_cluster_router 102 'ip4.src == 10.244.0.0/16' allow pkt_mark=1008`,
		`--portrange lr-nat-add GR_node-a snat 172.18.0.3 10.244.1.0/24 61000-65535`,
		`'--match=outport == "rtoj-GR_node-a"' lr-nat-add GR_node-a snat 100.64.0.3 0.0.0.0/0`,
		`lb-add default/web:http/tcp/IPv4 10.96.0.10:80 10.244.1.3:8080,10.244.2.3:8080 tcp -- set Load_Balancer default/web:http/tcp/IPv4 options:reject=true selection_fields=ip_src -- --id=@lb get Load_Balancer default/web:http/tcp/IPv4 -- add Load_Balancer_Group g load_balancer @lb # Service/default/web`,
		`lb-add x 10.96.0.10:80 '' udp`,
		`qos-add node-a from-lport 100 'ct.rpl && ip4.src == $a' mark=42`,
		`--id=@q create QoS direction=from-lport priority=100 'match="inport == \"a\""' action:mark=0 -- add Logical_Switch join qos_rules @q # Node/node-a`,
		`create Load_Balancer name=x protocol=sctp`,
	} {
		r, err := nb.ParseLine(line)
		if err != nil {
			t.Errorf("%s\n  %v", line, err)
			continue
		}
		if got := nb.Line(r); got != line {
			t.Errorf("printed  %s\n  want %s", got, line)
		}
	}
}

func TestSecondRouteOfAPrefixIsECMP(t *testing.T) {
	text := "lr-route-add r 0.0.0.0/0 10.0.0.1\n--ecmp lr-route-add r 0.0.0.0/0 10.0.0.2\nlr-route-add r 10.0.0.0/8 10.0.0.2\n"
	s, err := nb.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if got := nb.Print(s); got != text {
		t.Fatalf("printed\n%s", got)
	}
}

func TestParseNamesWhatItDoesNotKnow(t *testing.T) {
	for line, names := range map[string]string{
		"lr-fly r":                                     "lr-fly",
		"lr-add r -- lr-fly r":                         "lr-fly",
		"lr-add r extra":                               "extra",
		"lr-add r -- set Logical_Router r foo=1":       "foo",
		"lr-add r -- set Logical_Router q options:a=1": "Logical_Router r",
		"create Meter name=x":                          "Meter",
		"create Address_Set name=x colour=red":         "colour",
		"create Address_Set name=x addresses=nothing":  "nothing",
		"--fast lr-add r":                              "--fast",
		"--ecmp lr-add r":                              "--ecmp",
		"lrp-add r p 0a:58 10.0.0.1/24":                "0a:58",
		"lr-policy-add r 1 m fly":                      "fly",
		"lr-policy-add r 99999 m drop":                 "99999",
		"lr-nat-add r dnat 1.2.3.4 10.0.0.0/8":         "dnat",
		"lb-add x 10.0.0.1 '' tcp":                     "10.0.0.1",
		"lb-add x 10.0.0.1:80 '' icmp":                 "icmp",
		"lr-add $(reboot)":                             "(",
		"lr-add 'open":                                 "not closed",
		"lr-add r -- ":                                 "missing",
		"chassis-add b vxlan 10.0.0.1":                 "vxlan",
		"lsp-add s p -- lsp-set-type q router":         `"q"`,
		"# comment\n\nlr-fly":                          "line 3",
	} {
		if _, err := nb.Parse(line); err == nil || !strings.Contains(err.Error(), names) {
			t.Errorf("%s: error is %v, want %q in it", line, err, names)
		}
	}
	if _, err := nb.Parse("lr-add r\nlr-add r"); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a row that is there twice: %v", err)
	}
}

func TestUnclaimedKeysAreRefused(t *testing.T) {
	if err := nb.CheckKeys(&nb.Router{Name: "r", Options: map[string]string{"chassis": "a"}}); err != nil {
		t.Error(err)
	}
	if err := nb.CheckKeys(&nb.Global{Options: map[string]string{"mac_prefix": "a"}}); err == nil || !strings.Contains(err.Error(), "mac_prefix") {
		t.Errorf("mac_prefix is ovn-northd's: %v", err)
	}
}

func TestKeysOrderRowsAfterWhatTheyName(t *testing.T) {
	s := nb.State{}
	s.Add(&nb.LoadBalancer{Name: "a", Groups: []string{"z"}}, &nb.Group{Name: "z"}, &nb.RouterPort{Name: "a", Router: "z"}, &nb.Router{Name: "z"},
		&nb.NAT{Router: "z"}, &nb.SwitchPort{Name: "a", Switch: "z"}, &nb.Switch{Name: "z"}, &nb.MACBinding{Port: "a"}, &nb.Global{})
	var tables []nb.Table
	for _, k := range delta.Sorted(s, nb.Key.Compare) {
		tables = append(tables, k.Table)
	}
	want := []nb.Table{nb.TableGlobal, nb.TableGroup, nb.TableRouter, nb.TableRouterPort, nb.TableSwitch, nb.TableSwitchPort, nb.TableMACBinding, nb.TableNAT, nb.TableLoadBalancer}
	if !slices.Equal(tables, want) {
		t.Fatalf("order is %v", tables)
	}
}

func FuzzParse(f *testing.F) {
	for i := range 20 {
		f.Add(nb.Print(nbtest.States(true).Example(i)))
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := nb.Parse(text)
		if err != nil {
			return
		}
		printed := nb.Print(s)
		again, err := nb.Parse(printed)
		if err != nil {
			t.Fatalf("%v\nparsed %q\nprinted %s", err, text, printed)
		}
		if !same(s, again) {
			t.Fatalf("%q\nprinted %s\nand read back differs: %+v", text, printed, nb.Diff(s, again))
		}
	})
}
