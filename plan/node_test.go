package plan_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/datapath/ovs"
	"hairpin/plan"
	env "hairpin/plan/node"
)

// A Problem reports what the node itself lacks, with the object and the field, and there is no
// State to apply.
func TestNodeThatCannotBePlanned(t *testing.T) {
	for _, c := range []struct {
		name  string
		wreck func(*cluster.Snapshot, *cluster.Node)
		want  string
	}{
		{"unknown", func(s *cluster.Snapshot, n *cluster.Node) { n.Name = "other" },
			"Node/node-a: there is no such Node"},
		{"no number", func(s *cluster.Snapshot, n *cluster.Node) { n.ID = 0 },
			"Node/node-a: metadata.annotations[k8s.ovn.org/node-id]: the node has no node ID yet"},
		{"no pods", func(s *cluster.Snapshot, n *cluster.Node) { n.PodCIDRs = nil },
			"Node/node-a: spec.podCIDRs: the node has no pod CIDR"},
		{"no address", func(s *cluster.Snapshot, n *cluster.Node) { n.Addresses = nil },
			"Node/node-a: status.addresses: the node has no InternalIP"},
		{"no MAC", func(s *cluster.Snapshot, n *cluster.Node) { n.Gateway.MAC = cluster.MAC{} },
			"Node/node-a: metadata.annotations[k8s.ovn.org/l3-gateway-config]: mac-address: the gateway bridge has none"},
		{"no uplink", func(s *cluster.Snapshot, n *cluster.Node) { n.Gateway.Uplink = "" },
			"Node/node-a: metadata.annotations[k8s.ovn.org/l3-gateway-config]: uplink: mode shared needs one, " +
				"bridge breth0 has none"},
		{"no gateway address", func(s *cluster.Snapshot, n *cluster.Node) { n.Gateway.Addresses = nil },
			"Node/node-a: metadata.annotations[k8s.ovn.org/l3-gateway-config]: ip-addresses: the " +
				"gateway bridge has none"},
		{"unknown mode", func(s *cluster.Snapshot, n *cluster.Node) {
			s.Config.Gateway.Mode, n.Gateway.Mode = "nearby", ""
		}, `Node/node-a: [gateway] mode: "nearby" is not a gateway mode: shared, local or detached`},
		{"local without uplink", func(s *cluster.Snapshot, n *cluster.Node) {
			n.Gateway.Mode, n.Gateway.Uplink = cluster.ModeLocal, ""
		},
			"Node/node-a: metadata.annotations[k8s.ovn.org/l3-gateway-config]: uplink: mode local needs one, " +
				"bridge breth0 has none"},
		{"detached without an address", func(s *cluster.Snapshot, n *cluster.Node) {
			inMode(n, cluster.ModeDetached)
			n.Gateway.Addresses, n.PodCIDRs = n.Gateway.Addresses[:1], n.PodCIDRs[1:]
		},
			"Node/node-a: [gateway] advertise-address: has no IPv6 address for the gateway bridge, but " +
				"spec.podCIDRs has a range"},
		{"detached with uplink", func(s *cluster.Snapshot, n *cluster.Node) {
			n.Gateway.Mode = cluster.ModeDetached
		},
			"Node/node-a: metadata.annotations[k8s.ovn.org/l3-gateway-config]: uplink: mode detached has none, but " +
				"eth0 is a port of bridge breth0"},
		{"pods elsewhere", func(s *cluster.Snapshot, n *cluster.Node) {
			n.PodCIDRs = []netip.Prefix{prefix("10.99.0.0/24")}
		}, "Node/node-a: spec.podCIDRs: 10.99.0.0/24 is not within [default] cluster-subnets"},
		{"small masquerade subnet", func(s *cluster.Snapshot, n *cluster.Node) {
			n.PodCIDRs = n.PodCIDRs[:1]
			s.Config.Gateway.MasqueradeSubnets = []netip.Prefix{prefix("169.254.169.0/30")}
		}, "Node/node-a: [gateway] v4-masquerade-subnet: 169.254.169.0/30 has no address number 4"},
		{"small join subnet", func(s *cluster.Snapshot, n *cluster.Node) {
			n.ID, n.PodCIDRs = 300, n.PodCIDRs[:1]
			s.Config.JoinSubnets = []netip.Prefix{prefix("100.64.0.0/24")}
		}, "Node/node-a: [gateway] v4-join-subnet: 100.64.0.0/24 has no address number 301"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := node("node-a", 1, 3)
			s := snapshot(n, node("node-b", 2, 4), frontend("a", "10.96.0.1:80", 0, "10.244.2.3:8080"))
			c.wreck(s, n)
			p := plan.NewPlanner()
			state, problems := p.Node(s, "node-a")
			if state.NB != nil || state.Bridge.Flows.Len() > 0 || len(state.Host.Routes) > 0 || state.NFT != nil {
				t.Error("a node that cannot be planned has a State")
			}
			if len(problems) == 0 || problems[0].Error() != c.want {
				t.Errorf("problems are %v, want first %s", problems, c.want)
			}
			if c.name == "unknown" || c.name == "other mode" || strings.HasPrefix(c.name, "small") {
				return
			}
			// The other node is planned, without the broken one if that is unreachable.
			if state, _ := p.Node(s, "node-b"); state.NB == nil {
				t.Error("the other node has no State")
			}
		})
	}
}

