package ofctl_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"hairpin/apply"
	"hairpin/apply/applytest"
	"hairpin/apply/ofctl"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/ovs"
	"hairpin/delta"
	"hairpin/lab"
)

// flows has flows of every kind, as on a node.
const flows = `
cookie=0xdeff105,table=0,priority=500,ip,in_port="patch-br-ex_node-a-to-br-int",nw_src=172.18.0.3,nw_dst=169.254.169.2 actions=ct(commit,table=4,zone=64001,nat(dst=172.18.0.3))
cookie=0xdeff105,table=0,priority=500,ip,in_port=LOCAL,nw_dst=10.96.0.0/16 actions=ct(commit,table=2,zone=64001,nat(src=169.254.169.2))
cookie=0xdeff105,table=0,priority=500,ipv6,in_port=LOCAL,ipv6_dst=fd00:10:96::/112 actions=ct(commit,table=2,zone=64001,nat(src=[fd69::2]:61000-65535))
cookie=0xdeff105,table=0,priority=205,udp,in_port=eth0,dl_dst=02:42:ac:12:00:03,tp_dst=6081 actions=LOCAL
cookie=0x10deff105,table=0,priority=110,sctp6,in_port=eth0,ipv6_dst=fc00:f853:ccd::3,tp_dst=30015 actions=output:"patch-br-ex_node-a-to-br-int"
cookie=0xdeff105,table=0,priority=105,pkt_mark=0x3f0,ip,in_port="patch-br-ex_node-a-to-br-int" actions=ct(commit,zone=64000,nat(src=172.18.0.3),exec(set_field:0x1->ct_mark)),output:eth0
cookie=0xdeff105,table=0,priority=101,icmp6,in_port=eth0,icmp_type=135 actions=output:"patch-br-ex_node-a-to-br-int",LOCAL
cookie=0xdeff105,table=0,priority=100,ip,in_port=LOCAL,nw_frag=not_later actions=ct(commit,zone=64000,exec(set_field:0x2->ct_mark)),output:eth0
cookie=0xdeff105,table=0,priority=0 actions=NORMAL
cookie=0xdeff105,table=1,priority=100,ct_state=+est+trk,ct_mark=0x1,ip actions=output:"patch-br-ex_node-a-to-br-int"
cookie=0xdeff105,table=1,priority=99,ct_state=-new+est-rel+rpl-inv+trk+snat-dnat,ip actions=resubmit(,4)
cookie=0xdeff105,table=1,priority=10,arp,dl_src=02:42:ac:12:00:07,arp_spa=172.18.0.0/16,arp_tpa=172.18.0.3 actions=drop
cookie=0xdeff105,table=2,priority=100 actions=set_field:02:42:ac:12:00:03->eth_dst,output:"patch-br-ex_node-a-to-br-int"
cookie=0xdeff105,table=3,priority=100 actions=move:NXM_OF_ETH_DST[]->NXM_OF_ETH_SRC[],set_field:02:42:ac:12:00:03->eth_src,LOCAL
cookie=0xdeff105,table=4,priority=100,ip actions=ct(commit,table=3,zone=64002,nat(src=169.254.169.1))
cookie=0xdeff105,table=5,priority=100,ip actions=ct(table=2,zone=64001,nat)
`

func settings() []string { return []string{"ovn-bridge-mappings", "ovn-encap-ip"} }

// parse returns a State with flows on br-ex.
func parse(t testing.TB, text string) ovs.State {
	t.Helper()
	s := ovs.State{Bridge: "br-ex"}
	for line := range strings.Lines(strings.TrimSpace(text)) {
		f, err := flow.ParseFlow(line)
		if err != nil {
			t.Fatal(err)
		}
		s.Flows.Put(f.ID(), f)
	}
	return s
}

// rich returns a State with objects of every kind.
func rich(t testing.TB) ovs.State {
	t.Helper()
	s := parse(t, flows)
	s.Settings = map[string]string{"ovn-bridge-mappings": "physnet:br-ex", "ovn-encap-ip": "172.18.0.3"}
	s.Ports = map[string]ovs.Port{"ovn-k8s-mp0": {Name: "ovn-k8s-mp0", Bridge: "br-int", Type: "internal",
		MAC: cluster.MAC{0x0a, 0x58, 0x0a, 0xf4, 1, 2}, MTU: 1400,
		ExternalIDs: map[string]string{"iface-id": "k8s-node-a"}, Owner: cluster.Owner{Kind: "Node", Name: "node-a"}}}
	return s
}

