package agent_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"hairpin/lab"
)

// foreign adds other programs' objects beside Hairpin's, in every system.
const foreign = `
ovn-nbctl ls-add foreign -- lb-add foreign 203.0.113.1:80 203.0.113.2:80 -- lr-add foreign -- lr-route-add foreign 203.0.113.0/24 203.0.113.9 \
	-- lsp-add node-a foreign -- lr-route-add ovn_cluster_router 203.0.113.0/24 100.64.0.9 -- lr-policy-add ovn_cluster_router 50 ip4.src==203.0.113.7 drop \
	-- lr-nat-add GR_node-a snat 203.0.113.3 203.0.113.4 -- create Address_Set name=foreign addresses=203.0.113.5 -- set NB_Global . external_ids:foreign=1 \
	-- ls-lb-add node-a foreign
ovs-vsctl add-port br-ex foreign0 -- set Interface foreign0 type=internal -- set Open_vSwitch . external_ids:foreign=1 -- add-br foreign -- set Bridge foreign datapath_type=netdev
ovs-ofctl add-flow br-ex cookie=0x77,table=77,priority=1,ip,nw_dst=203.0.113.0/24,actions=drop
nft 'add table inet foreign; add chain inet foreign c { type filter hook input priority 0; }; add rule inet foreign c ip saddr 203.0.113.6 drop'
ip link add foreign1 type dummy 2>/dev/null || ip link add foreign1 type veth peer name foreign2
ip link set foreign1 up
ip address add 203.0.113.8/32 dev foreign1
ip route add 203.0.113.0/25 dev br-ex proto static
ip route add 203.0.113.128/25 dev br-ex proto static table 77
ip rule add from 203.0.113.0/24 lookup 77 priority 7777
ip neighbor add 203.0.113.10 lladdr 02:00:00:00:00:77 dev br-ex nud permanent
sysctl -qw net.ipv4.conf.foreign1.rp_filter=1`

// foreigners prints them.
const foreigners = `
ovn-nbctl --bare --columns=name,vips find Load_Balancer name=foreign
ovn-nbctl --bare --columns=name find Logical_Switch name=foreign
ovn-nbctl --bare --columns=name,addresses find Address_Set name=foreign
ovn-nbctl --bare --columns=name find Logical_Switch_Port name=foreign
ovn-nbctl ls-lb-list node-a | grep -c foreign
ovn-nbctl lr-route-list foreign | grep 203
ovn-nbctl lr-route-list ovn_cluster_router | grep 203.0.113
ovn-nbctl lr-policy-list ovn_cluster_router | grep 203.0.113.7
ovn-nbctl lr-nat-list GR_node-a | grep 203.0.113.3
ovn-nbctl get NB_Global . external_ids:foreign
ovs-vsctl get Open_vSwitch . external_ids:foreign
ovs-vsctl port-to-br foreign0
ovs-vsctl br-exists foreign
ovs-ofctl --no-stats dump-flows br-ex cookie=0x77/-1
nft list table inet foreign
ip -o address show dev foreign1 | grep -o 203.0.113.8/32
ip route show 203.0.113.0/25
ip route show table 77
ip rule show priority 7777
ip neighbor show 203.0.113.10
sysctl net.ipv4.conf.foreign1.rp_filter`

// alteration is a change of Hairpin's objects.
type alteration struct{ system, script string }

// balancerAlterations change objects that only service-engine = ovn has.
func balancerAlterations() []alteration {
	const lb = `lb=$(ovn-nbctl --no-headings lb-list | grep 'tcp *10.96.1.1:80 ' | cut -d' ' -f1); `
	const ovn, kernel = "ovn", "host"
	return []alteration{
		{ovn, lb + `ovn-nbctl destroy Load_Balancer $lb`},
		{ovn, lb + `ovn-nbctl set Load_Balancer $lb 'vips:"10.96.1.1:80"="203.0.113.1:80"'`},
		{ovn, lb + `ovn-nbctl clear Load_Balancer $lb vips`},
		{ovn, lb + `ovn-nbctl clear Load_Balancer $lb options -- set Load_Balancer $lb selection_fields=ip_src`},
		{ovn, lb + `ovn-nbctl remove Load_Balancer $lb external_ids k8s.ovn.org/owner`},
		{ovn,
			`ovn-nbctl clear Logical_Switch node-a load_balancer_group -- clear Logical_Router GR_node-a load_balancer_group`},
		{ovn, `ovn-nbctl lr-nat-del GR_node-a snat 0.0.0.0/0`},
		{ovn, `ovn-nbctl lsp-del default_pod-a1`},
		{ovn, `ovn-nbctl lsp-set-addresses default_pod-a1 02:00:00:00:00:01`},
		{ovn, `ovn-nbctl lsp-set-enabled default_pod-a1 disabled`},
		{kernel, `ip route replace 10.96.0.0/16 via 169.254.169.4 dev br-ex proto 85 src 172.18.0.3 mtu 1200`},
		{kernel, `ip address del 169.254.169.2/29 dev br-ex`},
		{kernel, `ip -6 address del fd69::2/125 dev br-ex`},
		{kernel, `ip neighbor del 169.254.169.4 dev br-ex`},
	}
}

