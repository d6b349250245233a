package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"hairpin/apply"
	"hairpin/apply/ofctl"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/ovs"
	"hairpin/lab"
	"hairpin/plan"
)

// A node without an agent: pods on br-svc, with the flows that plan computes for them, and OVN
// behind it, which has no Service.
const (
	flowsAddress = "172.18.0.5"
	flowsSix     = "fc00:f853:ccd::5"
	flowsPods    = "10.244.3.0/24"
	flowsPods6   = "fd00:10:244:3::/64"
)

// flowsPlugin is a CNI plugin that gives pod number n the addresses 10.244.3.n and fd00:10:244:3::n
// and a port vethn of the bridge. With Open vSwitch's userspace datapath, the kernel computes
// checksums, because it cannot offload them.
const flowsPlugin = `#!/bin/sh
set -e
[ "$CNI_COMMAND" = ADD ] || exit 0
last=1; [ ! -e /run/last ] || last=$(cat /run/last)
n=$((last + 1)); echo $n >/run/last
ns=${CNI_NETNS##*/} mac=0a:58:0a:f4:03:0$n
ip link add veth$n mtu 1400 type veth peer name eth0 mtu 1400 address $mac netns $ns
echo 1 >/proc/sys/net/ipv6/conf/veth$n/disable_ipv6
ip link set veth$n up
ip -n $ns addr add 10.244.3.$n/24 dev eth0
ip -n $ns addr add fd00:10:244:3::$n/64 dev eth0 nodad
ip -n $ns link set eth0 up
ip -n $ns route add default via 10.244.3.1
ip -n $ns route add default via fd00:10:244:3::1
if [ "$(ovs-vsctl get Bridge ` + claims.ServiceBridge + ` datapath_type)" = netdev ]; then
	ethtool -K veth$n tx off >/dev/null
	ip netns exec $ns ethtool -K eth0 tx off >/dev/null
fi
ovs-vsctl add-port ` + claims.ServiceBridge + ` veth$n
echo '{"cniVersion":"1.1.0","ips":[{"address":"10.244.3.'$n'/24"},{"address":"fd00:10:244:3::'$n'/64"}]}'
`

// flowsNode is the initial configuration of a node's daemons.
const flowsNode = `set -e
chmod +x /opt/cni/bin/flows
ovn-nbctl ls-add node-f -- lr-add router -- \
	lrp-add router to-switch 0a:58:0a:f4:03:01 10.244.3.1/24 fd00:10:244:3::1/64 -- lsp-add node-f to-router -- \
	lsp-set-type to-router router -- lsp-set-addresses to-router router -- lsp-set-options to-router router-port=to-switch -- \
	lsp-add node-f pods-node-f -- lsp-set-addresses pods-node-f "0a:58:0a:f4:03:02 10.244.3.2 fd00:10:244:3::2" \
	"0a:58:0a:f4:03:03 10.244.3.3 fd00:10:244:3::3"
ovs-vsctl set Open_vSwitch . external_ids:ovn-remote=unix:/run/ovn/ovnsb_db.sock external_ids:ovn-encap-type=geneve \
	external_ids:ovn-encap-ip=` + flowsAddress + ` external_ids:ovn-enable-lflow-cache=false -- \
	--may-exist add-br br-int -- set Bridge br-int fail_mode=secure datapath_type=$1
`

// flows returns a node that serves Services by flows and groups, and has none yet.
func (w *world) flows(ctx context.Context) (*side, error) {
	node, err := w.lab.StartNode(ctx, lab.NodeConfig{
		Name: "node-f", Addresses: prefixes(flowsAddress+"/16", flowsSix+"/64"),
		Files: map[string]string{
			"/opt/cni/bin/flows":         flowsPlugin,
			"/etc/cni/net.d/10.conflist": `{"cniVersion": "1.1.0", "name": "flows", "plugins": [{"type": "flows"}]}`,
		},
	})
	if err != nil {
		return nil, err
	}
	s := &side{name: "flows", node: node, program: lab.VSwitchd}
	s.ready = func(ctx context.Context) error {
		_, err := node.Exec(ctx, "ovn-nbctl", "--wait=hv", "--timeout",
			fmt.Sprint(int(w.patience(3*time.Second).Seconds())), "sync")
		return err
	}
	s.addPod = func(ctx context.Context, name string) (*lab.Pod, error) {
		return node.AddPod(ctx, lab.PodConfig{Namespace: namespace, Name: name, UID: name})
	}
	if _, err = node.Exec(ctx, "sh", "-c", flowsNode, "sh", node.Datapath()); err != nil {
		return nil, err
	}
	return s, s.flows(ctx)
}