// If the node lacks one IP version, it still has the other.
func TestNodeWithoutOneFamily(t *testing.T) {
	n := node("node-a", 1, 3)
	n.Gateway.Addresses = n.Gateway.Addresses[:1]
	state, problems := plan.Node(snapshot(n, frontend("a", "10.96.0.1:80", 0), frontend("a", "[fd00:10:96::1]:80", 0)),
		"node-a")
	if len(problems) != 1 || !strings.Contains(problems[0].Message, "no IPv6 address") {
		t.Errorf("problems are %v", problems)
	}
	if state.NB[nb.Key{Table: nb.TableLoadBalancer, Name: "default/a:/tcp/IPv4"}] == nil {
		t.Error("the IPv4 Service is not served")
	}
	if state.NB[nb.Key{Table: nb.TableLoadBalancer, Name: "default/a:/tcp/IPv6"}] != nil {
		t.Error("the IPv6 Service has a row, and nobody has IPv6")
	}
}

// TestAdvertisedPrefix adds a lower address to the gateway bridge, as the kernel does when a router
// advertises a prefix. Pods must still leave by the InternalIP: replies to another address may not
// arrive.
func TestAdvertisedPrefix(t *testing.T) {
	for _, mode := range cluster.ModeNames() {
		n := node("node-a", 1, 3)
		inMode(n, mode)
		first := n.Gateway.Addresses
		n.Gateway.Addresses = []netip.Prefix{first[0], prefix("2001:db8:77::3/64"), first[1]}
		n.HostAddresses = append(slices.Clone(n.HostAddresses), prefix("2001:db8:77::3/64"))
		e, problems, ok := env.NewEnv(snapshot(n, node("node-b", 2, 4)), "node-a")
		if !ok || len(problems) > 0 {
			t.Fatalf("mode %s: %v", mode, problems)
		}
		if got := e.Stack(cluster.IPv6); got.Address != first[1] && mode != cluster.ModeDetached ||
			got.Node != n.Addresses[1] {
			t.Errorf("mode %s: the gateway router has %s, the node %s; want %s and %s", mode, got.Address, got.Node,
				first[1], n.Addresses[1])
		}
	}
}

