package walk

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/datapath/ovs"
	"hairpin/walk/packet"
)

// row returns the fixture's row with a name, to be changed.
func row[R nb.Row](t *testing.T, s datapath.State, table nb.Table, name string) R {
	t.Helper()
	r, ok := s.NB[nb.Key{Table: table, Name: name}].(R)
	if !ok {
		t.Fatalf("no row %s %s", table, name)
	}
	return r
}

// changeFlow rewrites the flow whose text begins with begins.
func changeFlow(t *testing.T, s datapath.State, begins string, change func(*flow.Flow)) {
	t.Helper()
	for id, f := range s.Bridge.Flows.All() {
		if strings.HasPrefix(f.Key.String()+",", begins+",") {
			g := *f
			change(&g)
			s.Bridge.Flows.Delete(id)
			s.Bridge.Flows.Put(g.ID(), &g)
			return
		}
	}
	t.Fatalf("no flow begins with %s", begins)
}

// What walk does not know is an error that names it. Each case changes node n1, from whose host the
// packet starts.
func TestUnknown(t *testing.T) {
	for _, c := range []struct {
		name, to, want string
		change         func(t *testing.T, s datapath.State)
	}{
		{"switch port type", "10.96.0.11:80", `type "vtep" is not known`, func(t *testing.T, s datapath.State) {
			row[*nb.SwitchPort](t, s, nb.TableSwitchPort, "default_pod1").Type = "vtep"
		}},
		{"switch option", "10.96.0.11:80", `option "vlan-passthru" is not known`, func(t *testing.T, s datapath.State) {
			row[*nb.Switch](t, s, nb.TableSwitch, "join").OtherConfig = map[string]string{"vlan-passthru": "true"}
		}},
		{"router option", "10.96.0.11:80", `option "dnat_force_snat_ip" is not known`,
			func(t *testing.T, s datapath.State) {
				row[*nb.Router](t, s, nb.TableRouter, "GR_n1").Options["dnat_force_snat_ip"] = "router_ip"
			}},
		{"forced source", "10.96.0.11:80", "lb_force_snat_ip=1.2.3.4 is not known",
			func(t *testing.T, s datapath.State) {
				row[*nb.Router](t, s, nb.TableRouter, "GR_n1").Options["lb_force_snat_ip"] = "1.2.3.4"
			}},
		{"gateway elsewhere", "10.96.0.11:80", `is on chassis "chassis-n2"`, func(t *testing.T, s datapath.State) {
			row[*nb.Router](t, s, nb.TableRouter, "GR_n1").Options["chassis"] = "chassis-n2"
		}},
		{"distributed NAT", "10.96.0.11:80", "router without a chassis", func(t *testing.T, s datapath.State) {
			s.NB.Add(&nb.NAT{Router: "ovn_cluster_router", Type: nb.SNAT, External: addr("1.2.3.4"),
				Logical: prefix("0.0.0.0/0")})
		}},
		{"NAT type", "10.96.0.11:80", `type "dnat_and_snat" is not known`, func(t *testing.T, s datapath.State) {
			s.NB.Add(&nb.NAT{Router: "GR_n1", Type: nb.DNATAndSNAT, External: addr("1.2.3.4"),
				Logical: prefix("169.254.169.2/32"), Match: "ip4"})
		}},
		{"NAT of a gateway port", "10.96.0.11:80", "distributed gateway port on a router with a chassis",
			func(t *testing.T, s datapath.State) {
				s.NB.Add(&nb.NAT{Router: "GR_n1", Type: nb.SNAT, External: addr("1.2.3.4"),
					Logical: prefix("169.254.169.2/32"), Match: "ip4", GatewayPort: "rtoe-GR_n1"})
			}},
		{"NAT rivals", "10.96.0.11:80", "OVN may take either", func(t *testing.T, s datapath.State) {
			s.NB.Add(&nb.NAT{Router: "GR_n1", Type: nb.SNAT, External: addr("1.2.3.4"),
				Logical: prefix("169.254.169.2/32"), Match: "ip4"})
		}},
		{"policy match", "10.96.0.11:80", "ip.ttl == 80 is not known", func(t *testing.T, s datapath.State) {
			s.NB.Add(&nb.Policy{Router: "ovn_cluster_router", Priority: 2000, Match: "ip.ttl == 80", Action: nb.Drop})
		}},
		{"policy action", "10.96.0.11:80", `action "jump" is not known`, func(t *testing.T, s datapath.State) {
			s.NB.Add(&nb.Policy{Router: "ovn_cluster_router", Priority: 2000, Match: "ip4", Action: "jump"})
		}},
		{"policy rivals", "10.96.0.11:80", "OVN may take either", func(t *testing.T, s datapath.State) {
			s.NB.Add(&nb.Policy{Router: "ovn_cluster_router", Priority: 2000, Match: "ip4", Action: nb.Drop},
				&nb.Policy{Router: "ovn_cluster_router", Priority: 2000, Match: "1", Action: nb.Allow})
		}},
		{"route without a way", "10.96.0.11:80", "no port leads to its next hop", func(t *testing.T, s datapath.State) {
			s.NB.Add(&nb.Route{Router: "GR_n1", Prefix: prefix("10.244.1.0/24"), NextHop: addr("9.9.9.9")})
		}},
		{"load balancer option", "10.96.0.11:80", `option "use_stateless_nat" is not known`,
			func(t *testing.T, s datapath.State) {
				row[*nb.LoadBalancer](t, s, nb.TableLoadBalancer, "pod1-both-tcp").Options["use_stateless_nat"] = "true"
			}},
		{"one VIP twice", "10.96.0.11:80", "both have 10.96.0.11:80/tcp", func(t *testing.T, s datapath.State) {
			s.NB.Add(&nb.LoadBalancer{Name: "another", Protocol: cluster.TCP,
				VIPs: []nb.VIP{{Addr: ap("10.96.0.11:80")}}, Groups: []string{"gateway"}})
		}},
		{"dangling row", "10.96.0.11:80", `references Logical_Switch "nowhere", which does not exist`,
			func(t *testing.T, s datapath.State) {
				s.NB.Add(&nb.SwitchPort{Name: "x", Switch: "nowhere"})
			}},
		{"flow rivals", "10.96.0.11:80", "two flows of one priority match", func(t *testing.T, s datapath.State) {
			k := flow.Key{Priority: 500, Match: flow.Match{Protocol: flow.TCP, InPort: flow.Local}}
			s.Bridge.Flows.Put(k.ID(), &flow.Flow{Key: k, Actions: []flow.Action{flow.Drop{}}})
		}},
		{"two outputs", "10.96.0.11:80", "multiple outputs are not modelled", func(t *testing.T, s datapath.State) {
			changeFlow(t, s, "table=2",
				func(f *flow.Flow) { f.Actions = append(slices.Clone(f.Actions), flow.Output{Port: "eth0"}) })
		}},
		{"port to nowhere", "10.96.0.11:80", "not known where port veth7 leads", func(t *testing.T, s datapath.State) {
			changeFlow(t, s, "table=2", func(f *flow.Flow) { f.Actions = []flow.Action{flow.Output{Port: "veth7"}} })
		}},
		{"actions after ct", "10.96.0.11:80", "actions after a ct", func(t *testing.T, s datapath.State) {
			changeFlow(t, s, "table=0,priority=500,ip,in_port=LOCAL,nw_dst=10.96.0.0/16", func(f *flow.Flow) {
				f.Actions = append(slices.Clone(f.Actions), flow.Normal{})
			})
		}},
		{"unknown actions", "10.96.0.11:80", "the actions are not known: enqueue:1:2",
			func(t *testing.T, s datapath.State) {
				changeFlow(t, s, "table=2",
					func(f *flow.Flow) { f.Actions = []flow.Action{flow.UnknownActions{Text: "enqueue:1:2"}} })
			}},
		{"no actions", "10.96.0.11:80", "the actions are not known", func(t *testing.T, s datapath.State) {
			changeFlow(t, s, "table=2", func(f *flow.Flow) { f.Actions = nil })
		}},
		{"empty address", "10.96.0.11:80", `address " " is empty`, func(t *testing.T, s datapath.State) {
			row[*nb.SwitchPort](t, s, nb.TableSwitchPort, "default_pod1").Addresses = []string{" "}
		}},
		{"nft hook", "10.96.0.11:80", `hook "egress" is not known`, func(t *testing.T, s datapath.State) {
			s.NFT[nft.Inet].Chains["x"] = &nft.Chain{Name: "x", Type: "filter", Hook: "egress"}
		}},
		{"nft set", "10.96.0.11:80", "there is no set gone", func(t *testing.T, s datapath.State) {
			s.NFT[nft.Inet].Chains["output"].Rules = []nft.Rule{{Matches: []nft.Match{nft.InSet{Set: "gone"}},
				Do: nft.Drop{}}}
		}},
		{"nft map", "10.96.0.11:80", "there is no map gone", func(t *testing.T, s datapath.State) {
			s.NFT[nft.Inet].Chains["output"].Rules = []nft.Rule{{Do: nft.DNATMap{Map: "gone"}}}
		}},
		{"nft nat in a filter", "10.96.0.11:80", "in a chain of type filter", func(t *testing.T, s datapath.State) {
			s.NFT[nft.Inet].Chains["x"] = &nft.Chain{Name: "x", Type: "filter", Hook: "postrouting",
				Rules: []nft.Rule{{Do: nft.SNAT{Addr: addr("1.2.3.4")}}}}
		}},
		{"nft unreadable", "10.96.0.11:80", "a rule that cannot be parsed: goto", func(t *testing.T, s datapath.State) {
			s.NFT[nft.Inet].Unknown = []string{"goto elsewhere"}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := byHand(2)
			c.change(t, w.States["n1"])
			tr, err := Walk(w, inHost(1), tcp(c.to))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v does not say %q\n%s", err, c.want, tr)
			}
		})
	}
}

