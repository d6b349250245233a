package ovs

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/delta"
)

func TestPrint(t *testing.T) {
	s := State{
		Bridge:   "br-ex",
		Settings: map[string]string{"system-id": "node-a", "ovn-bridge-mappings": "physnet:br-ex"},
		Ports: map[string]Port{"ovn-k8s-mp0": {Name: "ovn-k8s-mp0", Bridge: "br-int", Type: "internal",
			MAC: cluster.MAC{0x0a, 0x58, 0x0a, 0xf4, 1, 2}, MTU: 1400,
			ExternalIDs: map[string]string{"iface-id": "k8s-node-a"},
			Owner:       cluster.Owner{Kind: "Node", Name: "node-a"}}},
		TunnelNeighbors: map[netip.Addr]cluster.MAC{netip.MustParseAddr("172.18.0.4"): {2, 0x42, 0xac, 0x12, 0, 4},
			netip.MustParseAddr("fc00:f853:ccd::4"): {2, 0x42, 0xac, 0x12, 0, 4}},
		Unknown: []Unknown{{"",
			"cookie=0xdeff105,table=10,priority=6,in_port=77,dl_vlan=5 actions=pop_vlan,NORMAL"}},
	}
	const before, flows, after = `bridge br-ex
add-br br-svc -- set Bridge br-svc fail_mode=secure datapath_type=netdev # Node/node-a
set Open_vSwitch . external_ids:ovn-bridge-mappings="physnet:br-ex"
set Open_vSwitch . external_ids:system-id="node-a"
add-port br-int ovn-k8s-mp0 -- set Interface ovn-k8s-mp0 type=internal mac="0a:58:0a:f4:01:02" mtu_request=1400 external_ids:iface-id="k8s-node-a" # Node/node-a
tnl/arp/set br-ex 172.18.0.4 02:42:ac:12:00:04
tnl/arp/set br-ex fc00:f853:ccd::4 02:42:ac:12:00:04
`, `cookie=0xdeff105,table=0,priority=500,ip,in_port=LOCAL,nw_dst=10.96.0.0/16 actions=ct(commit,table=2,zone=64001,nat(src=169.254.169.2)) # Node/node-a
cookie=0x10deff105,table=0,priority=110,tcp,in_port=eth0,nw_dst=172.18.0.3,tp_dst=30015 actions=output:"patch-br-ex_node-a-to-br-int" # Service/default/web
cookie=0xdeff105,table=0,priority=0 actions=NORMAL
cookie=0xdeff105,table=2,priority=100 actions=set_field:02:42:ac:12:00:03->eth_dst,output:"patch-br-ex_node-a-to-br-int"
`, `unknown cookie=0xdeff105,table=10,priority=6,in_port=77,dl_vlan=5 actions=pop_vlan,NORMAL
bridge br-svc
cookie=0xdeff105,table=0,priority=0 actions=group:7
group_id=7,type=select,selection_method=dp_hash,bucket=bucket_id:1,actions=ct(commit,table=30,zone=64003,nat(dst=10.244.1.3:8080))
`
	s.Bridges = map[string]Bridge{"br-svc": {Name: "br-svc", Userspace: true,
		Owner: cluster.Owner{Kind: "Node", Name: "node-a"}}}
	k, to := flow.Key{Bridge: "br-svc"}, netip.MustParseAddr("10.244.1.3")
	s.Flows.Put(k.ID(), &flow.Flow{Key: k, Actions: []flow.Action{flow.ToGroup{ID: 7}}})
	g := &flow.Group{GroupKey: flow.GroupKey{Bridge: "br-svc", ID: 7},
		Buckets: []flow.Bucket{{ID: 1, CT: flow.CT{Commit: true, Table: 30, Zone: 64003,
			NAT: flow.NAT{Kind: flow.NATDst, Addr: to, PortMin: 8080, PortMax: 8080}}}}}
	s.Groups.Put(g.GroupKey, g)
	for line := range strings.Lines(flows) {
		f, err := flow.ParseFlow(line)
		if err != nil {
			t.Fatal(err)
		}
		s.Flows.Put(f.ID(), f)
	}
	if got := Print(s); got != before+flows+after {
		t.Fatalf("got\n%s", got)
	}
}

