package nb_test

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

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

// Each field of each row is changed alone, whatever fields a row has.
func TestEqualSeesEveryField(t *testing.T) {
	for _, r := range nb.Rows() {
		typ := reflect.TypeOf(r).Elem()
		for i := range typ.NumField() {
			a, b := reflect.New(typ), reflect.New(typ)
			change(t, b.Elem().Field(i))
			x, y := a.Interface().(nb.Row), b.Interface().(nb.Row)
			if nb.Equal(x, y) || nb.Equal(y, x) {
				t.Errorf("%s: rows that differ in %s are equal", typ, typ.Field(i).Name)
			}
			if owner := typ.Field(i).Name == "Owner"; owner != nb.SameContent(x, y) {
				t.Errorf("%s: %s is content: %v", typ, typ.Field(i).Name, owner)
			}
			change(t, a.Elem().Field(i))
			if !nb.Equal(x, y) {
				t.Errorf("%s: rows with the same %s differ", typ, typ.Field(i).Name)
			}
		}
	}
	if nb.Equal(&nb.Router{Name: "a"}, &nb.Switch{Name: "a"}) {
		t.Error("a router is a switch")
	}
	p := netip.MustParsePrefix
	x := &nb.RouterPort{Networks: []netip.Prefix{p("10.0.0.1/24"), p("fd00::1/64")}, Options: map[string]string{}}
	y := &nb.RouterPort{Networks: []netip.Prefix{p("fd00::1/64"), p("10.0.0.1/24")}}
	if !nb.Equal(x, y) {
		t.Error("sets in another order, and an empty map, make a difference")
	}
}

// change gives a value that is not zero, the same each time.
func change(t *testing.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Int:
		v.SetInt(1)
	case reflect.Uint8, reflect.Uint32:
		v.SetUint(1)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Array:
		change(t, v.Index(0))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		change(t, v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("x"), reflect.ValueOf("y"))
	case reflect.Struct:
		switch x := v.Addr().Interface().(type) {
		case *netip.Addr:
			*x = netip.MustParseAddr("10.0.0.1")
		case *netip.Prefix:
			*x = netip.MustParsePrefix("10.0.0.0/8")
		case *netip.AddrPort:
			*x = netip.MustParseAddrPort("10.0.0.1:80")
		default:
			change(t, v.Field(0))
		}
	default:
		t.Fatalf("a field is a %s: say here what another value of it is", v.Type())
	}
}

func TestRowsAreInTheOrderOfTables(t *testing.T) {
	for i, r := range nb.Rows() {
		if k := reflect.New(reflect.TypeOf(r).Elem()).Interface().(nb.Row).Key(); int(k.Table) != i {
			t.Errorf("%T has place %d, its keys are of %s", r, i, k.Table)
		}
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
