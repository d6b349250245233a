package plan_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/datapath/nft"
	"hairpin/pipeline"
	"hairpin/plan"
	"hairpin/plan/egress"
	plannode "hairpin/plan/node"
	"hairpin/walk"
	"hairpin/walk/packet"
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

// announcedIn returns the example with a load balancer address of each family that node-b has. If
// it moves, it moves to node-c.
func announcedIn(t *testing.T, mode string, flows, moves bool) walk.World {
	t.Helper()
	s := *demoIn(t, mode, flows).Snapshot
	v4, v6 := addr("172.18.0.55"), addr("fc00:f853:ccd::55")
	e := &cluster.EgressIP{Owner: cluster.Owner{Kind: "Service", Namespace: "default", Name: "podlocal"},
		Addresses: []netip.Addr{v4, v6}, Service: &cluster.EgressService{Announced: &cluster.Announcement{}}}
	for _, a := range e.Addresses {
		at := "node-b"
		if moves {
			at = "node-c"
			e.Moving = append(e.Moving, cluster.Move{Address: a, From: "node-b", To: at})
		}
		e.Assigned = append(e.Assigned, cluster.Assignment{Address: a, Node: at})
	}
	s.EgressIPs = []*cluster.EgressIP{e}
	for i, f := range s.Frontends {
		if f.Owner == e.Owner {
			s.Frontends[i] = new(*f)
			s.Frontends[i].LoadBalancerIPs = []netip.Addr{v4}
			if f.Family == cluster.IPv6 {
				s.Frontends[i].LoadBalancerIPs = []netip.Addr{v6}
			}
		}
	}
	for i, n := range s.Nodes {
		if mode == cluster.ModeDetached {
			s.Nodes[i] = new(*n)
			s.Nodes[i].Links = []cluster.HostLink{{Name: "eth0", Index: 2, MAC: cluster.MAC{2, 0, 0, 0, 0, byte(i)},
				Addresses: n.HostAddresses}}
		}
	}
	return worldOf(t, &s)
}

// meets returns the flow that a packet meets in a table.
func meets(s datapath.State, bridge string, table uint8, packet flow.Match) *flow.Flow {
	var best *flow.Flow
	for _, f := range s.Bridge.Flows.All() {
		if f.Bridge == bridge && f.Table == table && f.Match.Matches(&packet, f.Match.Fields()) &&
			(best == nil || f.Priority > best.Priority) {
			best = f
		}
	}
	return best
}

// TestAnnouncedMoves: while a load balancer address moves, the two nodes serve new connections as
// at any time. Each sends later packets of a TCP connection that it does not know to the other,
// except those that the other one sent.
func TestAnnouncedMoves(t *testing.T) {
	for mode, flows := range everyEngine {
		before, now := announcedIn(t, mode, flows, false), announcedIn(t, mode, flows, true)
		for _, to := range now.Snapshot.EgressIPs[0].Addresses {
			for _, protocol := range []cluster.Protocol{cluster.TCP, cluster.UDP} {
				for _, name := range []string{"node-a", "node-b", "node-c"} {
					p := packet.Packet{Protocol: protocol, Dst: to, DstPort: 80,
						Src:    pickFamily(to.Is4(), "172.18.0.100", "fc00:f853:ccd::64"),
						EthDst: walk.ExternalMAC(now.Snapshot.Node(name))}
					want, got := walked(t, before, walk.Point{}, p), walked(t, now, walk.Point{}, p)
					if !got.Verdict.Answered || got.String() != want.String() {
						t.Errorf("%s, flows %v, %s to %s on %s:\n%s", mode, flows, protocol, to, name, got)
					}
				}
			}
			if mode == cluster.ModeDetached {
				copied(t, now, to)
				continue
			}
			if flows && mode == cluster.ModeShared {
				forwarded(t, before, now, to, "", pipeline.GatewayServiceConntrack)
				forwarded(t, before, now, to, claims.ServiceBridge, pipeline.SvcServiceConntrack)
			} else {
				forwarded(t, before, now, to, "", pipeline.GatewayUplinkConntrack)
			}
		}
	}
}

// TestAnnouncedMovesOfThree: three nodes had a load balancer address lately, and one of them seems
// dead. The others forward packets of unknown connections to each other, but not to a node that may
// not have the status yet. They drop those that any of the three sent.
func TestAnnouncedMovesOfThree(t *testing.T) {
	for mode, bridge := range map[string]bool{cluster.ModeShared: true, cluster.ModeDetached: false} {
		w := announcedIn(t, mode, true, true)
		e := w.Snapshot.EgressIPs[0]
		for _, a := range e.Addresses {
			e.Moving = append(e.Moving, cluster.Move{Address: a, From: "node-a", To: "node-c"})
		}
		for _, lost := range []string{"", "node-a", "node-c early"} {
			for i := range e.Moving {
				e.Moving[i].Lost = e.Moving[i].From == lost
				e.Moving[i].Early = e.Moving[i].To+" early" == lost
			}
			for _, n := range w.Snapshot.Nodes {
				var to, drops []string
				state, _ := plan.Node(w.Snapshot, n.Name)
				if bridge {
					to, drops = peerFlows(state, w.Snapshot)
				} else {
					to, drops = peerRules(state, w.Snapshot)
				}
				var peers []string
				for _, p := range w.Snapshot.Nodes {
					if p.Name != n.Name {
						peers = append(peers, p.Name)
					}
				}
				want := slices.DeleteFunc(slices.Clone(peers),
					func(p string) bool { return strings.HasPrefix(lost, p) })
				if !slices.Equal(to, want) || !slices.Equal(drops, peers) {
					t.Errorf("%s on %s, but %q: forwarded to %q, not %q; dropped from %q", mode, n.Name, lost, to,
						want, drops)
				}
			}
		}
	}
}

