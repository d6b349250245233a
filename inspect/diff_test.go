package inspect

import (
	"encoding/json"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"hairpin/datapath"
)

// TestDiffText checks what diff prints for one node and for all, in each format.
func TestDiffText(t *testing.T) {
	list := []NodeDiff{
		{Comparison: datapath.Comparison{Node: "node-a", Planned: true}},
		{Comparison: datapath.Comparison{Node: "node-b", Planned: true, Differences: []datapath.Difference{
			{System: "openvswitch", Line: "- table=1 actions=drop"}, {System: "nft", Line: "+ tcp . 30001"}}}},
		{Comparison: datapath.Comparison{Node: "node-c"}, Error: "no agent's pod\nand more"},
		{Comparison: datapath.Comparison{Node: "node-d"}},
	}
	for _, c := range []struct {
		all    bool
		output string
		list   []NodeDiff
		want   string
	}{
		{true, "text", list, `
node-a: no differences
node-b: 2 differences
  - table=1 actions=drop
  + tcp . 30001
node-c: could not be compared: no agent's pod
node-d: nothing is planned for it
`},
		{false, "text", list[1:2], "\n- table=1 actions=drop\n+ tcp . 30001\n"},
		{false, "text", list[:1], "\nno differences\n"},
		{true, "wide", list, `
NODE    SYSTEM       DIFFERENCE
node-b  openvswitch  - table=1 actions=drop
node-b  nft          + tcp . 30001
node-c  -            could not be compared: no agent's pod
`},
	} {
		var b strings.Builder
		o := DiffOptions{All: c.all, Output: c.output}
		if err := o.print(&b, c.list); err != nil {
			t.Fatal(err)
		}
		same(t, c.want, b.String())
	}
	for output, parse := range map[string]func([]byte, any) error{"json": json.Unmarshal,
		"yaml": func(b []byte, v any) error { return yaml.Unmarshal(b, v) }} {
		var b strings.Builder
		o := DiffOptions{All: true, Output: output}
		if err := o.print(&b, list); err != nil {
			t.Fatal(err)
		}
		var back []NodeDiff
		if err := parse([]byte(b.String()), &back); err != nil || len(back) != len(list) ||
			len(back[1].Differences) != 2 || back[1].Node != "node-b" || back[2].Error == "" {
			t.Errorf("%s: %v\n%s", output, err, b.String())
		}
	}
}

// TestDiffAnswer checks that an answer has no effect on a terminal.
func TestDiffAnswer(t *testing.T) {
	n, err := parseDiff([]byte(`{"node":"a\u001b[2J","differences":[{"system":"nft","line":"+ \u001b]0;x"}]}`))
	if err != nil || strings.Contains(n.Node+n.Differences[0].Line, "\x1b") {
		t.Errorf("%+v, %v", n, err)
	}
	if _, err := parseDiff([]byte("- a line of an older agent\n")); err == nil {
		t.Error("text is an answer")
	}
}