// TestDrift: flows that have the number of a removed port are no drift; a flow that was deleted is.
func TestDrift(t *testing.T) {
	state := func(lines ...string) (s State) {
		for _, line := range lines {
			f, err := flow.ParseFlow(line)
			if err != nil {
				t.Fatal(err)
			}
			s.Flows.Put(f.ID(), f)
		}
		return s
	}
	const (
		own, other = "table=0,priority=1,in_port=%s actions=resubmit(,2)", "table=0,priority=9 actions=drop"
		to         = "table=4,priority=1,dl_dst=0a:58:0a:f4:01:03 actions=output:%s"
	)
	port := func(line, name string) string { return strings.ReplaceAll(line, "%s", name) }
	was := state(port(own, "hairpin1"), port(to, "hairpin1"), other)
	for _, c := range []struct {
		what string
		now  State
		want int
	}{
		{"the same", was, 0},
		{"its port was removed", state(port(own, "7"), port(to, "7"), other), 0},
		{"its port was removed, and a flow deleted", state(port(own, "7"), port(to, "7")), 1},
		{"a flow of the port was deleted", state(port(to, "hairpin1"), other), 1},
		{"a flow was changed", state(port(own, "hairpin1"), port(to, "hairpin2"), other), 1},
	} {
		if got := Diff(was, c.now).Drift(); got != c.want {
			t.Errorf("%s: drift %d, want %d", c.what, got, c.want)
		}
	}
}

func drawMAC(t *rapid.T) cluster.MAC {
	m := cluster.MAC(rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(t, "mac"))
	m[5] |= 1 // the zero MAC means none
	return m
}

func drawAddr(t *rapid.T, f cluster.Family) netip.Addr {
	if f == cluster.IPv4 {
		return netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "address")))
	}
	return netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "address")))
}

func drawPort(t *rapid.T) string {
	return rapid.SampledFrom([]string{flow.Local, "eth0", "patch-br-ex_node-a-to-br-int", "7", "a # b",
		`q"x\`, "a,b", "x(y",
		"é z", "_", "a=b", "actions=drop"}).Draw(t, "port")
}

func drawOwner(t *rapid.T) cluster.Owner {
	return rapid.SampledFrom([]cluster.Owner{{}, {Kind: "Node", Name: "node-a"},
		{Kind: "Service", Namespace: "default", Name: "web"}}).Draw(t, "owner")
}

// drawFlow draws a flow. Package flow tests the text of each field and action.
func drawFlow(t *rapid.T) *flow.Flow {
	actions := [][]flow.Action{{flow.Drop{}}, {flow.Normal{}}, {flow.Output{Port: drawPort(t)}},
		{flow.Resubmit{Table: 3}, flow.InPort{}}}
	return &flow.Flow{
		Key: flow.Key{Table: rapid.Byte().Draw(t, "table"), Priority: rapid.Uint16().Draw(t, "priority"),
			Match: flow.Match{InPort: drawPort(t), Protocol: flow.IP, PktMark: rapid.Uint32Max(2).Draw(t, "pkt_mark")}},
		Feature: rapid.Uint32Max(2).Draw(t, "feature"), Owner: drawOwner(t),
		Actions: rapid.SampledFrom(actions).Draw(t, "actions"),
	}
}

func drawGroup(t *rapid.T) *flow.Group {
	return &flow.Group{GroupKey: flow.GroupKey{ID: rapid.Uint32Max(9).Draw(t, "group")}, Owner: drawOwner(t),
		Buckets: []flow.Bucket{{ID: rapid.Uint32Range(1, 3).Draw(t, "bucket"), Next: 4}}}
}

func drawState(t *rapid.T) State {
	s := State{Bridge: rapid.SampledFrom([]string{"", "br-ex", "b r"}).Draw(t, "bridge")}
	put := func(f *flow.Flow) {
		s.Flows.Put(f.ID(), f)
	}
	bridge := rapid.SampledFrom([]string{"", "", "br-svc", "b s"})
	for range rapid.IntRange(0, 5).Draw(t, "flows") {
		f := drawFlow(t)
		f.Bridge = bridge.Draw(t, "flow's bridge")
		put(f)
	}
	for range rapid.IntRange(0, 2).Draw(t, "bridges") {
		if s.Bridges == nil {
			s.Bridges = map[string]Bridge{}
		}
		x := Bridge{Name: bridge.Draw(t, "name"), Userspace: rapid.Bool().Draw(t, "userspace"),
			Standalone: rapid.Bool().Draw(t, "standalone"), Owner: drawOwner(t),
			Learned: rapid.IntRange(0, 2).Draw(t, "learned"), Connections: rapid.IntRange(0, 2).Draw(t, "connections")}
		s.Bridges[x.Name] = x
	}
	for range rapid.IntRange(0, 2).Draw(t, "groups") {
		g := drawGroup(t)
		g.Bridge = bridge.Draw(t, "group's bridge")
		s.Groups.Put(g.GroupKey, g)
	}
	text := rapid.StringMatching(`[a-zA-Z0-9 ,:="#\\é/-]{0,12}`)
	s.Settings = nonEmpty(rapid.MapOfN(text, text, 0, 3).Draw(t, "settings"))
	for range rapid.IntRange(0, 2).Draw(t, "ports") {
		p := Port{
			Name: drawPort(t), Bridge: "br-int", Owner: drawOwner(t), MTU: rapid.IntRange(0, 9000).Draw(t, "mtu"),
			Type:        rapid.SampledFrom([]string{"", "internal"}).Draw(t, "type"),
			ExternalIDs: nonEmpty(rapid.MapOfN(text, text, 0, 2).Draw(t, "external_ids")),
			Peer:        rapid.SampledFrom([]string{"", "p r"}).Draw(t, "peer"),
		}
		if rapid.Bool().Draw(t, "of tunnels") {
			p.Local = drawAddr(t, cluster.IPv4)
		}
		if rapid.Bool().Draw(t, "with a MAC") {
			p.MAC = drawMAC(t)
		}
		if s.Ports == nil {
			s.Ports = map[string]Port{}
		}
		s.Ports[p.Name] = p
	}
	if rapid.Bool().Draw(t, "neighbors") {
		s.TunnelNeighbors = map[netip.Addr]cluster.MAC{drawAddr(t, cluster.IPv4): drawMAC(t),
			drawAddr(t, cluster.IPv6): drawMAC(t)}
	}
	if rapid.Bool().Draw(t, "routes") {
		s.TunnelBridge = rapid.SampledFrom([]string{"br-enc", "b t"}).Draw(t, "tunnel bridge")
		s.TunnelRoutes = map[netip.Addr]netip.Addr{drawAddr(t, cluster.IPv4): drawAddr(t, cluster.IPv4),
			drawAddr(t, cluster.IPv6): drawAddr(t, cluster.IPv6)}
	}
	if rapid.Bool().Draw(t, "unknown") {
		s.Unknown = []Unknown{{bridge.Draw(t, "its bridge"),
			"cookie=0xdeff105,table=10,priority=6,in_port=77,dl_vlan=5 actions=pop_vlan,NORMAL"}}
	}
	return s
}

func nonEmpty(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	return m
}

func TestPrintTellsStatesApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawState(t), drawState(t)
		if reflect.DeepEqual(a, b) != (Print(a) == Print(b)) {
			t.Fatalf("%#v\nand\n%#v\nare printed as\n%sand\n%s", a, b, Print(a), Print(b))
		}
	})
}

