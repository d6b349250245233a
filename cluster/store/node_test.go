package store_test

import (
	"net/netip"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"hairpin/cluster"
	"hairpin/cluster/annotation"
)

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func addresses(list ...string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		for _, a := range list {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
		}
	}
}

// good gives a Node all properties that are read, in unsorted order.
func good(n *corev1.Node) {
	n.Labels = map[string]string{"topology.kubernetes.io/zone": "z1"}
	n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: "node-a"},
		corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "192.0.2.1"})
	addresses("fc00::3", "172.18.0.3", "172.18.0.4")(n)
	n.Spec.PodCIDRs = []string{"fd00:10:244:1::/64", "10.244.1.0/24"}
	n.Annotations[annotation.NodeID] = "7"
	n.Annotations[annotation.HostCIDRs] = `["fc00::3/64","172.18.0.3/16","172.20.0.1/16"]`
	n.Annotations[annotation.Gateway] = `{"default":{"mode":"shared","bridge-id":"br-ex","uplink":"eth0","mac-address":"02:42:AC:12:00:03",
		"ip-addresses":["fc00::3/64","172.18.0.3/16"],"next-hops":["fc00::1","172.18.0.1"],"datapath":"netdev","node-port-enable":"true"}}`
}

func wantGood() cluster.Node {
	return cluster.Node{
		Name: "node-a", ID: 7, Zone: "z1",
		Egress:        cluster.NodeEgress{Labels: map[string]string{"topology.kubernetes.io/zone": "z1"}},
		Addresses:     addrs("172.18.0.3", "fc00::3"),
		IPs:           addrs("172.18.0.3", "172.18.0.4", "192.0.2.1", "fc00::3"),
		HostAddresses: prefixes("172.18.0.3/16", "172.20.0.1/16", "fc00::3/64"),
		PodCIDRs:      prefixes("10.244.1.0/24", "fd00:10:244:1::/64"),
		Gateway: cluster.Gateway{
			Mode: "shared", Bridge: "br-ex", Uplink: "eth0", MAC: cluster.MAC{2, 0x42, 0xac, 0x12, 0, 3},
			Userspace: true,
			Addresses: prefixes("172.18.0.3/16", "fc00::3/64"), NextHops: addrs("172.18.0.1", "fc00::1"),
		},
	}
}

func TestNode(t *testing.T) {
	s := storeOf(node("node-a", good)).Snapshot()
	want(t, s)
	if got := s.Node("node-a"); !reflect.DeepEqual(*got, wantGood()) {
		t.Errorf("got  %+v\nwant %+v", *got, wantGood())
	}
	if s.Node("node-b") != nil {
		t.Error("found a Node that is not there")
	}
	n := wantGood()
	if n.Address(cluster.IPv6) != addrs("fc00::3")[0] || n.PodCIDR(cluster.IPv4) != prefixes("10.244.1.0/24")[0] {
		t.Errorf("address %s, pods %s", n.Address(cluster.IPv6), n.PodCIDR(cluster.IPv4))
	}
	if !n.HasAddress(addrs("172.20.0.1")[0]) || n.HasAddress(addrs("172.20.0.2")[0]) {
		t.Error("HasAddress is wrong about 172.20.0.1 or 172.20.0.2")
	}
	var none cluster.Node
	if none.Address(cluster.IPv4).IsValid() || none.PodCIDR(cluster.IPv6).IsValid() {
		t.Error("an empty Node has addresses")
	}
}

func TestNodeWithLittle(t *testing.T) {
	s := storeOf(node("bare"), node("old", addresses("172.18.0.3"),
		func(n *corev1.Node) { n.Spec.PodCIDR = "10.244.1.7/24" })).Snapshot()
	want(t, s)
	if got := *s.Node("bare"); !reflect.DeepEqual(got, cluster.Node{Name: "bare"}) {
		t.Errorf("got %+v", got)
	}
	old := cluster.Node{Name: "old", Addresses: addrs("172.18.0.3"), IPs: addrs("172.18.0.3"),
		HostAddresses: prefixes("172.18.0.3/32"),
		PodCIDRs:      prefixes("10.244.1.0/24")}
	if got := *s.Node("old"); !reflect.DeepEqual(got, old) {
		t.Errorf("got %+v", got)
	}
}