func TestUnknownState(t *testing.T) {
	w := byHand(2)
	delete(w.States, "n2")
	tr, err := Walk(w, inHost(1), tcp("10.96.0.12:80"))
	if err == nil || !strings.Contains(err.Error(), "the State of node n2 is not known") || len(tr.Forward) < 8 {
		t.Errorf("error %v\n%s", err, tr)
	}
	for _, c := range []struct {
		at   Point
		p    packet.Packet
		want string
	}{
		{Point{Node: "n9"}, tcp("10.96.0.11:80"), "the State of node n9 is not known"},
		{Point{Node: "n1", Pod: podOwner("gone")}, tcp("10.96.0.11:80"), "pod/default/gone is not on node n1"},
		{Point{}, tcp("172.18.0.3:30015"), "needs a source address"},
		{inHost(1), packet.Packet{Protocol: cluster.TCP}, "no destination"},
		{inHost(1), packet.Packet{Protocol: 1, Dst: addr("10.96.0.11")}, "protocol-1 is not a protocol of Services"},
		{inHost(1), packet.Packet{Protocol: cluster.TCP, Src: addr("::1"), Dst: addr("10.96.0.11")},
			"not of one family"},
	} {
		if _, err := Walk(w, c.at, c.p); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("from %s: error %v does not say %q", c.at, err, c.want)
		}
	}
}

