package ofctl_test

import (
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"hairpin/apply"
	"hairpin/apply/applytest"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/ovs"
	"hairpin/delta"
	"hairpin/lab"
	"hairpin/pipeline"
)

// services is the content of a bridge of Hairpin's: two Services, and flows of a pod.
const services = `
cookie=0xdeff105,table=0,priority=120,pkt_mark=0x2b,in_port="svc-int" actions=set_field:0x0->pkt_mark,output:veth2
cookie=0xdeff105,table=0,priority=100,in_port=LOCAL actions=resubmit(,20)
cookie=0xdeff105,table=11,priority=100,ct_state=+new-rel+trk,ip actions=ct(commit,table=30,zone=64003,nat(src))
cookie=0xdeff105,table=20,priority=200,tcp,nw_dst=10.96.0.1,tp_dst=80 actions=group:7
cookie=0xdeff105,table=20,priority=200,udp6,ipv6_dst=fd00:10:96::1,tp_dst=53 actions=group:8
cookie=0xdeff105,table=20,priority=200,tcp,nw_dst=10.96.0.2,tp_dst=80 actions=set_field:0x29->reg6,resubmit(,25),resubmit(,26)
cookie=0xdeff105,table=20,priority=200,tcp6,ipv6_dst=fd00:10:96::2,tp_dst=80 actions=set_field:0x2d->reg6,resubmit(,25),resubmit(,26)
cookie=0xdeff105,table=26,priority=0,ip,reg6=0x29 actions=group:41
cookie=0xdeff105,table=26,priority=0,ipv6,reg6=0x2d actions=group:45
cookie=0xdeff105,table=26,priority=100,ip,reg6=0x29,reg7=0x1 actions=learn(table=25,idle_timeout=65535,delete_learned,cookie=0x280deeffff,limit=3,eth_type=0x800,NXM_NX_REG6[2..31],NXM_OF_IP_SRC[],load:NXM_NX_REG7[]->NXM_NX_REG7[]),ct(commit,table=30,zone=64003,nat(dst=10.244.1.3:8080))
cookie=0xdeff105,table=26,priority=100,ip,reg6=0x29,reg7=0x2 actions=learn(table=25,idle_timeout=65535,delete_learned,cookie=0x280deeffff,limit=3,eth_type=0x800,NXM_NX_REG6[2..31],NXM_OF_IP_SRC[],load:NXM_NX_REG7[]->NXM_NX_REG7[]),ct(commit,table=30,zone=64003,nat(dst=10.244.1.4:8080))
cookie=0xdeff105,table=26,priority=100,ipv6,reg6=0x2d,reg7=0x1 actions=learn(table=25,idle_timeout=1,delete_learned,cookie=0x2c0dee0001,limit=3,eth_type=0x86dd,NXM_NX_REG6[2..31],NXM_NX_IPV6_SRC[],load:NXM_NX_REG7[]->NXM_NX_REG7[]),ct(commit,table=30,zone=64003,nat(dst=fd00::9))
cookie=0xdeff105,table=50,priority=100,in_port=veth2 actions=output:"svc-int"
`

// group returns a group with those endpoint numbers, with ports for IPv4.
func group(id uint32, family cluster.Family, endpoints ...uint32) *flow.Group {
	g := &flow.Group{GroupKey: key(id)}
	for _, e := range endpoints {
		nat := flow.NAT{Kind: flow.NATDst, Addr: netip.AddrFrom4([4]byte{10, 244, byte(e >> 8), byte(e)}),
			PortMin: 8080, PortMax: 8080}
		if family == cluster.IPv6 {
			nat = flow.NAT{Kind: flow.NATDst, Addr: netip.AddrFrom16([16]byte{0xfd, 14: byte(e >> 8), 15: byte(e)})}
		}
		g.Buckets = append(g.Buckets, flow.Bucket{ID: e, CT: flow.CT{Commit: true, Table: 30, Zone: 64003, NAT: nat}})
	}
	return g
}

