package flow

import (
	"testing"
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

func BenchmarkEncode(b *testing.B) {
	var flows []*Flow // the two flows that a NodePort needs in each direction
	for _, line := range []string{
		"cookie=0x20deff105,table=0,priority=110,tcp,in_port=1,nw_dst=172.18.0.3,tp_dst=30000 actions=output:1",
		"cookie=0x20deff105,table=0,priority=110,tcp,in_port=1,nw_src=172.18.0.3,tp_src=30000 " +
			"actions=ct(commit,zone=64000,exec(set_field:0x1->ct_mark)),output:1",
	} {
		f, err := ParseFlow(line)
		if err != nil {
			b.Fatal(err)
		}
		flows = append(flows, f)
	}
	b.ReportAllocs()
	for b.Loop() {
		for range 20000 {
			flows[0].Encode()
			flows[1].Encode()
		}
	}
}