// A packet that two routers send to each other forever is an error, and Walk terminates. (With IPv4
// the gateway router would drop it: it returns with the address that the router gave to it.)
func TestLoop(t *testing.T) {
	w := byHand(1)
	w.States["n1"].NB.Add(&nb.Route{Router: "ovn_cluster_router", Prefix: prefix("fd09::/64"),
		NextHop: addr("fd98::3")},
		&nb.Route{Router: "GR_n1", Prefix: prefix("fd09::/64"), NextHop: addr("fd98::1")})
	tr := walk(t, w, inPod(1, "pod%d"), tcp("[fd09::9]:80"))
	if !strings.Contains(tr.Verdict.Reason, "userspace datapath drops it: 9 recirculations") {
		t.Errorf("%s", tr)
	}
	w.Snapshot.Nodes[0].Gateway.Userspace = false
	tr, err := Walk(w, inPod(1, "pod%d"), tcp("[fd09::9]:80"))
	if err == nil || !strings.Contains(err.Error(), "routing loop") {
		t.Errorf("error %v\n%s", err, tr)
	}
	if len(tr.Forward) < maxSteps {
		t.Errorf("only %d steps", len(tr.Forward))
	}
	changeFlow(t, w.States["n1"], "table=2", func(f *flow.Flow) { f.Actions = []flow.Action{flow.Resubmit{Table: 2}} })
	if _, err := Walk(w, inHost(1), tcp("10.96.0.11:80")); err == nil ||
		!strings.Contains(err.Error(), "more than 64 lookups") {
		t.Errorf("error %v", err)
	}
}