// noting returns a group of a Service with session affinity.
func noting(id uint32, of flow.Protocol, buckets ...uint32) *flow.Group {
	g := &flow.Group{GroupKey: key(id), Hashed: of}
	for _, b := range buckets {
		g.Buckets = append(g.Buckets, flow.Bucket{ID: b, Next: pipeline.SvcEndpointDNAT})
	}
	return g
}

func key(id uint32) flow.GroupKey { return flow.GroupKey{Bridge: "br-svc", ID: id} }

// withGroups returns flows and groups on a bridge of Hairpin's, and a flow on the gateway bridge.
func withGroups(t testing.TB, n *lab.Node) ovs.State {
	s := parse(t, "table=50,priority=100,in_port=eth0 actions=LOCAL")
	for _, f := range parse(t, services).Flows.All() {
		f.Bridge = "br-svc"
		s.Flows.Put(f.ID(), f)
	}
	for _, g := range []*flow.Group{group(7, cluster.IPv4, 3, 5, 200), group(8, cluster.IPv6, 9),
		noting(41, flow.TCP, 1, 2), noting(45, flow.TCP6, 1), noting(46, flow.UDP, 1), noting(47, flow.SCTP6, 1)} {
		s.Groups.Put(g.GroupKey, g)
	}
	owner := cluster.Owner{Kind: "Node", Name: "node-a"}
	s.Bridges = map[string]ovs.Bridge{"br-svc": {Name: "br-svc", Userspace: n.Datapath() == "netdev",
		Learned: 100, Connections: 5000, Owner: owner}}
	s.Named = map[string]bool{"": true, "br-svc": true}
	s.Ports = map[string]ovs.Port{
		"veth2":   {Name: "veth2", Bridge: "br-svc", Type: "internal", Owner: owner},
		"svc-int": {Name: "svc-int", Bridge: "br-svc", Type: "patch", Peer: "int-svc", Owner: owner},
		"int-svc": {Name: "int-svc", Bridge: "br-int", Type: "patch", Peer: "svc-int",
			ExternalIDs: map[string]string{"iface-id": "trunk"}, Owner: owner},
	}
	return s
}

// serviceNode starts a node with the bridges and ports of withGroups.
func serviceNode(t testing.TB) *lab.Node {
	t.Helper()
	n := node(t)
	want := withGroups(t, n)
	want.Flows, want.Groups = delta.Map[flow.ID, *flow.Flow]{}, delta.Map[flow.GroupKey, *flow.Group]{}
	reach(t, open(t, n), want)
	return n
}

func TestLawsOfGroups(t *testing.T) {
	n := serviceNode(t)
	by := func(script string) func(testing.TB) {
		return func(t testing.TB) { sh(t, n, script) }
	}
	applytest.Laws(t, applytest.Harness[ovs.State, ovs.Delta]{
		New:    func(t testing.TB) apply.Target[ovs.State, ovs.Delta] { return open(t, n) },
		Diff:   ovs.Diff,
		Print:  ovs.Print,
		States: servicesOf(t, n),
		Rich:   withGroups(t, n),
		Foreign: func(t testing.TB) func() string {
			sh(t, n, `ovs-ofctl -O OpenFlow15 add-group br-ex group_id=7,type=all,bucket=actions=drop
				ovs-ofctl -O OpenFlow15 add-flow br-svc cookie=0x5,table=9,priority=7,actions=drop`)
			return func() string {
				return sh(t, n,
					`ovs-ofctl -O OpenFlow15 dump-groups br-ex | tail -n +2; ovs-ofctl -O OpenFlow15 --no-stats dump-flows br-svc cookie=5/-1`)
			}
		},
		Spoils: map[string]func(testing.TB){
			"group removed":      by(`ovs-ofctl -O OpenFlow15 del-groups br-svc group_id=7`),
			"all groups removed": by(`ovs-ofctl -O OpenFlow15 del-groups br-svc`),
			"another group":      by(`ovs-ofctl -O OpenFlow15 mod-flows br-svc table=20,tcp,nw_dst=10.96.0.1,tp_dst=80,actions=group:8`),
			"bridge removed":     by(`ovs-vsctl del-br br-svc`),
			"bridge forwards":    by(`ovs-vsctl del-fail-mode br-svc`),
			"bridge is theirs":   by(`ovs-vsctl clear Bridge br-svc external_ids`),
			"no flow limit":      by(`ovs-vsctl clear Bridge br-svc flow_tables`),
			"no table name":      by(`ovs-vsctl clear Flow_Table $(ovs-vsctl get Bridge br-svc flow_tables:20) name`),
			"no table names":     by(`ovs-vsctl clear Bridge br-ex flow_tables`),
			"no zone limit":      by(`ovs-vsctl del-zone-limit ` + n.Datapath() + ` 64003`),
			"trunk elsewhere":    by(`ovs-vsctl set Interface svc-int options:peer=nowhere`),
			"flow removed":       by(`ovs-ofctl --strict del-flows br-svc table=50,priority=100,in_port=veth2`),
		},
		Refused: func(t testing.TB) ovs.Delta {
			more := withGroups(t, n)
			more.Groups.Put(key(9), group(9, cluster.IPv4, 1))
			for _, f := range parse(t, "table=254,priority=5 actions=group:9").Flows.All() {
				k := f.Key
				k.Bridge = "br-svc"
				more.Flows.Put(k.ID(), &flow.Flow{Key: k, Actions: []flow.Action{flow.ToGroup{ID: 9}}})
			}
			return ovs.Diff(more, withGroups(t, n))
		},
		Atomic: true,
	})
}