// deviceAlterations remove devices of Open vSwitch's ports. Those of the kernel datapath cannot be
// deleted.
func deviceAlterations(n *lab.Node) (list []alteration) {
	for _, link := range []string{"ovn-k8s-mp0", "svc-host"} {
		scripts := []string{
			`ip link set NAME down; ip link set NAME name renamed`,
			`ip netns add elsewhere 2>/dev/null || true; ip link set NAME netns elsewhere`,
		}
		if n.Datapath() == "netdev" {
			scripts = append(scripts, `ip link delete NAME`)
		}
		for _, script := range scripts {
			list = append(list, alteration{"host", strings.ReplaceAll(script, "NAME", link)})
		}
	}
	return list
}

// alterations change objects that every node has.
func alterations() []alteration {
	const ovn, ovs, nft, kernel = "ovn", "openvswitch", "nft", "host"
	const group = `g=$(ovs-ofctl -O OpenFlow15 dump-groups br-svc | grep -o 'group_id=[0-9]*' | head -1); `
	return []alteration{
		{ovs, group + `ovs-ofctl -O OpenFlow15 del-groups br-svc $g`},
		{ovs, group + `ovs-ofctl -O OpenFlow15 mod-group br-svc $g,type=select,bucket=bucket_id:1,actions=drop`},
		{ovs, `ovs-ofctl -O OpenFlow15 add-group br-svc group_id=9,type=select,bucket=bucket_id:1,actions=drop`},
		{ovs, `ovs-ofctl -O OpenFlow15 del-groups br-svc`},
		{ovs, `ovs-ofctl -O OpenFlow15 del-flows br-svc tcp,nw_dst=10.96.1.1,tp_dst=80`},
		{ovs, `ovs-ofctl del-flows br-svc`},
		{ovs, `ovs-vsctl del-port br-svc svc-host`},
		{ovn, `ovn-nbctl lr-route-del ovn_cluster_router 10.244.0.0/16`},
		{ovn,
			`ovn-nbctl --policy=src-ip lr-route-add ovn_cluster_router 10.244.0.0/16 100.64.0.99 || ovn-nbctl --may-exist --policy=src-ip lr-route-add ovn_cluster_router 10.244.0.0/16 100.64.0.99`},
		{ovn, `ovn-nbctl lr-policy-del ovn_cluster_router 1004`},
		{ovn, `ovn-nbctl lsp-del pods-node-a`},
		{ovn, `ovn-nbctl lsp-set-addresses pods-node-a 02:00:00:00:00:01`},
		{ovn, `ovn-nbctl lsp-set-enabled pods-node-a disabled`},
		{ovn, `ovn-nbctl lsp-del others-node-a`},
		{ovn, `ovn-nbctl lsp-set-addresses others-node-a 02:00:00:00:00:01`},
		{ovn, `ovn-nbctl ls-del join`},
		{ovn, `ovn-nbctl set Logical_Router_Port rtoj-GR_node-a networks=100.64.0.9/16`},
		{ovn, `ovn-nbctl remove Logical_Router GR_node-a options chassis`},
		{ovn, `ovn-nbctl --all destroy Static_MAC_Binding`},
		{ovn, `ovn-nbctl set NB_Global . name=other`},
		{ovs, `ovs-ofctl del-flows br-ex cookie=0xdeff105/0xffffffff`},
		{ovs, `ovs-ofctl del-flows br-ex table=2`},
		{ovs, `ovs-ofctl mod-flows br-ex table=3,actions=drop`},
		{ovs, `ovs-ofctl add-flow br-ex cookie=0xdeff105,table=9,priority=9,actions=drop`},
		{ovs, `ovs-ofctl del-flows br-tun`},
		{ovs, `ovs-vsctl del-port br-tun tunnels`},
		{ovs, `ovs-vsctl set Interface tunnels options:remote_ip=172.18.0.99`},
		{ovs, `ovs-vsctl del-port br-int int-tun`},
		{ovs, `ovs-vsctl del-br br-tun`},
		{ovs, `ovs-vsctl del-port br-int ovn-k8s-mp0`},
		{ovs, `ovs-vsctl set Interface ovn-k8s-mp0 external_ids:iface-id=other`},
		{ovs, `ovs-vsctl remove Open_vSwitch . external_ids ovn-bridge-mappings`},
		{ovs, `ovs-vsctl set Open_vSwitch . external_ids:ovn-encap-ip=172.18.0.99`},
		{nft, `nft delete table inet hairpin`},
		{nft, `nft flush chain inet hairpin to-pods`},
		{nft, `nft add rule inet hairpin to-pods counter`},
		{nft, `nft delete element inet hairpin nodeports4 '{ tcp . 30001 }'`},
		{nft, `nft add element inet hairpin nodeports4 '{ tcp . 31999 : 10.96.1.1 . 80 }'`},
		{nft, `nft delete table netdev hairpin`},
		{kernel, `ip route del 10.96.0.0/16`},
		{kernel, `ip route replace 10.96.0.0/16 via 169.254.169.1 dev svc-host proto 85 src 172.18.0.3 mtu 1200`},
		{kernel, `ip route flush proto 85`},
		{kernel, `ip -6 route flush proto 85`},
		{kernel, `ip route add 10.97.0.0/16 dev br-ex proto 85`},
		{kernel, `ip rule add from 10.0.0.0/8 lookup 78 priority 5999`},
		{kernel, `ip address flush dev ovn-k8s-mp0`},
		{kernel, `ip address add 10.244.1.200/24 dev ovn-k8s-mp0`},
		{kernel, `ip neighbor del 169.254.169.1 dev svc-host`},
		{kernel, `ip link set svc-host down`},
		{kernel, `ip neighbor replace fd69::1 lladdr 02:00:00:00:00:01 dev svc-host nud permanent`},
		{kernel, `ip link set ovn-k8s-mp0 down`},
		{kernel, `ip link set ovn-k8s-mp0 mtu 1300`},
		{kernel, `ip link set ovn-k8s-mp0 address 02:00:00:00:00:01`},
		{kernel, `sysctl -qw net.ipv4.ip_forward=0`},
		{kernel, `sysctl -qw net.ipv4.conf.ovn-k8s-mp0.rp_filter=1`},
		{kernel, `sysctl -qw net.ipv4.conf.br-ex.send_redirects=1`},
	}
}

