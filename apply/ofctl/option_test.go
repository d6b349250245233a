package ofctl_test

import (
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/datapath/ovs"
	"hairpin/lab"
)

// withTunnels returns a bridge of Hairpin's with a tunnel port, and flows of two tunnels.
func withTunnels(t testing.TB, n *lab.Node) ovs.State {
	t.Helper()
	s := rich(t)
	owner := cluster.Owner{Kind: "Node", Name: "node-a"}
	s.Bridges = map[string]ovs.Bridge{"br-tun": {Name: "br-tun", Userspace: n.Datapath() == "netdev", Owner: owner}}
	s.Ports["tunnels"] = ovs.Port{Name: "tunnels", Bridge: "br-tun", Type: "geneve",
		Local: netip.MustParseAddr("172.18.0.3"), Owner: owner}
	s.Ports["tun-int"] = ovs.Port{Name: "tun-int", Bridge: "br-tun", Type: "patch", Peer: "int-tun", Owner: owner}
	s.Ports["int-tun"] = ovs.Port{Name: "int-tun", Bridge: "br-int", Type: "patch", Peer: "tun-int", Owner: owner}
	for _, f := range parse(t, `
cookie=0xdeff105,table=0,priority=100,ip,in_port="tun-int",nw_dst=10.244.1.0/24 actions=set_field:0a:58:64:58:00:03->eth_dst,set_field:0x0->pkt_mark,set_field:0xff0003->tun_id,set_field:0x10002->tun_metadata0,set_field:172.18.0.4->tun_dst,output:tunnels
cookie=0xdeff105,table=0,priority=100,tun_id=0xff0003,tun_src=172.18.0.4,tun_metadata0=0x20001,in_port=tunnels actions=output:"tun-int"
cookie=0xdeff105,table=0,priority=100,tun_id=0xff0003,tun_ipv6_src=fd00::4,tun_metadata0=0x20001,in_port=tunnels actions=set_field:0xff0003->tun_id,set_field:0x10002->tun_metadata0,set_field:fd00::5->tun_ipv6_dst,output:tunnels
`).Flows.All() {
		g := *f
		g.Bridge = "br-tun"
		s.Flows.Put(g.ID(), &g)
	}
	return s
}

// TestTunnels checks that flows with OVN's Geneve option exist, also after ovs-vswitchd lost the
// option, and that a tunnel port is repaired.
func TestTunnels(t *testing.T) {
	n := node(t)
	target := open(t, n)
	want := withTunnels(t, n)
	converge := func(why string) {
		t.Helper()
		err := lab.Poll(ctx(t), 20*time.Millisecond, func() (bool, error) {
			have, err := target.Read(ctx(t))
			if err != nil {
				return false, nil // ovs-vswitchd starts
			}
			d := ovs.Diff(want, have)
			if d.Empty() {
				return true, nil
			}
			_ = target.Apply(ctx(t), d)
			return false, nil
		})
		if err != nil {
			t.Fatalf("%s: %v: %+v", why, err, ovs.Diff(want, read(t, target)))
		}
	}
	converge("at first")
	sh(t, n, `ovs-vsctl set Interface tunnels options:remote_ip=172.18.0.9`)
	if d := ovs.Diff(want, read(t, target)); len(d.Ports.Change) != 1 {
		t.Errorf("a port with another end differs by %+v", d)
	}
	converge("another end")
	if got := sh(t, n, `ovs-vsctl get Interface tunnels options`); !strings.Contains(got, "remote_ip=flow") {
		t.Errorf("the port has %s", got)
	}
	sh(t, n, `ovs-ofctl -O OpenFlow15 del-flows br-tun; ovs-ofctl del-tlv-map br-tun`)
	converge("without flows and the option")
	if err := n.Restart(ctx(t), lab.VSwitchd, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	converge("after a restart of ovs-vswitchd")
}