// servicesOf draws parts of withGroups, in variants. Flows refer only to existing groups.
func servicesOf(t testing.TB, n *lab.Node) *rapid.Generator[ovs.State] {
	return rapid.Custom(func(r *rapid.T) ovs.State {
		s := withGroups(t, n)
		for _, id := range []uint32{7, 8} {
			family := map[uint32]cluster.Family{7: cluster.IPv4, 8: cluster.IPv6}[id]
			switch rapid.IntRange(0, 2).Draw(r, "what") {
			case 0:
				s.Groups.Delete(key(id))
				for k, f := range s.Flows.All() {
					if f.Actions[0] == (flow.ToGroup{ID: id}) {
						s.Flows.Delete(k)
					}
				}
			case 1:
				s.Groups.Put(key(id), group(id, family, rapid.Uint32Range(1, 4).Draw(r, "first"),
					rapid.Uint32Range(5, 9).Draw(r, "second")))
			}
		}
		return s
	})
}

// TestGroupsChangedByHand checks that manual changes of groups are noticed, although flow monitors
// do not report groups.
func TestGroupsChangedByHand(t *testing.T) {
	n := serviceNode(t)
	want := withGroups(t, n)
	target := open(t, n)
	reach(t, target, want)
	for name, script := range map[string]string{
		"buckets": `ovs-ofctl -O OpenFlow15 mod-group br-svc 'group_id=7,type=select,selection_method=dp_hash,bucket=bucket_id:3,actions=ct(commit,table=30,zone=64003,nat(dst=10.244.1.3:8080))'`,
		"weight":  `ovs-ofctl -O OpenFlow15 insert-buckets br-svc 'group_id=7,command_bucket_id=last,bucket=bucket_id:4,weight:9,actions=ct(commit,zone=64003,table=30,nat(dst=10.244.1.4:8080))'`,
		"method":  `ovs-ofctl -O OpenFlow15 mod-group br-svc 'group_id=8,type=select,selection_method=hash,bucket=bucket_id:9,actions=ct(commit,table=30,zone=64003,nat(dst=fd00::9))'`,
		"type":    `ovs-ofctl -O OpenFlow15 mod-group br-svc 'group_id=8,type=all,bucket=actions=drop'`,
		"more":    `ovs-ofctl -O OpenFlow15 add-group br-svc 'group_id=99,type=indirect,bucket=actions=drop'`,
	} {
		quiet(t, target)
		sh(t, n, script)
		until(t, target, name, func(s ovs.State, err error) bool {
			d := ovs.Diff(want, s)
			return err == nil && d.Count() == 1 && d.Groups.Count() == 1
		})
		reach(t, target, want)
		reach(t, open(t, n), want)
	}
}

