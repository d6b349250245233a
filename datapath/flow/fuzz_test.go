package flow

import (
	"net/netip"
	"testing"

	"hairpin/cluster"
)

func FuzzParseFlow(f *testing.F) {
	for _, l := range flowLines {
		f.Add(l.in)
	}
	for _, l := range []string{"dl_vlan=5 actions=drop", "actions=ct(nat(src=1.2.3.4-1.2.3.9,random))",
		`in_port="a\"b actions=output:"`, "ct_state=+", "actions=ct(((", "cookie=,actions=", "nw_src=/0,ip actions="} {
		f.Add(l)
	}
	f.Fuzz(func(t *testing.T, line string) {
		got, err := ParseFlow(line)
		if err != nil {
			return
		}
		text := got.String()
		again, err := ParseFlow(text)
		if err != nil || !again.Equal(got) {
			t.Fatalf("%q became %q, then %v, %v", line, text, again, err)
		}
	})
}

// benchFlows returns the two flows that a NodePort needs in each direction.
func benchFlows(n int) State {
	s := State{Bridge: "br-ex"}
	node := netip.MustParsePrefix("172.18.0.3/32")
	for i := range n / 2 {
		owner := cluster.Owner{Kind: "Service", Namespace: "default", Name: "web"}
		in := &Flow{Key: Key{Priority: 110,
			Match: Match{InPort: "eth0", Protocol: TCP, Dst: node, DstPort: uint16(30000 + i)}}, Feature: 2,
			Actions: []Action{Output{"patch-br-ex_node-a-to-br-int"}}, Owner: owner}
		out := &Flow{Key: Key{Priority: 110,
			Match: Match{InPort: "patch-br-ex_node-a-to-br-int", Protocol: TCP, Src: node, SrcPort: uint16(30000 + i)}},
			Feature: 2,
			Actions: []Action{CT{Commit: true, Zone: 64000, Mark: 1}, Output{"eth0"}}, Owner: owner}
		s.Flows.Put(in.ID(), in)
		s.Flows.Put(out.ID(), out)
	}
	return s
}

const benchSize = 40000

func BenchmarkPrint(b *testing.B) {
	s := benchFlows(benchSize)
	b.ReportAllocs()
	for b.Loop() {
		Print(s)
	}
}

func BenchmarkEncode(b *testing.B) {
	var numbered []*Flow
	for _, f := range benchFlows(benchSize).Flows.All() {
		numbered = append(numbered, f.WithPorts(func(string) string { return "1" }))
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, f := range numbered {
			f.Encode()
		}
	}
}

func BenchmarkDiff(b *testing.B) {
	want, have := benchFlows(benchSize), benchFlows(benchSize)
	have.Flows = have.Flows.Clone()
	for k := range want.Flows.All() {
		have.Flows.Delete(k)
		break
	}
	b.ReportAllocs()
	for b.Loop() {
		if d := Diff(want, have); d.Count() != 1 {
			b.Fatal(d.Count())
		}
	}
}
