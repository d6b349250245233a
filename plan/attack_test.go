package plan_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/pipeline"
	"hairpin/plan"
	"hairpin/walk"
	"hairpin/walk/packet"
)

// The attacker and its neighbor, as in the lab's attacks.
var (
	attackerPod = walk.Point{Node: "node-a", Pod: cluster.Owner{Kind: "Pod", Namespace: "default", Name: "pod-a2"}}
	client      = addr("172.18.0.100")
)

// fromClient returns a packet of an external client to an address behind node-a.
func fromClient(w walk.World, to netip.AddrPort) packet.Packet {
	return packet.Packet{Protocol: cluster.UDP, Src: client, EthDst: walk.ExternalMAC(w.Snapshot.Node("node-a")),
		Dst: to.Addr(), DstPort: to.Port()}
}

// walked follows a packet, for which walk must return no error.
func walked(t *testing.T, w walk.World, from walk.Point, p packet.Packet) walk.Trace {
	t.Helper()
	trace, err := walk.Walk(w, from, p)
	if err != nil {
		t.Fatalf("%v\n%s", err, trace)
	}
	return trace
}

// nodePortOf returns a Service's NodePort over UDP and IPv4 at node-a.
func nodePortOf(t *testing.T, w walk.World, name string) netip.AddrPort {
	t.Helper()
	for _, f := range w.Snapshot.Frontends {
		if f.Owner.Name == name && f.Protocol == cluster.UDP && f.Family == cluster.IPv4 {
			return netip.AddrPortFrom(addr("172.18.0.3"), f.NodePort)
		}
	}
	t.Fatalf("no Service %s over UDP", name)
	return netip.AddrPort{}
}

// Frames with a VLAN tag, of pods or external senders, reach no pod and no Service.
func TestTaggedFramesAreNotServed(t *testing.T) {
	for mode, flows := range everyEngine {
		w := demoIn(t, mode, flows)
		nodePort := nodePortOf(t, w, "podlocal")
		for _, c := range []struct {
			from walk.Point
			p    packet.Packet
		}{
			{walk.Point{}, fromClient(w, nodePort)},
			{attackerPod, packet.Packet{Protocol: cluster.UDP, Dst: addr("10.244.1.3"), DstPort: 8080}},
			{attackerPod, packet.Packet{Protocol: cluster.UDP, Dst: client, DstPort: 80}},
		} {
			if plain := walked(t, w, c.from, c.p); !plain.Verdict.Delivered {
				t.Errorf("%s, flows %v: an untagged frame\n%s", mode, flows, plain)
			}
			c.p.VLAN = 77
			if tagged := walked(t, w, c.from, c.p); tagged.Verdict.Delivered || tagged.Verdict.Rejected {
				t.Errorf("%s, flows %v: a tagged frame\n%s", mode, flows, tagged)
			}
		}
	}
}

// Multicast and broadcast packets of pods reach pods of the node and OVN, never the host's port or
// the uplink.
func TestMulticastStaysOnTheNode(t *testing.T) {
	for mode := range everyEngine {
		w := demoIn(t, mode, true)
		for _, to := range []string{"224.0.0.251", "255.255.255.255", "ff02::fb", "ff05::1:3"} {
			trace := walked(t, w, attackerPod, packet.Packet{Protocol: cluster.UDP, Dst: addr(to), DstPort: 5353})
			want := "flooded to OVN's port pods-node-a, pod default/pod-a1"
			if v := trace.Verdict; !v.Flooded || !strings.HasPrefix(v.Reason, want) ||
				strings.Contains(v.Reason, "port svc-") {
				t.Errorf("%s, %s: want %q\n%s", mode, to, want, trace)
			}
		}
	}
}

// br-svc accepts from the gateway bridge only packets to the gateway bridge's MAC, and none from a
// MAC that only the node has.
func TestOnlyFramesForTheNodeAreServed(t *testing.T) {
	w := demoIn(t, cluster.ModeShared, true)
	mac := w.Snapshot.Node("node-a").Gateway.MAC
	state := w.States["node-a"]
	for _, f := range state.Bridge.Flows.All() {
		m := f.Match
		if f.Bridge != claims.ServiceBridge || f.Table != pipeline.SvcClassifier || m.InPort != claims.ExternalPatch {
			continue
		}
		if drops := slices.Equal(f.Actions, []flow.Action{flow.Drop{}}); !drops && m.EthDst != mac {
			t.Errorf("frames for other machines are taken: %s", f)
		}
	}
	p := fromClient(w, nodePortOf(t, w, "podlocal"))
	for _, forged := range []string{"0a:58:a9:fe:a9:02", claims.MasqMAC} {
		var err error
		if p.EthSrc, err = cluster.ParseMAC(forged); err != nil {
			t.Fatal(err)
		}
		if trace := walked(t, w, walk.Point{}, p); trace.Verdict.Delivered {
			t.Errorf("from %s\n%s", forged, trace)
		}
	}
}

// External clients cannot use the masquerade addresses to which the host translates addresses of
// Services.
func TestClientsCannotUseMasqueradeAddresses(t *testing.T) {
	for mode, flows := range everyEngine {
		w := demoIn(t, mode, flows)
		for _, name := range []string{"podlocal", "keeppod"} {
			port := nodePortOf(t, w, name).Port()
			for _, to := range []string{"169.254.169.3", "169.254.169.6", "169.254.169.7"} {
				trace := walked(t, w, walk.Point{}, fromClient(w, netip.AddrPortFrom(addr(to), port)))
				if trace.Verdict.Delivered || trace.Verdict.Rejected {
					t.Errorf("%s, flows %v\n%s", mode, flows, trace)
				}
			}
		}
	}
}

// Programs of the host may bind to each address of each link, and find a link by its address.
func TestNodeAddressesAreNotPlanned(t *testing.T) {
	for mode, flows := range everyEngine {
		w := demoIn(t, mode, flows)
		for _, n := range w.Snapshot.Nodes {
			for key := range w.States[n.Name].Host.Addresses {
				if key.Link != n.Gateway.Bridge && slices.Contains(n.Addresses, key.Prefix.Addr()) {
					t.Errorf("%s, flows %v, node %s: %s has %s", mode, flows, n.Name, key.Link, key.Prefix)
				}
			}
		}
	}
}

// A Service may have an endpoint at port 6081 of any machine except the nodes.
func TestTunnelsAreNoEndpoints(t *testing.T) {
	for mode, flows := range everyEngine {
		w := demoIn(t, mode, flows)
		for i, endpoint := range []string{"172.18.0.200:6081", "172.18.0.4:6081", "172.18.0.3:6081"} {
			s := *w.Snapshot
			f := frontend("tunnel", "10.96.66.1:80", 30661, endpoint)
			f.Protocol = cluster.UDP
			s.Frontends = append(slices.Clone(s.Frontends), f)
			slices.SortFunc(s.Frontends, (*cluster.Frontend).Compare)
			with := walk.World{Snapshot: &s, States: map[string]datapath.State{}}
			for _, n := range s.Nodes {
				with.States[n.Name], _ = plan.Node(&s, n.Name)
			}
			for _, from := range []walk.Point{{}, attackerPod} {
				p := fromClient(with, netip.MustParseAddrPort("172.18.0.3:30661"))
				if from == attackerPod {
					p = packet.Packet{Protocol: cluster.UDP, Dst: addr("10.96.66.1"), DstPort: 80}
				}
				if trace := walked(t, with, from, p); trace.Verdict.Delivered != (i == 0) {
					t.Errorf("%s, flows %v, to %s\n%s", mode, flows, endpoint, trace)
				}
			}
		}
	}
}