func TestDiffOfPrintedIsEmpty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want, have := drawState(t), drawState(t)
		want.Unknown = nil
		if d := Diff(want, want); !d.Empty() {
			t.Fatalf("a State differs from itself: %+v", d)
		}
		d := Diff(want, have)
		got := have
		for _, part := range []Delta{d.Grow(), d.Shrink()} {
			got.Bridges = part.Bridges.ApplyTo(got.Bridges)
			got.Settings = part.Settings.ApplyTo(got.Settings)
			got.Ports = part.Ports.ApplyTo(got.Ports)
			got.TunnelNeighbors = part.TunnelNeighbors.ApplyTo(got.TunnelNeighbors)
			got.TunnelRoutes = part.TunnelRoutes.ApplyTo(got.TunnelRoutes)
			got.Flows = part.Flows.ApplyToMap(got.Flows)
			got.Groups = part.Groups.ApplyToMap(got.Groups)
		}
		got.Unknown = nil
		if rest := Diff(want, got); !rest.Empty() {
			t.Fatalf("after grow and shrink there is still %+v", rest)
		}
		if d.Grow().Count()+d.Shrink().Count() != d.Count() {
			t.Fatalf("grow and shrink of %+v are not all of it", d)
		}
		if !slices.Equal(d.Shrink().Unknown, have.Unknown) {
			t.Fatal("unknown flows stay")
		}
	})
}