// node starts a node with Open vSwitch, a br-int and the patch ports that ovn-controller would
// make, without OVN.
func node(t testing.TB) *lab.Node {
	t.Helper()
	return nodeIn(t, lab.Start(t, lab.Config{}))
}

func nodeIn(t testing.TB, l *lab.Lab) *lab.Node {
	t.Helper()
	n := l.Add(t, lab.NodeConfig{Daemons: []string{lab.OVSDB, lab.VSwitchd}})
	sh(t, n, `ovs-vsctl add-br br-int -- set Bridge br-int datapath_type=`+n.Datapath()+` fail_mode=secure`)
	addPatch(t, n)
	return n
}

const patch = "patch-br-ex_node-a-to-br-int"

func addPatch(t testing.TB, n *lab.Node) {
	t.Helper()
	sh(t, n, `ovs-vsctl add-port br-ex `+patch+` -- set Interface `+patch+
		` type=patch options:peer=patch-br-int-to-br-ex_node-a \
		-- --may-exist add-port br-int patch-br-int-to-br-ex_node-a -- set Interface patch-br-int-to-br-ex_node-a type=patch options:peer=`+patch)
}

func open(t testing.TB, n *lab.Node) *ofctl.Target {
	t.Helper()
	target, err := ofctl.Open(ofctl.Config{Bridge: lab.GatewayBridge, Settings: settings(), Path: n.Path,
		Command: n.Command})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.Close)
	return target
}

func ctx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// sh runs lines in the node as one script that stops at the first error.
func sh(t testing.TB, n *lab.Node, script string) string {
	t.Helper()
	out, err := n.ExecInput(ctx(t), script, "bash", "-e")
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, script, out)
	}
	return out
}

