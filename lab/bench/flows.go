package bench

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"hairpin/lab"
)

// Of the third side, the proof of an engine of OpenFlow: pods on a bridge of their own, whose flows translate what goes to Services with one
// pass of conntrack, and OVN, which has no Service, behind a trunk with a VLAN per pod. It is what the measurement needs: IPv4, pods that
// ask others, no affinity.
const (
	flowsAddress = "172.18.0.5"
	flowsBridge  = "br-svc"
	flowsTrunk   = 1     // the port to br-int
	flowsZone    = 64003 // of conntrack
	flowsMark    = 43    // pkt_mark of what was translated and goes to a pod of this node
)

// flowsPlugin is a CNI plugin that gives pod number n the address 10.244.3.n, a port n of the bridge and the trunk's VLAN n.
// Checksums are made by whom Open vSwitch's userspace datapath cannot leave them to.
const flowsPlugin = `#!/bin/sh
set -e
[ "$CNI_COMMAND" = ADD ] || exit 0
last=1; [ ! -e /run/last ] || last=$(cat /run/last)
n=$((last + 1)); echo $n >/run/last
ns=${CNI_NETNS##*/} mac=0a:58:0a:f4:03:0$n
ip link add veth$n mtu 1400 type veth peer name eth0 mtu 1400 address $mac netns $ns
ip link set veth$n up
ip -n $ns addr add 10.244.3.$n/24 dev eth0
ip -n $ns link set eth0 up
ip -n $ns route add default via 10.244.3.1
if [ "$(ovs-vsctl get Bridge ` + flowsBridge + ` datapath_type)" = netdev ]; then
	ethtool -K veth$n tx off >/dev/null
	ip netns exec $ns ethtool -K eth0 tx off >/dev/null
fi
ovs-vsctl add-port ` + flowsBridge + ` veth$n -- set Interface veth$n ofport_request=$n
ovn-nbctl lsp-add node-f pod$n trunk $n -- lsp-set-addresses pod$n "$mac 10.244.3.$n"
echo '{"cniVersion":"1.1.0","ips":[{"address":"10.244.3.'$n'/24"}]}'
`

// flowsNode is what a node's daemons are told once.
const flowsNode = `set -e
chmod +x /opt/cni/bin/flows
ovn-nbctl ls-add trunks -- lsp-add trunks trunk -- ls-add node-f -- lr-add router -- \
	lrp-add router to-switch 0a:58:0a:f4:03:01 10.244.3.1/24 -- lsp-add node-f to-router -- \
	lsp-set-type to-router router -- lsp-set-addresses to-router router -- lsp-set-options to-router router-port=to-switch
ovs-vsctl set Open_vSwitch . external_ids:ovn-remote=unix:/run/ovn/ovnsb_db.sock external_ids:ovn-encap-type=geneve \
	external_ids:ovn-encap-ip=` + flowsAddress + ` external_ids:ovn-enable-lflow-cache=false -- \
	--may-exist add-br br-int -- set Bridge br-int fail_mode=secure datapath_type=$1 -- \
	add-br ` + flowsBridge + ` -- set Bridge ` + flowsBridge + ` fail_mode=secure datapath_type=$1 -- \
	add-port ` + flowsBridge + ` svc-int -- set Interface svc-int type=patch options:peer=int-svc ofport_request=1 -- \
	add-port br-int int-svc -- set Interface int-svc type=patch options:peer=svc-int external_ids:iface-id=trunk
`

// flows is a node whose Services are flows and groups, of which it has none yet.
func (w *world) flows(ctx context.Context) (*side, error) {
	node, err := w.lab.StartNode(ctx, lab.NodeConfig{
		Name: "node-f", Addresses: prefixes(flowsAddress + "/16"),
		Files: map[string]string{
			"/opt/cni/bin/flows":         flowsPlugin,
			"/etc/cni/net.d/10.conflist": `{"cniVersion": "1.1.0", "name": "flows", "plugins": [{"type": "flows"}]}`,
		},
	})
	if err != nil {
		return nil, err
	}
	s := &side{name: "flows", index: 2, node: node, program: lab.VSwitchd, all: lab.AllDaemons()}
	s.ready = func(ctx context.Context) error {
		_, err := node.Exec(ctx, "ovn-nbctl", "--wait=hv", "--timeout", fmt.Sprint(int(w.patience(3*time.Second).Seconds())), "sync")
		return err
	}
	s.addPod = func(ctx context.Context, name string) (*lab.Pod, error) {
		return node.AddPod(ctx, lab.PodConfig{Namespace: namespace, Name: name, UID: name})
	}
	_, err = node.Exec(ctx, "sh", "-c", flowsNode, "sh", node.Datapath())
	return s, err
}