// The userspace datapath gets the MACs of tunnel ends on its own link.
func TestTunnelNeighbors(t *testing.T) {
	a, b, far := node("node-a", 1, 3), node("node-b", 2, 4), node("node-c", 3, 5)
	far.Addresses = []netip.Addr{addr("192.0.2.5")}
	a.Gateway.Userspace = true
	state, problems := plan.Node(snapshot(a, b, far), "node-a")
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if got := state.Bridge.TunnelNeighbors; len(got) != 1 || got[addr("172.18.0.4")] != b.Gateway.MAC {
		t.Errorf("tunnel neighbours are %v, want node-b's only", got)
	}
	detached := node("node-b", 2, 4)
	inMode(detached, cluster.ModeDetached)
	detached.Gateway.DeviceMAC = cluster.MAC{2, 0x42, 1, 2, 3, 4}
	if state, _ := plan.Node(snapshot(a, detached),
		"node-a"); state.Bridge.TunnelNeighbors[addr("172.18.0.4")] != detached.Gateway.DeviceMAC {
		t.Errorf("tunnel neighbours are %v, want node-b's device", state.Bridge.TunnelNeighbors)
	}
	a.Gateway.Userspace = false
	if state, _ := plan.Node(snapshot(a, b), "node-a"); len(state.Bridge.TunnelNeighbors) > 0 {
		t.Error("the kernel datapath resolves tunnel ends itself")
	}
	a.Gateway.Userspace = true
	b.Gateway.MAC = cluster.MAC{}
	state, problems = plan.Node(snapshot(a, b), "node-a")
	if len(problems) != 1 || problems[0].Owner != (cluster.Owner{Kind: "Node", Name: "node-b"}) {
		t.Errorf("problems are %v, want one of node-b", problems)
	}
	if !strings.Contains(ovs.Print(state.Bridge), "tun_src=172.18.0.4") {
		t.Error("node-b is left out, and its tunnel works without its Ethernet address")
	}
}

// The kernel sees the frames of a userspace switch's ports. It must ignore them, those of the
// uplink and those of pods.
func TestKernelIgnoresUserspaceFrames(t *testing.T) {
	for _, userspace := range []bool{false, true} {
		a := node("node-a", 1, 3)
		a.Gateway.Userspace = userspace
		state, _ := plan.Node(snapshot(a), "node-a")
		pods := state.NFT[nft.Inet].Chains["pods"]
		if uplink := state.NFT[nft.Netdev]; (uplink != nil) != userspace || (pods != nil) != userspace {
			t.Errorf("userspace %v: chain of the uplink %v, of pods %v", userspace, uplink, pods)
		}
		if userspace && (pods.Hook != "prerouting" ||
			!slices.Equal(pods.Rules[0].Matches, []nft.Match{nft.InInterface{Name: "hairpin*"}})) {
			t.Errorf("chain of pods: %+v", pods)
		}
	}
}

// The highest node ID has addresses and a tunnel key.
func TestHighestNodeID(t *testing.T) {
	state, problems := plan.Node(snapshot(node("node-a", 1, 3), func() *cluster.Node {
		n := node("node-b", 2, 4)
		n.ID = 32767
		return n
	}()), "node-a")
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	text := ovs.Print(state.Bridge)
	for _, want := range []string{
		"dl_dst=0a:58:64:58:80:00 " +
			"actions=set_field:0x0->pkt_mark,set_field:0xff0003->tun_id,set_field:0x17fff->tun_metadata0,set_field:172.18.0.4->tun_dst,output:tunnels",
		"nw_dst=100.64.128.0 ", "ipv6_dst=fd98::8000 ",
		"tun_id=0xff0003,tun_src=172.18.0.4,tun_metadata0=0x7fff0001,in_port=tunnels ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no flow has %s", want)
		}
	}
}

// Open vSwitch keeps every flow of a plan as it is written.
func TestFlowsAreAccepted(t *testing.T) {
	for _, mode := range modes {
		s := large(3, 100, cluster.IPv4, cluster.IPv6)
		for _, n := range s.Nodes {
			inMode(n, mode)
		}
		state, problems := plan.Node(s, "node-000")
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		check(t, state)
	}
}