func read(t testing.TB, target *ofctl.Target) ovs.State {
	t.Helper()
	s, err := target.Read(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// reach makes Open vSwitch equal to want.
func reach(t testing.TB, target *ofctl.Target, want ovs.State) {
	t.Helper()
	if err := target.Apply(ctx(t), ovs.Diff(want, read(t, target))); err != nil {
		t.Fatal(err)
	}
	if d := ovs.Diff(want, read(t, target)); !d.Empty() {
		t.Fatalf("%d differences left: %+v", d.Count(), d)
	}
}

// states draws parts of rich, in variants.
func states(t testing.TB) *rapid.Generator[ovs.State] {
	return rapid.Custom(func(r *rapid.T) ovs.State {
		s := rich(t)
		for _, k := range sortedKeys(s.Flows) {
			f := *s.Flows.At(k.ID())
			switch rapid.IntRange(0, 4).Draw(r, "what") {
			case 0:
				s.Flows.Delete(k.ID())
				continue
			case 1:
				f.Actions = []flow.Action{flow.Drop{}}
			case 2:
				f.Feature += 7
			}
			s.Flows.Put(k.ID(), &f)
		}
		for range rapid.IntRange(0, 20).Draw(r, "NodePorts") {
			f := &flow.Flow{Key: flow.Key{Priority: 110,
				Match: flow.Match{Protocol: flow.TCP, InPort: "eth0",
					DstPort: rapid.Uint16Range(30000, 30040).Draw(r, "port")}}}
			f.Actions = []flow.Action{flow.Output{Port: patch}}
			s.Flows.Put(f.ID(), f)
		}
		switch rapid.IntRange(0, 2).Draw(r, "settings") {
		case 0:
			delete(s.Settings, "ovn-encap-ip")
		case 1:
			s.Settings["ovn-encap-ip"] = "172.18.0.9"
		}
		mp0 := s.Ports["ovn-k8s-mp0"]
		switch rapid.IntRange(0, 3).Draw(r, "port") {
		case 0:
			delete(s.Ports, mp0.Name)
		case 1:
			mp0.MTU, mp0.MAC[5] = 1300, 9
			s.Ports[mp0.Name] = mp0
		case 2:
			mp0.Bridge, mp0.ExternalIDs = "br-ex", nil
			s.Ports[mp0.Name] = mp0
		}
		return s
	})
}

func sortedKeys(flows delta.Map[flow.ID, *flow.Flow]) []flow.Key {
	var keys []flow.Key
	for _, f := range flows.All() {
		keys = append(keys, f.Key)
	}
	slices.SortFunc(keys, func(a, b flow.Key) int { return strings.Compare(a.String(), b.String()) })
	return keys
}

func TestLaws(t *testing.T) {
	n := node(t)
	by := func(script string) func(testing.TB) {
		return func(t testing.TB) { sh(t, n, script) }
	}
	want := rich(t)
	applytest.Laws(t, applytest.Harness[ovs.State, ovs.Delta]{
		New:    func(t testing.TB) apply.Target[ovs.State, ovs.Delta] { return open(t, n) },
		Diff:   ovs.Diff,
		Print:  ovs.Print,
		States: states(t),
		Rich:   want,
		Foreign: func(t testing.TB) func() string {
			sh(t, n, `ovs-ofctl add-flow br-ex cookie=0x5,table=0,priority=7,tcp,tp_dst=80,actions=drop
				ovs-ofctl add-flow br-ex cookie=0x1deff1050,table=9,priority=7,actions=learn\(table=8,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[]\)
				ovs-vsctl set Open_vSwitch . external_ids:theirs=1 external_ids:ovn-remote=unix:/x other_config:theirs=2
				ovs-vsctl add-port br-int theirs -- set Interface theirs type=internal external_ids:iface-id=x
				ovs-vsctl set Interface ovn-k8s-mp0 external_ids:theirs=3 -- set Port ovn-k8s-mp0 external_ids:theirs=4`)
			return func() string {
				return sh(t, n, `ovs-ofctl --no-stats dump-flows br-ex | grep -v deff105, | grep -v FLOW
					ovs-vsctl get Open_vSwitch . external_ids:theirs external_ids:ovn-remote external_ids:system-id other_config:theirs
					ovs-vsctl --columns=name,type,external_ids list Interface theirs eth0 `+patch+`
					ovs-vsctl list-ports br-ex | grep -v mp0; ovs-vsctl list-ports br-int | grep -v mp0`)
			}
		},
		Spoils: map[string]func(testing.TB){
			"flow removed":           by(`ovs-ofctl --strict del-flows br-ex "table=4,priority=100,ip"`),
			"all flows removed":      by(`ovs-ofctl del-flows br-ex`),
			"actions changed":        by(`ovs-ofctl --strict mod-flows br-ex "table=0,priority=205,udp,in_port=eth0,dl_dst=02:42:ac:12:00:03,tp_dst=6081,actions=drop"`),
			"cookie changed":         by(`ovs-ofctl add-flow br-ex "cookie=0x9,table=4,priority=100,ip,actions=ct(commit,table=3,zone=64002,nat(src=169.254.169.1))"`),
			"feature changed":        by(`ovs-ofctl add-flow br-ex "cookie=0x990deff105,table=4,priority=100,ip,actions=ct(commit,table=3,zone=64002,nat(src=169.254.169.1))"`),
			"flow that will expire":  by(`ovs-ofctl add-flow br-ex "cookie=0xdeff105,hard_timeout=1000,table=4,priority=100,ip,actions=ct(commit,table=3,zone=64002,nat(src=169.254.169.1))"`),
			"actions not known":      by(`ovs-ofctl add-flow br-ex "cookie=0xdeff105,table=4,priority=100,ip,actions=learn(table=8,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[])"`),
			"flow of our cookie":     by(`ovs-ofctl add-flow br-ex "cookie=0x30deff105,table=7,priority=3,tcp,tp_src=5,actions=drop"`),
			"match not known":        by(`ovs-ofctl add-flow br-ex "cookie=0xdeff105,idle_timeout=500,table=7,priority=3,dl_vlan=5,tcp,tp_dst=0x50/0xfff0,in_port=eth0,actions=strip_vlan,NORMAL"`),
			"setting removed":        by(`ovs-vsctl remove Open_vSwitch . external_ids ovn-bridge-mappings`),
			"setting changed":        by(`ovs-vsctl set Open_vSwitch . external_ids:ovn-encap-ip=1.2.3.4`),
			"port removed":           by(`ovs-vsctl del-port ovn-k8s-mp0`),
			"port changed":           by(`ovs-vsctl set Interface ovn-k8s-mp0 mtu_request=1500 mac=\"02:00:00:00:00:01\" external_ids:iface-id=y`),
			"port on another bridge": by(`ovs-vsctl del-port ovn-k8s-mp0 -- add-port br-ex ovn-k8s-mp0 -- set Interface ovn-k8s-mp0 type=internal`),
			"owner removed":          by(`ovs-vsctl clear Port ovn-k8s-mp0 external_ids`),
			"port made again":        func(t testing.TB) { sh(t, n, `ovs-vsctl del-port `+patch); addPatch(t, n) },
		},
		Refused: func(t testing.TB) ovs.Delta {
			// Table 254 is Open vSwitch's own.
			more := parse(t, "table=254,priority=5 actions=drop\ntable=7,priority=5 actions=drop\n")
			return ovs.Delta{Bridge: "br-ex", Flows: ovs.Diff(more, ovs.State{}).Flows}
		},
		Atomic: true,
	})
}