// bundle gives the node's bridge flows and groups, all or none.
func bundle(ctx context.Context, n *lab.Node, lines []string) error {
	_, err := n.ExecInput(ctx, strings.Join(lines, "\n")+"\n", "ovs-ofctl", "-O", "OpenFlow15", "bundle", flowsBridge, "-")
	return err
}

// pathFlows are the flows that do not depend on Services, for pods 2 to last.
func pathFlows(last int) (lines []string) {
	add := func(format string, args ...any) { lines = append(lines, "flow add "+fmt.Sprintf(format, args...)) }
	lookup := func(table int) string { return fmt.Sprintf("ct(zone=%d,nat,table=%d)", flowsZone, table) }
	for n := 2; n <= last; n++ {
		pod, mac := fmt.Sprintf("10.244.3.%d", n), fmt.Sprintf("0a:58:0a:f4:03:0%d", n)
		// OVN's port security would drop answers, which have the Service's address before they come there.
		add("table=0,priority=110,in_port=%d,arp,dl_src=%s,arp_spa=%s actions=set_field:%d->reg1,goto_table:50", n, mac, pod, n)
		add("table=0,priority=110,in_port=%d,ip,dl_src=%s,nw_src=%s actions=set_field:%d->reg1,goto_table:1", n, mac, pod, n)
		from := fmt.Sprintf("in_port=%d,dl_vlan=%d", flowsTrunk, n)
		add("table=0,priority=120,%s,pkt_mark=%d actions=pop_vlan,set_field:0->pkt_mark,output:%d", from, flowsMark, n)
		add("table=0,priority=110,%s,ip,nw_src=10.244.0.0/16 actions=pop_vlan,set_field:%d->reg2,%s", from, n, lookup(40))
		add("table=0,priority=100,%s actions=pop_vlan,output:%d", from, n)
		add("table=50,reg1=%d actions=push_vlan:0x8100,set_field:%d->vlan_vid,output:%d", n, 0x1000|n, flowsTrunk)
	}
	add("table=1,priority=100,ip,nw_dst=10.96.0.0/12 actions=%s", lookup(10))
	add("table=1,priority=100,ip,nw_dst=10.244.0.0/16 actions=%s", lookup(11))
	add("table=1,priority=0 actions=goto_table:50")
	add("table=10,priority=130,ip,ct_state=+trk+dnat actions=goto_table:30")
	add("table=10,priority=120,ip,ct_state=+trk+rel-rpl actions=ct(commit,zone=%d,nat,table=30)", flowsZone)
	add("table=10,priority=110,ip,ct_state=+trk+inv actions=drop")
	add("table=10,priority=0 actions=goto_table:20")
	// A connection straight to a pod is tracked as well. Else one to a Service with the same source port and endpoint would translate
	// its answers.
	add("table=11,priority=100,ip,ct_state=+trk+new-rel actions=ct(commit,zone=%d,nat(src=0.0.0.0),table=30)", flowsZone)
	add("table=11,priority=0 actions=goto_table:30")
	add("table=20,priority=0 actions=goto_table:50")
	add("table=30,priority=100,ip,nw_dst=10.244.3.0/24 actions=set_field:%d->pkt_mark,goto_table:50", flowsMark)
	add("table=30,priority=0 actions=goto_table:50")
	add("table=40,priority=100,ip,ct_state=+trk+new-rel actions=ct(commit,zone=%d,nat(src=0.0.0.0),table=41)", flowsZone)
	add("table=40,priority=0 actions=goto_table:41")
	add("table=41,priority=0 actions=output:NXM_NX_REG2[]")
	return lines
}

// serviceFlows are those of one Service's port: a group of its endpoints, and the flow that leads there.
func serviceFlows(group int, vip netip.AddrPort, endpoints ...netip.AddrPort) []string {
	var buckets strings.Builder
	for i, e := range endpoints {
		fmt.Fprintf(&buckets, ",bucket=bucket_id:%d,weight:100,actions=ct(commit,zone=%d,table=30,nat(dst=%s))", i, flowsZone, e)
	}
	return []string{
		fmt.Sprintf("group add_or_mod group_id=%d,type=select,selection_method=dp_hash%s", group, &buckets),
		fmt.Sprintf("flow add table=20,priority=200,tcp,nw_dst=%s,tp_dst=%d actions=group:%d", vip.Addr(), vip.Port(), group),
	}
}