func TestDiffLeavesOpenWhatIsNotSaid(t *testing.T) {
	have := Port{Name: "mp0", Bridge: "br-int", Type: "internal", MAC: cluster.MAC{2}, MTU: 1400,
		ExternalIDs: map[string]string{"iface-id": "x"}}
	base := Port{Name: "mp0", Bridge: "br-int", Type: "internal", ExternalIDs: map[string]string{"iface-id": "x"}}
	for _, c := range []struct {
		name   string
		change func(*Port)
		same   bool
	}{
		{"nothing said", func(*Port) {}, true},
		{"same MAC", func(p *Port) { p.MAC = cluster.MAC{2} }, true},
		{"other MAC", func(p *Port) { p.MAC = cluster.MAC{3} }, false},
		{"same MTU", func(p *Port) { p.MTU = 1400 }, true},
		{"other MTU", func(p *Port) { p.MTU = 1401 }, false},
		{"other bridge", func(p *Port) { p.Bridge = "br-ex" }, false},
		{"other type", func(p *Port) { p.Type = "" }, false},
		{"other owner", func(p *Port) { p.Owner.Kind = "Node" }, false},
		{"other iface-id", func(p *Port) { p.ExternalIDs = map[string]string{"iface-id": "y"} }, false},
		{"no iface-id", func(p *Port) { p.ExternalIDs = nil }, false},
	} {
		want := base
		c.change(&want)
		d := Diff(State{Ports: map[string]Port{"mp0": want}}, State{Ports: map[string]Port{"mp0": have}})
		if d.Empty() != c.same {
			t.Errorf("%s: empty is %v", c.name, d.Empty())
		}
	}
}

func TestDiffOfFlowsIgnoresOnlyTheOwner(t *testing.T) {
	base := flow.Flow{Key: flow.Key{Priority: 5}, Feature: 1, Actions: []flow.Action{flow.Normal{}},
		Owner: cluster.Owner{Kind: "Node", Name: "a"}}
	of := func(change func(*flow.Flow)) delta.Map[flow.ID, *flow.Flow] {
		f := base
		change(&f)
		return delta.MapOf(map[flow.ID]*flow.Flow{f.ID(): &f})
	}
	have := State{Flows: of(func(*flow.Flow) {})}
	if d := Diff(State{Flows: of(func(f *flow.Flow) { f.Owner = cluster.Owner{} })}, have); !d.Empty() {
		t.Errorf("another owner: %+v", d)
	}
	if d := Diff(State{Flows: of(func(f *flow.Flow) { f.Feature = 2 })}, have); len(d.Flows.Change) != 1 {
		t.Errorf("another feature: %+v", d)
	}
	drops := State{Flows: of(func(f *flow.Flow) { f.Actions = []flow.Action{flow.Drop{}} })}
	if d := Diff(drops, have); len(d.Flows.Change) != 1 {
		t.Errorf("other actions: %+v", d)
	}
	if d := Diff(State{Flows: of(func(f *flow.Flow) { f.Priority = 6 })}, have); len(d.Flows.Add) != 1 ||
		len(d.Flows.Delete) != 1 {
		t.Errorf("another priority: %+v", d)
	}
}

// benchFlows returns the two flows that a NodePort needs in each direction.
func benchFlows(n int) State {
	s := State{Bridge: "br-ex"}
	node := netip.MustParsePrefix("172.18.0.3/32")
	for i := range n / 2 {
		owner := cluster.Owner{Kind: "Service", Namespace: "default", Name: "web"}
		in := &flow.Flow{Key: flow.Key{Priority: 110,
			Match: flow.Match{InPort: "eth0", Protocol: flow.TCP, Dst: node, DstPort: uint16(30000 + i)}}, Feature: 2,
			Actions: []flow.Action{flow.Output{Port: "patch-br-ex_node-a-to-br-int"}}, Owner: owner}
		out := &flow.Flow{Key: flow.Key{Priority: 110,
			Match: flow.Match{InPort: "patch-br-ex_node-a-to-br-int", Protocol: flow.TCP, Src: node,
				SrcPort: uint16(30000 + i)}},
			Feature: 2,
			Actions: []flow.Action{flow.CT{Commit: true, Zone: 64000, Mark: 1}, flow.Output{Port: "eth0"}},
			Owner:   owner}
		s.Flows.Put(in.ID(), in)
		s.Flows.Put(out.ID(), out)
	}
	return s
}

const benchSize = 40000

func BenchmarkPrint(b *testing.B) {
	s := benchFlows(benchSize)
	b.ReportAllocs()
	for b.Loop() {
		Print(s)
	}
}

func BenchmarkDiff(b *testing.B) {
	want, have := benchFlows(benchSize), benchFlows(benchSize)
	have.Flows = have.Flows.Clone()
	for k := range want.Flows.All() {
		have.Flows.Delete(k)
		break
	}
	b.ReportAllocs()
	for b.Loop() {
		if d := Diff(want, have); d.Count() != 1 {
			b.Fatal(d.Count())
		}
	}
}