// peerFlows returns the nodes to which one flow for 172.18.0.55 forwards packets, and those from
// which flows of its table drop them.
func peerFlows(state datapath.State, s *cluster.Snapshot) (to, drops []string) {
	for _, n := range s.Nodes {
		for _, f := range state.Bridge.Flows.All() {
			if f.Bridge != claims.ServiceBridge || f.Table != pipeline.SvcServiceConntrack ||
				f.Match.TCPFlags != flow.NoSYN || f.Match.Dst != netip.MustParsePrefix("172.18.0.55/32") ||
				f.Match.CTState.Set&flow.CTNew == 0 {
				continue
			}
			if slices.Contains(f.Actions, flow.Action(flow.SetEthDst{MAC: n.Gateway.MAC})) {
				to = append(to, n.Name)
			}
			if f.Match.EthSrc == n.Gateway.MAC {
				drops = append(drops, n.Name)
			}
		}
	}
	return to, drops
}

// peerRules is peerFlows for the rules of nft.
func peerRules(state datapath.State, s *cluster.Snapshot) (to, drops []string) {
	for _, n := range s.Nodes {
		for _, r := range state.NFT[nft.IP].Chains[plannode.ChainMoves].Rules {
			if d, is := r.Do.(nft.Dup); is && n.HasAddress(d.To) {
				to = append(to, n.Name)
			}
			if slices.Contains(r.Matches, nft.Match(nft.EtherSrc{MAC: n.Links[0].MAC})) {
				drops = append(drops, n.Name)
			}
		}
	}
	return to, drops
}

// forwarded checks which packets to an address the two nodes forward by a flow in a table.
func forwarded(t *testing.T, before, now walk.World, to netip.Addr, bridge string, table uint8) {
	t.Helper()
	v := flow.TCP
	if to.Is6() {
		v = flow.TCP6
	}
	macs := map[string]cluster.MAC{"client": {2, 9}}
	for _, n := range now.Snapshot.Nodes {
		macs[n.Name] = n.Gateway.MAC
	}
	for name, peer := range map[string]string{"node-a": "", "node-b": "node-c", "node-c": "node-b"} {
		for sender, mac := range macs {
			for _, state := range []flow.CTBits{flow.CTNew, flow.CTInv, flow.CTEst, flow.CTRel,
				flow.CTInv | flow.CTDnat} {
				for _, flags := range []string{flow.SYN, flow.NoSYN, ""} {
					m := flow.Match{InPort: "eth0", EthSrc: mac, EthDst: macs[name], Protocol: v, TCPFlags: flags,
						Dst: netip.PrefixFrom(to, to.BitLen()), DstPort: 80,
						CTState: flow.CTState{Set: state | flow.CTTrk}}
					if bridge != "" {
						m.InPort = claims.ExternalPatch
					}
					if flags == "" {
						m.Protocol = map[flow.Protocol]flow.Protocol{flow.TCP: flow.UDP, flow.TCP6: flow.UDP6}[v]
					}
					known := state&(flow.CTEst|flow.CTRel) != 0 || bridge != "" && state&flow.CTDnat != 0
					want := "as before"
					if peer != "" && flags == flow.NoSYN && !known {
						want = "forwarded to " + peer
						if sender == peer {
							want = "dropped"
						}
					}
					was, is := meets(before.States[name], bridge, table, m), meets(now.States[name], bridge, table, m)
					got := "as before"
					if !reflect.DeepEqual(was, is) {
						got = fmt.Sprint(is)
					}
					if is != nil && reflect.DeepEqual(is.Actions, []flow.Action{flow.SetEthSrc{MAC: macs[name]},
						flow.SetEthDst{MAC: macs[peer]}, flow.InPort{}}) {
						got = "forwarded to " + peer
					} else if got != "as before" && reflect.DeepEqual(is.Actions, []flow.Action{flow.Drop{}}) {
						got = "dropped"
					}
					if got != want {
						t.Errorf("%s from %s on %s in table %d of %q: %s, not %s", &m, sender, name, table, bridge,
							got, want)
					}
				}
			}
		}
	}
}

// copied checks the rules of the two nodes' hosts for an address of a link.
func copied(t *testing.T, now walk.World, to netip.Addr) {
	t.Helper()
	family := nft.IP
	if to.Is6() {
		family = nft.IP6
	}
	for name, peer := range map[string]string{"node-a": "", "node-b": "node-c", "node-c": "node-b"} {
		var got, want []string
		if table := now.States[name].NFT[family]; table != nil {
			for _, r := range table.Chains[plannode.ChainMoves].Rules {
				if slices.Contains(r.Matches, nft.Match(nft.AddrIn{Dst: true, Prefix: plannode.HostPrefix(to)})) {
					got = append(got, fmt.Sprint(r.Matches[2:], r.Do))
				}
			}
		}
		if peer != "" {
			link := now.Snapshot.Node(peer).Links[0]
			at := link.Addresses[slices.IndexFunc(link.Addresses,
				func(p netip.Prefix) bool { return p.Contains(to) })].Addr()
			later := []nft.Match{nft.CTNewOrInvalid, nft.NoSYN{}}
			want = []string{fmt.Sprint(append(slices.Clone(later), nft.EtherSrc{MAC: link.MAC}), nft.Drop{}),
				fmt.Sprint(later, nft.Dup{To: at, Device: "eth0"}), fmt.Sprint(later, nft.Drop{})}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s to %s: rules %q, not %q", name, to, got, want)
		}
	}
}