// Every type of the closed sets must be a case of a switch of its interpreter: a new action that
// walks do not know fails.
func TestClosedSets(t *testing.T) {
	var text strings.Builder
	for _, dir := range []string{"openflow", "nft"} {
		files, err := filepath.Glob(dir + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no file: %v", dir, err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			text.Write(b)
		}
	}
	for _, set := range []struct{ file, pkg, method string }{
		{"../datapath/flow/flow.go", "flow", "action"}, {"../datapath/nft/nft.go", "nft", "match"},
		{"../datapath/nft/nft.go", "nft", "statement"},
	} {
		f, err := parser.ParseFile(token.NewFileSet(), set.file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Name.Name != set.method || fn.Recv == nil {
				continue
			}
			found++
			name := set.pkg + "." + fn.Recv.List[0].Type.(*ast.Ident).Name
			if !strings.Contains(text.String(), "case "+name+":") {
				t.Errorf("no case for %s", name)
			}
		}
		if found == 0 {
			t.Errorf("%s: no type with a method %s", set.file, set.method)
		}
	}
}

// TestFields lists fields that walk takes into account, or may ignore. A new field needs a decision
// here.
func TestFields(t *testing.T) {
	for _, c := range []struct {
		of     any
		fields string
	}{
		{ovs.State{},
			"Bridge Bridges Settings Ports Named Flows Groups TunnelNeighbors TunnelBridge TunnelRoutes Unknown NoFlows"},
		{flow.Flow{}, "Key Feature Actions Owner"},
		{flow.Group{}, "GroupKey Hashed Buckets Owner"},
		{flow.Bucket{}, "ID CT Next"},
		{flow.Match{},
			"InPort Protocol Tagged TTL EthSrc EthDst Src Dst TCPFlags SrcPort DstPort DstMask ICMPType " +
				"ICMPCode Target LinkAddr NoLinkAddr PktMark CTState CTMark CTMarkMask CTProtocol CTDstPort " +
				"Fragment Group Bucket Profile ConjID Tunnel"},
		{flow.CT{}, "Commit Zone Table NAT Mark MarkMask EthSrc"},
		{flow.NAT{}, "Kind Addr PortMin PortMax"},
		{ovs.Port{}, "Name Bridge Type Peer Local MAC MTU ExternalIDs Owner"},
		{nb.Router{}, "Name Options Groups Owner"},
		{nb.RouterPort{}, "Name Router MAC Networks Chassis Options Owner"},
		{nb.Switch{}, "Name OtherConfig Groups Owner"},
		{nb.SwitchPort{}, "Name Switch Type Addresses PortSecurity Options Owner"},
		{nb.MACBinding{}, "Port IP MAC Owner"},
		{nb.Route{}, "Router Prefix NextHop OutPort BySource Owner"},
		{nb.QoS{}, "Switch Priority Match Mark Owner"},
		{nb.ACL{}, "Switch Priority Match Action Owner"},
		{nb.Policy{}, "Router Priority Match Action NextHops Options Owner"},
		{nb.NAT{}, "Router Type External Logical PortRange Match LogicalPort ExternalMAC GatewayPort Owner"},
		{nb.LoadBalancer{}, "Name Protocol VIPs Options Affinity Groups Owner"},
		{nb.VIP{}, "Addr Backends"},
		{nb.Chassis{}, "Name Hostname IP Owner"},
		{nft.Table{}, "Chains Maps Sets Unknown"},
		{nft.Chain{}, "Name Type Hook Device Priority Rules Owner"},
		{nft.Rule{}, "Matches Do Comment Owner"},
		{nft.Map{}, "Name Family Key Elements"},
		{nft.Element{}, "Addr Protocol Port Src Out Slot"},
		{host.State{}, "Links Addresses Routes Rules Neighbors Sysctls"},
		{host.Route{}, "RouteKey Link Via Src MTU AdvMSS Borrowed Owner"},
		{host.Rule{}, "Family Priority From Mark Mask Table"},
		{host.Address{}, "AddressKey Deprecated Borrowed Owner"},
	} {
		typ := reflect.TypeOf(c.of)
		var names []string
		for f := range typ.Fields() {
			names = append(names, f.Name)
		}
		if got := strings.Join(names, " "); got != c.fields {
			t.Errorf("%s has the fields\n%s, walk thinks of\n%s", typ, got, c.fields)
		}
	}
}

// A bridge of OVN without flows forwards nothing, whatever the Northbound database contains.
func TestNoFlows(t *testing.T) {
	w := byHand(2)
	s := w.States["n1"]
	s.Bridge.NoFlows = []string{claims.IntegrationBridge}
	w.States["n1"] = s
	tr := walk(t, w, inPod(1, "pod%d"), tcp("10.96.0.12:80"))
	if tr.Verdict.Delivered || tr.Verdict.Reason != "br-int drops it: OVN's flows are gone" {
		t.Errorf("%s", tr)
	}
}