// TestABadGroupDoesNotStopTheOthers checks that a group which Open vSwitch would reject, or a flow
// to it, does not make the whole bundle fail.
func TestABadGroupDoesNotStopTheOthers(t *testing.T) {
	n := serviceNode(t)
	target := open(t, n)
	var all []uint32
	for e := range uint32(700) {
		all = append(all, e)
	}
	want := withGroups(t, n)
	want.Groups.Put(key(8), group(8, cluster.IPv6, all...))
	err := target.Apply(ctx(t), ovs.Diff(want, read(t, target)))
	if err == nil || !strings.Contains(err.Error(), "group 8 has 700 buckets") {
		t.Fatalf("the error does not name the group: %v", err)
	}
	if d := ovs.Diff(want, read(t, target)); len(d.Groups.Add) != 1 || len(d.Flows.Add) != 1 || d.Count() != 2 {
		t.Fatalf("not only group 8 and its flow are missing: %+v", d)
	}
	want.Groups.Put(key(8), group(8, cluster.IPv6, all[:640]...))
	reach(t, target, want)
	reach(t, open(t, n), want)
}

// TestOwnGroupsAreNoNews checks that the Target knows its own changes, also of groups.
func TestOwnGroupsAreNoNews(t *testing.T) {
	n := serviceNode(t)
	target := open(t, n)
	want := withGroups(t, n)
	reach(t, target, want)
	quiet(t, target)
	want.Groups.Put(key(7), group(7, cluster.IPv4, 1, 2))
	want.Groups.Put(key(9), group(9, cluster.IPv4, 4))
	want.Groups.Put(key(10), group(10, cluster.IPv4, 1, 2))
	want.Groups.Delete(key(8))
	for k, f := range want.Flows.All() {
		if f.Actions[0] == (flow.ToGroup{ID: 8}) {
			want.Flows.Delete(k)
		}
	}
	reach(t, target, want)
	silent(t, target)
	if d := ovs.Diff(want, read(t, open(t, n))); !d.Empty() {
		t.Fatalf("another Target sees %+v", d)
	}
}

// TestLearnedFlowsAreLeftAlone checks that learned flows are neither signalled nor a difference.
// They stay while other things change, and are deleted with the last flow that learns.
func TestLearnedFlowsAreLeftAlone(t *testing.T) {
	n := serviceNode(t)
	target := open(t, n)
	want := withGroups(t, n)
	reach(t, target, want)
	quiet(t, target)
	connect := func(clients ...string) {
		for _, c := range clients {
			sh(t, n, `ovs-appctl ofproto/trace br-svc in_port=LOCAL,tcp,nw_src=`+c+
				`,nw_dst=10.96.0.2,tp_src=1000,tp_dst=80 -generate`)
		}
	}
	learned := func(count int, words string) {
		t.Helper()
		if text := sh(t, n, `ovs-ofctl -O OpenFlow15 dump-flows br-svc table=25`); strings.Count(text, words) != count {
			t.Fatalf("want %d flows with %s, there is\n%s", count, words, text)
		}
	}
	connect("10.244.1.7", "10.244.1.8")
	learned(2, "idle_timeout=65535")
	silent(t, target)
	reach(t, open(t, n), want)
	shorter := withGroups(t, n)
	for id, f := range shorter.Flows.All() {
		if l, ok := f.Actions[0].(flow.Learn); ok {
			l.Timeout = 600
			shorter.Flows.Put(id, &flow.Flow{Key: f.Key, Actions: append([]flow.Action{l}, f.Actions[1:]...)})
		}
	}
	reach(t, target, shorter) // the timeout of existing flows cannot be changed
	learned(0, "nw_src=10.244.1.")
	connect("10.244.1.7", "10.244.1.8", "10.244.1.9", "10.244.1.10")
	learned(3, "idle_timeout=600") // the limit
	for id, f := range shorter.Flows.All() {
		if to, ok := f.Actions[0].(flow.SetGroup); f.Match.Group == 41 || ok && to.ID == 41 {
			shorter.Flows.Delete(id)
		}
	}
	shorter.Groups.Delete(key(41))
	reach(t, target, shorter)
	learned(0, "nw_src=10.244.1.")
	silent(t, target)
}
