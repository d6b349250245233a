package plan_test

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/datapath/nft"
	"hairpin/pipeline"
	"hairpin/plan"
	"hairpin/plan/egress"
)

// TestMovesBetweenBridgeAndLink: a network is that of the gateway bridge on one node and, in mode
// detached, of a link of the host on another. The new node sends packets of unknown connections to
// the old node's address on that network.
func TestMovesBetweenBridgeAndLink(t *testing.T) {
	address, key := netip.MustParseAddr("172.18.0.33"),
		host.AddressKey{Link: "eth0", Prefix: netip.MustParsePrefix("172.18.0.33/32")}
	bridged, linked := node("a", 1, 3), node("b", 2, 4)
	linked.Links = []cluster.HostLink{{Name: "eth0", MAC: cluster.MAC{2, 4}, Addresses: linked.Gateway.Addresses}}
	inMode(linked, cluster.ModeDetached)
	of := func(from, to, node string) datapath.State {
		s := snapshot(bridged, linked, pod("a", "p", "10.244.1.3"))
		e := egressIP("e", 0, address.String())
		e.Assigned = []cluster.Assignment{{Address: address, Node: to}}
		e.Moving = []cluster.Move{{Address: address, From: from, To: to}}
		s.Namespaces, s.EgressIPs = []*cluster.Namespace{{Name: "default"}}, []*cluster.EgressIP{e}
		if !egress.CanShare(s, e, from, to, address) {
			t.Errorf("from %s to %s: the address is not shared", from, to)
		}
		state, problems := plan.Node(s, node)
		if len(problems) > 0 {
			t.Error(problems)
		}
		return state
	}
	ends := []netip.Prefix{bridged.Gateway.Addresses[0]}
	rules := func(s datapath.State) (list []nft.Rule) {
		for _, c := range s.NFT[nft.IP].Chains {
			list = append(list, c.Rules...)
		}
		return list
	}

	old := of("b", "a", "b")
	if _, there := old.Host.Addresses[key]; there || len(rules(old)) != 3 ||
		rules(old)[1].Do != (nft.Dup{To: ends[0].Addr(), Device: "eth0"}) {
		t.Errorf("the host that had it: %+v, %+v", old.Host.Addresses, rules(old))
	}
	late := of("a", "b", "b")
	if r := rules(late); len(r) != 3 || r[1].Do != (nft.Dup{To: ends[0].Addr(), Device: "eth0"}) {
		t.Errorf("the host that gets it: %+v", r)
	}
	if _, there := late.Host.Addresses[key]; !there {
		t.Error("the host that gets it has it not")
	}
	sent := 0
	for _, f := range of("b", "a", "a").Bridge.Flows.All() {
		for _, do := range f.Actions {
			if do == (flow.SetEthDst{MAC: cluster.MAC{2, 4}}) {
				sent++
			}
		}
	}
	if sent != 2 {
		t.Errorf("the bridge that gets it sends on with %d flows, not 2", sent)
	}
}

// TestEndsForOthers: if no node gets an address, its old node still translates for other nodes'
// pods, but its own pods leave as without it. While an address moves, the two nodes drop packets to
// the address itself that would leave them: these would loop.
func TestEndsForOthers(t *testing.T) {
	a, b := node("node-a", 1, 3), node("node-b", 2, 4)
	s := snapshot(a, b, pod("node-a", "p", "10.244.1.3"), pod("node-b", "q", "10.244.2.3"))
	s.Namespaces = []*cluster.Namespace{{Name: "default"}}
	e := egressIP("e", 0, "172.18.0.33")
	address := e.Addresses[0]
	e.Moving = []cluster.Move{{Address: address, From: "node-a"}}
	s.EgressIPs = []*cluster.EgressIP{e}
	state, _ := plan.Node(s, "node-a")
	all := text(state, nil)
	for _, want := range []string{"lr-nat-add GR_node-a snat 172.18.0.33", "egressip_e_ip4 addresses=10.244.2.3 "} {
		if !strings.Contains(all, want) {
			t.Errorf("there is no %q", want)
		}
	}
	for _, never := range []string{"lr-policy-add ovn_cluster_router 100 ", "_here"} {
		if strings.Contains(all, never) {
			t.Errorf("pods are still led, or what ends moves: %q", never)
		}
	}

	e.Moving[0].To = "node-b"
	e.Assigned = []cluster.Assignment{{Address: address, Node: "node-b"}}
	for _, n := range []string{"node-a", "node-b"} {
		state, _ := plan.Node(s, n)
		ends := 0
		for _, f := range state.Bridge.Flows.All() {
			m := f.Key
			if m.Table == 0 && m.Match.Dst == netip.PrefixFrom(address, 32) && m.Match.InPort != "" &&
				reflect.DeepEqual(f.Actions, []flow.Action{flow.Drop{}}) {
				ends++
			}
		}
		if ends != 2 {
			t.Errorf("on %s, %d flows end what comes from the host and from OVN, not 2", n, ends)
		}
	}
}

// TestEarly: while the new node's OVN may not translate yet, the node sends all packets from the
// uplink to the address to the old node, except those that the old node sent back.
func TestEarly(t *testing.T) {
	a, b := node("node-a", 1, 3), node("node-b", 2, 4)
	s := snapshot(a, b)
	e := egressIP("e", 0, "172.18.0.33")
	e.Assigned = []cluster.Assignment{{Address: e.Addresses[0], Node: "node-a"}}
	s.EgressIPs = []*cluster.EgressIP{e}
	for _, c := range []struct {
		node    string
		early   bool
		sent    int
		tracked int
	}{{"node-b", true, 1, 1}, {"node-b", false, 0, 0}, {"node-a", true, 0, 0}} {
		e.Moving = []cluster.Move{{Address: e.Addresses[0], From: "node-a", To: "node-b", Early: c.early}}
		state, _ := plan.Node(s, c.node)
		sent, tracked := 0, 0
		for _, f := range state.Bridge.Flows.All() {
			m := f.Match
			if f.Table != pipeline.GatewayClassifier || m.InPort != "eth0" ||
				m.Dst != netip.PrefixFrom(e.Addresses[0], 32) {
				continue
			}
			if slices.Contains(f.Actions, flow.Action(flow.SetEthDst{MAC: a.Gateway.MAC})) &&
				m.EthSrc == (cluster.MAC{}) {
				sent++
			}
			if _, ct := f.Actions[0].(flow.CT); ct && m.EthSrc == a.Gateway.MAC {
				tracked++
			}
		}
		if sent != c.sent || tracked != c.tracked {
			t.Errorf("%s, early %v: %d flows send all on, %d take what came back, not %d and %d", c.node, c.early, sent,
				tracked, c.sent, c.tracked)
		}
	}
}