// alterOurs makes each alteration, one after the other, and waits until it is repaired. Objects of
// other programs stay.
func alterOurs(t *testing.T, n *lab.Node, list []alteration) {
	sh(t, n, foreign)
	waitWell(t, n)
	before := sh(t, n, foreigners)
	alterEach(t, n, list)
	sh(t, n, "ovs-vsctl remove Open_vSwitch . other_config flow-restore-wait")
	eventually(t, slack*time.Second, "flow-restore-wait is set again", func() (bool, string) {
		got := strings.TrimSpace(sh(t, n, "ovs-vsctl --if-exists get Open_vSwitch . other_config:flow-restore-wait"))
		return got == `"true"`, got
	})
	if after := sh(t, n, foreigners); after != before {
		t.Errorf("what others have was\n%s\nand is\n%s", before, after)
	}
}

// alterEach makes each alteration, and waits until it is repaired.
func alterEach(t *testing.T, n *lab.Node, list []alteration) {
	slowest := time.Duration(0)
	for _, a := range list {
		t.Run(strings.ReplaceAll(a.script, "/", "∕"), func(t *testing.T) {
			waitWell(t, n)
			drift := part(t, mustReport(t, n), a.system).Drift
			begin := time.Now()
			sh(t, n, a.script)
			eventually(t, slack*time.Second, "the repair",
				func() (bool, string) { return repaired(t, n, a.system, drift) })
			took := time.Since(begin)
			slowest = max(slowest, took)
			t.Logf("%3d ms: %s", took.Milliseconds(), a.script)
		})
	}
	t.Logf("%d alterations, the slowest repaired after %d ms", len(list), slowest.Milliseconds())
}

// repaired reports whether drift of a system was counted and nothing differs any more.
func repaired(t *testing.T, n *lab.Node, system string, drift uint64) (bool, string) {
	r, err := reportOf(t.Context(), n)
	if err != nil {
		return false, err.Error()
	}
	p := part(t, r, system)
	if p.Drift == drift {
		return false, "no drift was counted"
	}
	diff, err := ask(t.Context(), n, "/diff")
	if err != nil {
		return false, err.Error()
	}
	return diff == "", fmt.Sprintf("%d more drift; differences:\n%s", p.Drift-drift, diff)
}