// flowsPort returns the bridge port that the plugin creates for a pod of a side.
func flowsPort(pod int) string { return fmt.Sprintf("veth%d", 2+pod) }

// flowsOwner returns a pod as in the plan.
func flowsOwner(p *lab.Pod) cluster.Owner {
	return cluster.Owner{Kind: "Pod", Namespace: namespace, Name: p.Name()}
}

// snapshot returns a node with its pods, and Services.
func (s *side) snapshot(list []*cluster.Frontend) *cluster.Snapshot {
	on := prefixes(flowsAddress+"/16", flowsSix+"/64")
	node := &cluster.Node{Name: s.node.Name(), ID: 1, Addresses: []netip.Addr{on[0].Addr(), on[1].Addr()},
		PodCIDRs: prefixes(flowsPods, flowsPods6),
		Gateway: cluster.Gateway{Bridge: lab.GatewayBridge, Uplink: "eth0", MAC: cluster.MACFor(on[0].Addr()),
			Addresses: on, Userspace: s.node.Datapath() == "netdev", OpenFlow: true}}
	snapshot := &cluster.Snapshot{Config: cluster.DefaultConfig(), Nodes: []*cluster.Node{node}, Frontends: list}
	for i, p := range s.pods {
		if p != nil {
			snapshot.Pods = append(snapshot.Pods,
				&cluster.Pod{Owner: flowsOwner(p), Node: node.Name, IPs: p.IPs(), MAC: cluster.MACFor(p.IPs()[0]),
					Port: flowsPort(i)})
		}
	}
	return snapshot
}

// onServiceBridge returns the part of a State on claims.ServiceBridge.
func onServiceBridge(s ovs.State) ovs.State {
	name := claims.ServiceBridge
	on := ovs.State{Bridges: map[string]ovs.Bridge{name: s.Bridges[name]}, Groups: s.Groups,
		Ports: maps.Clone(s.Ports), Flows: s.Flows.Clone()}
	maps.DeleteFunc(on.Ports, func(_ string,
		p ovs.Port) bool {
		return p.Bridge != name && s.Ports[p.Peer].Bridge != name
	})
	for id, f := range s.Flows.All() {
		if f.Bridge != name {
			on.Flows.Delete(id)
		}
	}
	return on
}

// flows installs the flows of a node's pods, and those of Services.
func (s *side) flows(ctx context.Context, list ...*cluster.Frontend) error {
	state, problems := plan.Node(s.snapshot(list), s.node.Name())
	if len(problems) > 0 {
		return problems[0]
	}
	want := onServiceBridge(state.Bridge)
	target, err := ofctl.Open(ofctl.Config{Bridge: lab.GatewayBridge, Path: s.node.Path, Command: s.node.Command})
	if err != nil {
		return err
	}
	defer target.Close()
	for {
		have, err := target.Read(ctx)
		if err != nil {
			return err
		}
		err = target.Apply(ctx, ovs.Diff(want, have))
		var waiting *apply.Waiting
		if !errors.As(err, &waiting) {
			return err
		}
		select {
		case <-target.Changed(): // a port got its number
		case <-ctx.Done():
			return err
		}
	}
}

// frontend returns a port of a Service.
func frontend(service string, vip netip.AddrPort, endpoints ...netip.AddrPort) *cluster.Frontend {
	f := &cluster.Frontend{Owner: cluster.Owner{Kind: "Service", Namespace: namespace, Name: service},
		PortName: fmt.Sprint(vip.Port()),
		Family:   cluster.FamilyOf(vip.Addr()), Protocol: cluster.TCP, ClusterIP: vip.Addr(), Port: vip.Port()}
	for _, e := range endpoints {
		f.Backends = append(f.Backends, cluster.Backend{Addr: e.Addr(), Port: e.Port(), Ready: true})
	}
	return f
}
