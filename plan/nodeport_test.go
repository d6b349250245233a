package plan_test

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/lab/demo/nodeport"
	"hairpin/plan"
	"hairpin/walk"
	"hairpin/walk/packet"
	"hairpin/watch"
)

// demoIn returns the cluster of examples/demo with its nodes in a gateway mode. It serves over SCTP
// whatever it serves over TCP.
func demoIn(t *testing.T, mode string, flows bool) walk.World { return demoWith(t, mode, flows, "") }

// demoWith is demoIn with more manifests.
func demoWith(t *testing.T, mode string, flows bool, more string) walk.World {
	t.Helper()
	files, err := filepath.Glob("../examples/demo/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no manifests", err)
	}
	docs := [][]byte{[]byte(more)}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, text)
	}
	s := *watch.ParseManifests(bytes.Join(docs, []byte("\n---\n")), cluster.DefaultConfig())
	read := new(s)
	s.Nodes, s.Frontends = nil, nil
	for _, n := range read.Nodes {
		changed := *n
		changed.Gateway.Mode, changed.Gateway.OpenFlow = mode, flows
		if mode == cluster.ModeDetached {
			g := &changed.Gateway
			g.Uplink, g.Device, g.MAC = "", "eth0", cluster.MAC{0x0a, 0x58, 0x0a, 0x2c, 0, 0}
			g.Addresses = []netip.Prefix{prefix("10.44.0.0/32"), prefix("fd00:10:44::/128")}
		}
		s.Nodes = append(s.Nodes, &changed)
	}
	for _, f := range read.Frontends {
		if f.Protocol == cluster.SCTP { // as for those that follow
			continue
		}
		s.Frontends = append(s.Frontends, f)
		if f.Protocol == cluster.TCP {
			over := *f
			over.Protocol, over.PortName = cluster.SCTP, "sctp"
			s.Frontends = append(s.Frontends, &over)
		}
	}
	slices.SortFunc(s.Frontends, (*cluster.Frontend).Compare)
	return worldOf(t, &s)
}

// worldOf plans all nodes.
func worldOf(t *testing.T, s *cluster.Snapshot) walk.World {
	t.Helper()
	w := walk.World{Snapshot: s, States: map[string]datapath.State{}}
	for _, n := range s.Nodes {
		state, problems := plan.Node(s, n.Name)
		if state.NB == nil {
			t.Fatal(problems)
		}
		w.States[n.Name] = state
	}
	return w
}

// everyEngine yields all gateway modes with each Service engine.
func everyEngine(yield func(mode string, flows bool) bool) {
	for _, mode := range cluster.ModeNames() {
		if !yield(mode, false) || !yield(mode, true) {
			return
		}
	}
}

// TestNodePortCases walks the twelve cases in every gateway mode, over every protocol and both
// families: the endpoint sees the address in the table, and the sender gets its reply from the
// address that it used.
func TestNodePortCases(t *testing.T) {
	services := map[[2]bool]string{{false, false}: "podlocal", {true, false}: "keeppod", {false, true}: "hostself",
		{true, true}: "keephost"}
	pod := cluster.Owner{Kind: "Pod", Namespace: "default", Name: "pod-a2"}
	for mode, flows := range everyEngine {
		w := demoIn(t, mode, flows)
		walker := walk.New(w)
		node := w.Snapshot.Node("node-a")
		for _, c := range nodeport.Cases() {
			for _, f := range w.Snapshot.Frontends {
				if f.Owner.Name != services[[2]bool{c.Local, c.Host}] {
					continue
				}
				v4 := f.Family == cluster.IPv4
				from, src := walk.Point{}, pickFamily(v4, "172.18.0.100", "fc00:f853:ccd::64")
				asked := []netip.Addr{node.Address(f.Family)}
				switch c.From {
				case nodeport.Localhost:
					from, src = walk.Point{Node: "node-a"}, netip.Addr{}
					asked = append(asked, pickFamily(v4, "127.0.0.1", "::1"),
						pickFamily(v4, "172.20.0.1", "fd00:20::1"))
				case nodeport.Pod:
					from, src = walk.Point{Node: "node-a", Pod: pod}, pickFamily(v4, "10.244.1.4", "fd00:10:244:1::4")
				}
				want := map[nodeport.Source]netip.Addr{
					nodeport.Sender: src, nodeport.Join: pickFamily(v4, "100.64.0.2", "fd98::2"),
					nodeport.Masquerade: pickFamily(v4, "169.254.169.1", "fd69::1"),
				}[c.Sees]
				for _, to := range asked {
					trace, err := walker.Walk(from,
						packet.Packet{Protocol: f.Protocol, Src: pick(from == walk.Point{}, src), Dst: to,
							DstPort: f.NodePort})
					if err != nil {
						t.Errorf("%s, case %d, %s to %s: %v\n%s", mode, c.Number, f.Protocol, to, err, trace)
						continue
					}
					if v := trace.Verdict; !v.Answered || v.Seen.Src != want ||
						(v.At.Pod == cluster.Owner{}) != c.Host {
						t.Errorf("%s, case %d, %s to %s: want source %s\n%s", mode, c.Number, f.Protocol, to, want,
							trace)
					}
				}
			}
		}
	}
}

// pick returns the address if the walk needs one; the host and pods choose their own.
func pick(named bool, a netip.Addr) netip.Addr {
	if named {
		return a
	}
	return netip.Addr{}
}

func pickFamily(v4 bool, four, six string) netip.Addr {
	if v4 {
		return addr(four)
	}
	return addr(six)
}
