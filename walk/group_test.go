package walk

import (
	"net/netip"
	"strings"
	"testing"

	"hairpin/datapath/flow"
	"hairpin/delta"
)

// groupOf returns a group whose buckets send the host's packets to endpoints, as the gateway bridge
// could.
func groupOf(endpoints ...string) *flow.Group {
	g := &flow.Group{GroupKey: flow.GroupKey{ID: 7}}
	for i, e := range endpoints {
		to := netip.MustParseAddrPort(e)
		g.Buckets = append(g.Buckets, flow.Bucket{ID: uint32(10 + i), CT: flow.CT{Commit: true, Zone: 64003, Table: 2,
			NAT: flow.NAT{Kind: flow.NATDst, Addr: to.Addr(), PortMin: to.Port(), PortMax: to.Port()}}})
	}
	return g
}

// A packet takes one bucket of a group; the step lists the others.
func TestGroup(t *testing.T) {
	w := byHand(2)
	s := w.States["n1"]
	s.Bridge.Groups.Put(flow.GroupKey{ID: 7}, groupOf("10.244.1.3:8080", "10.244.2.3:8080"))
	w.States["n1"] = s
	changeFlow(t, s, "table=0,priority=500,ip,in_port=LOCAL,nw_dst=10.96.0.0/16", func(f *flow.Flow) {
		f.Actions = []flow.Action{flow.SetSrc{Addr: addr("169.254.169.2")}, flow.ToGroup{ID: 7}}
	})
	for _, c := range []struct{ to, bucket string }{{"10.244.1.3:8080", "bucket 10: "},
		{"10.244.2.3:8080", "bucket 11: "}} {
		to := netip.MustParseAddrPort(c.to)
		tr := walk(t, w, inHost(1), tcp("10.96.0.11:80"), to)
		i := 0
		for i < len(tr.Forward) && tr.Forward[i].Stage != "breth0 group 7" {
			i++
		}
		if i == len(tr.Forward) {
			t.Fatalf("no step is the group's\n%s", tr)
		}
		g := tr.Forward[i]
		if !strings.HasPrefix(g.Did, c.bucket) || len(g.Choices) != 2 ||
			netip.AddrPortFrom(g.After.Dst, g.After.DstPort) != to || !strings.Contains(g.Entry, "zone=64003") {
			t.Errorf("%+v\n%s", g, tr)
		}
		if got := tr.Verdict.Seen; got.Dst != to.Addr() || !tr.Verdict.Delivered {
			t.Errorf("not at %s\n%s", to, tr)
		}

		if tr.ForwardVisits[0].Passes[0].After.Dst != to.Addr() {
			t.Errorf("the first pass is another\n%s", tr)
		}
	}
}

func TestNoGroup(t *testing.T) {
	for name, groups := range map[string]map[flow.GroupKey]*flow.Group{"none": nil, "empty": {{ID: 7}: {}}} {
		w := byHand(1)
		s := w.States["n1"]
		s.Bridge.Groups = delta.MapOf(groups)
		w.States["n1"] = s
		changeFlow(t, s, "table=0,priority=500,ip,in_port=LOCAL,nw_dst=10.96.0.0/16",
			func(f *flow.Flow) { f.Actions = []flow.Action{flow.ToGroup{ID: 7}} })
		if tr, err := Walk(w, inHost(1), tcp("10.96.0.11:80")); err == nil ||
			!strings.Contains(err.Error(), "breth0 has no group 7") {
			t.Errorf("%s: %v\n%s", name, err, tr)
		}
	}
}
