package demo

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/plan"
	"hairpin/walk"
	"hairpin/walk/packet"
	"hairpin/watch"
)

// In every gateway mode, the walk must return what the matrix requires of each packet: the replying
// server and the source that it sees, or no reply.
func TestWalkSaysWhatTheMatrixWants(t *testing.T) {
	for _, x := range []struct {
		mode     string
		openflow bool
		dgp      bool // with OVN's load balancers only
	}{{cluster.ModeShared, true, false}, {cluster.ModeLocal, true, false}, {cluster.ModeDetached, true, false},
		{cluster.ModeShared, false, false}, {cluster.ModeLocal, false, false}, {cluster.ModeDetached, false, false},
		{cluster.ModeShared, false, true}, {cluster.ModeLocal, false, true}, {cluster.ModeDetached, false, true}} {
		t.Run(fmt.Sprintf("%s, openflow: %t, dgp: %t", x.mode, x.openflow, x.dgp), func(t *testing.T) {
			s := inMode(t, x.mode, x.openflow, x.dgp)
			states := map[string]datapath.State{}
			for _, n := range s.Nodes {
				state, problems := plan.Node(s, n.Name)
				if len(problems) > 0 {
					t.Fatal(problems)
				}
				states[n.Name] = state
			}
			walker, w := walk.New(walk.World{Snapshot: s, States: states}), worldOfManifests(t)
			w.sctp, w.openflow, w.nodeLocal = true, x.openflow, x.dgp
			numbers := map[string]cluster.Protocol{"tcp": cluster.TCP, "udp": cluster.UDP, "sctp": cluster.SCTP}
			n := 0
			for _, c := range Cases() {
				if c.Path == masquerade && x.openflow {
					continue // the host has no such address
				}
				for _, protocol := range w.protocols(c) {
					for _, f := range families() {
						w.compare(t, walker, s, c, numbers[protocol], f)
						n++
					}
				}
			}
			t.Logf("%d cases", n)
		})
	}
}

// inMode returns the demo's cluster in a gateway mode, with Services by flows or by OVN's load
// balancers, with or without the distributed gateway port, as its agents would read it.
func inMode(t *testing.T, mode string, openflow, dgp bool) *cluster.Snapshot {
	t.Helper()
	config := cluster.DefaultConfig()
	config.Gateway.Mode = mode
	s, err := watch.ReadFiles("../../examples/demo", config)
	if err != nil {
		t.Fatal(err)
	}
	out := *s
	out.Nodes = nil
	for _, n := range s.Nodes {
		m := *n
		m.Gateway.Mode, m.Gateway.OpenFlow, m.Gateway.NodeLocal = mode, openflow, dgp
		if mode == cluster.ModeDetached {
			m.Gateway.Device, m.Gateway.Uplink, m.Gateway.Addresses = m.Gateway.Uplink, "", nil
			for _, a := range config.Gateway.Advertise {
				m.Gateway.Addresses = append(m.Gateway.Addresses, netip.PrefixFrom(a, a.BitLen()))
			}
			m.Gateway.MAC = cluster.MACFor(m.Gateway.Addresses[0].Addr())
		}
		out.Nodes = append(out.Nodes, &m)
	}
	return &out
}

func (w *world) compare(t *testing.T, walker *walk.Walker, s *cluster.Snapshot, c Case, protocol cluster.Protocol,
	f family) {
	t.Helper()
	to, err := w.target(c, f)
	if err != nil {
		t.Fatal(err)
	}
	from, packet := w.point(s, c.From), packet.Packet{Protocol: protocol, Dst: to.Addr(), DstPort: to.Port()}
	if from == (walk.Point{}) {
		packet.Src = w.endpoints[c.From].address(f)
		// The client has routes to all but NodePorts, which are on addresses of its own network.
		if !strings.HasPrefix(c.Path, "NodePort") {
			packet.EthDst = walk.ExternalMAC(s.Node("node-a"))
		}
	}
	tr, err := walker.WalkWithLater(from, packet)
	if err != nil {
		t.Errorf("%s to %s by %s, %s%s: %v\n%s", c.From, c.To, c.Path, protocol, f.name, err, tr)
		return
	}
	v := tr.Verdict
	ok := true
	switch c.By {
	case refused:
		ok = v.Rejected
	case closed: // a State does not contain the ports of an endpoint
		ok = v.Delivered && v.Answered
	case dropped:
		ok = !v.Delivered && !v.Rejected
	default:
		wants, err := w.sources(w.saw(c), f)
		if err != nil {
			t.Fatal(err)
		}
		if c.From != c.By && w.point(s, c.From) == v.At { // one of several pods is the client
			wants, err = w.sources(hairpin, f)
		}
		ok = err == nil && v.Delivered && v.Answered && slices.Contains(wants, v.Seen.Src) && w.answers(s, c.By, v.At)
	}
	if !ok {
		t.Errorf("%s to %s by %s, %s%s: %s sees %s wanted\n%s", c.From, c.To, c.Path, protocol, f.name, c.By, w.saw(c),
			tr)
	}
}

func (w *world) answers(s *cluster.Snapshot, by string, at walk.Point) bool {
	if strings.HasSuffix(by, " pod") || strings.HasSuffix(by, " pods") {
		return at.Pod != (cluster.Owner{})
	}
	return slices.ContainsFunc(strings.Split(by, "|"), func(name string) bool { return w.point(s, name) == at })
}