func TestBadNodes(t *testing.T) {
	const id, hosts, gateway = annotation.NodeID, annotation.HostCIDRs, annotation.Gateway
	for _, c := range []struct {
		name string
		edit func(*corev1.Node)
		want []string
	}{
		{"addresses", addresses("172.18.0.03", "::1", ""), []string{
			`Node/n: status.addresses[0].address: "172.18.0.03" is not an IPv4 or IPv6 address in canonical form`,
			`Node/n: status.addresses[1].address: ::1 is a loopback address, which other machines cannot reach`,
			`Node/n: status.addresses[2].address: "" is not an IPv4 or IPv6 address in canonical form`}},
		{"podCIDRs", func(n *corev1.Node) {
			n.Spec.PodCIDRs = []string{"10.244.1.0", "10.244.2.0/24", "10.244.3.0/24", "::ffff:10.0.0.0/120"}
		}, []string{
			`Node/n: spec.podCIDRs[0]: "10.244.1.0" is not an address range`,
			`Node/n: spec.podCIDRs[2]: 10.244.3.0/24 is a second range of its family; the first is used`,
			`Node/n: spec.podCIDRs[3]: "::ffff:10.0.0.0/120" is not an address range`}},
		{"number 0", annotated(id, "0"),
			[]string{`Node/n: metadata.annotations[k8s.ovn.org/node-id]: "0" is not a number from 1 to 32767`}},
		{"number 32768", annotated(id, "32768"),
			[]string{`Node/n: metadata.annotations[k8s.ovn.org/node-id]: "32768" is not a number from 1 to 32767`}},
		{"no number", annotated(id, "seven"),
			[]string{`Node/n: metadata.annotations[k8s.ovn.org/node-id]: "seven" is not a number from 1 to 32767`}},
		{"host addresses", annotated(hosts, `["172.18.0.3","::ffff:1.2.3.4/128","10.0.0.1/8"]`), []string{
			`Node/n: metadata.annotations[k8s.ovn.org/host-cidrs]: "172.18.0.3" is not an address with a prefix length`,
			`Node/n: metadata.annotations[k8s.ovn.org/host-cidrs]: "::ffff:1.2.3.4/128" is not an address with a prefix length`}},
		{"host addresses, no list", annotated(hosts, `{}`), []string{
			`Node/n: metadata.annotations[k8s.ovn.org/host-cidrs]: not a JSON list of strings: json: cannot unmarshal object into Go value of type []string`}},
		{"gateway, no JSON", annotated(gateway, `shared`), []string{
			`Node/n: metadata.annotations[k8s.ovn.org/l3-gateway-config]: not the expected JSON object: invalid character 's' looking for beginning of value`}},
		{"gateway, no default", annotated(gateway, `{"other":{}}`),
			[]string{`Node/n: metadata.annotations[k8s.ovn.org/l3-gateway-config]: has no "default"`}},
		{"gateway parts", annotated(gateway,
			`{"default":{"mode":"shared","mac-address":"02:42","ip-addresses":["172.18.0.3","::ffff:1.2.3.4/96"],"next-hops":["gw"]}}`), []string{
			`Node/n: metadata.annotations[k8s.ovn.org/l3-gateway-config]: ip-addresses: "172.18.0.3" is not an address with a prefix length`,
			`Node/n: metadata.annotations[k8s.ovn.org/l3-gateway-config]: ip-addresses: "::ffff:1.2.3.4/96" is not an address with a prefix length`,
			`Node/n: metadata.annotations[k8s.ovn.org/l3-gateway-config]: mac-address: "02:42" is not a MAC address`,
			`Node/n: metadata.annotations[k8s.ovn.org/l3-gateway-config]: next-hops: "gw" is not an IPv4 or IPv6 address in canonical form`}},
		{"gateway MTU", annotated(gateway, `{"default":{"mode":"shared","mtu":65536}}`), []string{
			`Node/n: metadata.annotations[k8s.ovn.org/l3-gateway-config]: mtu: 65536 is not a link's MTU`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := storeOf(node("n", c.edit), node("node-a", good)).Snapshot()
			want(t, s, c.want...)
			if got := s.Node("node-a"); !reflect.DeepEqual(*got, wantGood()) {
				t.Errorf("the other Node became %+v", *got)
			}
			if s.Node("n") == nil {
				t.Error("the Node is gone")
			}
		})
	}
}

func TestPods(t *testing.T) {
	with := func(p *corev1.Pod, edit func(*corev1.Pod)) *corev1.Pod { edit(p); return p }
	s := storeOf(
		pod("b", "node-a", "fd00:10:244::5", "10.244.0.5"), pod("a", "node-b", "fd00:10:244::6"),
		pod("unscheduled", "", "10.244.0.7"), pod("pending", "node-a"),
		with(pod("host", "node-a", "172.18.0.3"), func(p *corev1.Pod) { p.Spec.HostNetwork = true }),
		with(pod("done", "node-a", "10.244.0.8"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
		with(pod("failed", "node-a", "10.244.0.9"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
		pod("bad", "node-a", "10.244.0.010", "127.0.0.1"),
		with(pod("c", "node-a"), func(p *corev1.Pod) { p.Status.PodIP = "10.244.0.10" }),
	)
	want(t, s.Snapshot(),
		`Pod/default/bad: status.podIPs[0].ip: "10.244.0.010" is not an IPv4 or IPv6 address in canonical form`,
		"Pod/default/bad: status.podIPs[1].ip: 127.0.0.1 is a loopback address, which other machines cannot reach")
	p := func(name, node, mac string, ips ...string) cluster.Pod {
		m, err := cluster.ParseMAC(mac)
		if err != nil {
			t.Fatal(err)
		}
		return cluster.Pod{Owner: cluster.Owner{Kind: "Pod", Namespace: "default", Name: name}, UID: "u-1", Node: node,
			MAC: m, IPs: addrs(ips...)}
	}
	wanted := []cluster.Pod{
		p("a", "node-b", "0a:58:00:00:00:06", "fd00:10:244::6"),
		p("b", "node-a", "0a:58:0a:f4:00:05", "10.244.0.5", "fd00:10:244::5"),
		p("c", "node-a", "0a:58:0a:f4:00:0a", "10.244.0.10"),
	}
	var got []cluster.Pod
	for _, p := range s.Snapshot().Pods {
		got = append(got, *p)
	}
	if !reflect.DeepEqual(got, wanted) {
		t.Errorf("got  %+v\nwant %+v", got, wanted)
	}
	if got := s.Snapshot().Pods[1].LogicalPort(); got != "default_b" {
		t.Errorf("port is %s", got)
	}
	finished := pod("b", "node-a", "10.244.0.5")
	finished.Status.Phase = corev1.PodSucceeded
	s.Set(finished)
	s.Delete(pod("c", ""))
	if got := s.Snapshot().Pods; len(got) != 1 || got[0].Owner.Name != "a" {
		t.Errorf("pods are %v", got)
	}
}
