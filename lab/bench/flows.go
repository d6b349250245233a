package bench

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"hairpin/apply/ofctl"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/lab"
	"hairpin/plan"
)

// Of the third side, the proof of an engine of OpenFlow: pods on a bridge of their own, whose flows translate what goes to Services with one
// pass of conntrack, and OVN, which has no Service, behind a trunk with a VLAN per pod. It is what the measurement needs: IPv4, pods that
// ask others, no affinity.
const (
	flowsAddress = "172.18.0.5"
	flowsPods    = "10.244.3.0/24"
	flowsBridge  = claims.ServiceBridge
	flowsZone    = claims.ZoneServices
	flowsMark    = 43 // pkt_mark of what was translated and goes to a pod of this node
)

// flowsPlugin is a CNI plugin that gives pod number n the address 10.244.3.n, a port vethn of the bridge and the trunk's VLAN n.
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
ovs-vsctl add-port ` + flowsBridge + ` veth$n
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
	add-port ` + flowsBridge + ` svc-int -- set Interface svc-int type=patch options:peer=int-svc -- \
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

// table collects flows and groups by hand.
type table struct{ flow.State }

func newTable() table {
	return table{flow.State{Bridge: flowsBridge, Flows: map[flow.Key]*flow.Flow{}, Groups: map[uint32]*flow.Group{}}}
}

func (t table) add(number uint8, priority uint16, m flow.Match, actions ...flow.Action) {
	k := flow.Key{Table: number, Priority: priority, Match: m}
	t.Flows[k] = &flow.Flow{Key: k, Actions: actions}
}

// write adds what was collected to the bridge of a node, whose pods are there: all or nothing.
func (t table) write(ctx context.Context, s *side) error {
	target, err := ofctl.Open(ofctl.Config{Bridge: flowsBridge, Groups: true, Path: s.node.Path, Command: s.node.Command})
	if err != nil {
		return err
	}
	defer target.Close()
	return target.Apply(ctx, flow.Diff(t.State, flow.State{}))
}

// track sends packets of a connection through the zone, and on to a table.
func track(table uint8) flow.CT {
	return flow.CT{Zone: flowsZone, Table: table, NAT: flow.NAT{Kind: flow.NATUndo}}
}

// path adds the flows that do not depend on Services, for pods 2 to last.
func (t table) path(last int) {
	trunk, pods := "svc-int", netip.MustParsePrefix("10.244.0.0/16")
	commit := func(table uint8, nat flow.NAT) flow.CT {
		return flow.CT{Commit: true, Zone: flowsZone, Table: table, NAT: nat}
	}
	state := func(set, clear flow.CTBits) flow.Match {
		return flow.Match{Protocol: flow.IP, CTState: flow.CTState{Set: set | flow.CTTrk, Clear: clear}}
	}
	for n := 2; n <= last; n++ {
		pod, mac, port := single(n), macOf(n), fmt.Sprintf("veth%d", n)
		// OVN's port security would drop answers, which have the Service's address before they come there.
		t.add(0, 110, flow.Match{InPort: port, Protocol: flow.ARP, EthSrc: mac, Src: pod}, flow.Resubmit{Table: 50})
		t.add(0, 110, flow.Match{InPort: port, Protocol: flow.IP, EthSrc: mac, Src: pod}, flow.Resubmit{Table: 1})
		out := flow.Output{Port: port}
		t.add(0, 120, flow.Match{InPort: trunk, VLAN: uint16(n), PktMark: flowsMark}, flow.PopVLAN{}, flow.SetPktMark{}, out)
		t.add(0, 110, flow.Match{InPort: trunk, VLAN: uint16(n), Protocol: flow.IP, EthDst: mac, Src: pods}, flow.PopVLAN{}, track(40))
		t.add(0, 100, flow.Match{InPort: trunk, VLAN: uint16(n)}, flow.PopVLAN{}, out)
		t.add(41, 100, flow.Match{EthDst: mac}, out)
		t.add(50, 100, flow.Match{InPort: port}, flow.PushVLAN{ID: uint16(n)}, flow.Output{Port: trunk})
	}
	t.add(1, 100, flow.Match{Protocol: flow.IP, Dst: netip.MustParsePrefix("10.96.0.0/12")}, track(10))
	t.add(1, 100, flow.Match{Protocol: flow.IP, Dst: pods}, track(11))
	t.add(1, 0, flow.Match{}, flow.Resubmit{Table: 50})
	t.add(10, 130, state(flow.CTDnat, 0), flow.Resubmit{Table: claims.TableServed})
	t.add(10, 120, state(flow.CTRel, flow.CTRpl), commit(claims.TableServed, flow.NAT{Kind: flow.NATUndo}))
	t.add(10, 110, state(flow.CTInv, 0), flow.Drop{})
	t.add(10, 0, flow.Match{}, flow.Resubmit{Table: claims.TableServices})
	// A connection straight to a pod is tracked as well. Else one to a Service with the same source port and endpoint would translate
	// its answers.
	t.add(11, 100, state(flow.CTNew, flow.CTRel), commit(claims.TableServed, flow.NAT{Kind: flow.NATSrc}))
	t.add(11, 0, flow.Match{}, flow.Resubmit{Table: claims.TableServed})
	t.add(claims.TableServices, 0, flow.Match{}, flow.Resubmit{Table: 50})
	t.add(claims.TableServed, 100, flow.Match{Protocol: flow.IP, Dst: netip.MustParsePrefix(flowsPods)}, flow.SetPktMark{Mark: flowsMark}, flow.Resubmit{Table: 50})
	t.add(claims.TableServed, 0, flow.Match{}, flow.Resubmit{Table: 50})
	t.add(40, 100, state(flow.CTNew, flow.CTRel), commit(41, flow.NAT{Kind: flow.NATSrc}))
	t.add(40, 0, flow.Match{}, flow.Resubmit{Table: 41})
}

// services adds those of Services, as a plan has them.
func (t table) services(list ...*cluster.Frontend) error {
	address := netip.MustParsePrefix(flowsAddress + "/16")
	node := &cluster.Node{Name: "node-f", ID: 1, Addresses: []netip.Addr{address.Addr()}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix(flowsPods)},
		Gateway: cluster.Gateway{Bridge: lab.GatewayBridge, Uplink: "eth0", MAC: macOf(1), Addresses: []netip.Prefix{address}}}
	s, problems := plan.ServiceFlows(&cluster.Snapshot{Config: cluster.DefaultConfig(), Nodes: []*cluster.Node{node}, Frontends: list}, node.Name)
	if len(problems) > 0 {
		return problems[0]
	}
	maps.Copy(t.Flows, s.Flows)
	maps.Copy(t.Groups, s.Groups)
	return nil
}

// frontend is a port of a Service.
func frontend(service string, vip netip.AddrPort, endpoints ...netip.AddrPort) *cluster.Frontend {
	f := &cluster.Frontend{Owner: cluster.Owner{Kind: "Service", Namespace: namespace, Name: service}, PortName: fmt.Sprint(vip.Port()),
		Family: cluster.IPv4, Protocol: cluster.TCP, ClusterIP: vip.Addr(), Port: vip.Port()}
	for _, e := range endpoints {
		f.Backends = append(f.Backends, cluster.Backend{Addr: e.Addr(), Port: e.Port(), Ready: true})
	}
	return f
}

func single(n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, 3, byte(n)}), 32)
}

func macOf(n int) cluster.MAC { return cluster.MAC{0x0a, 0x58, 0x0a, 0xf4, 3, byte(n)} }
