package plan_test

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"hairpin/datapath/flow"
	"hairpin/datapath/ovs"
	"hairpin/pipeline"
)

// TestPipelineDocument checks docs/design/openflow-pipeline.md, which is made from the declared
// pipelines and from the flows of node-a of examples/demo (`make golden`).
func TestPipelineDocument(t *testing.T) {
	const file = "../docs/design/openflow-pipeline.md"
	var b strings.Builder
	b.WriteString(`# OpenFlow pipelines

<!-- Made by ` + "`go test ./plan -run PipelineDocument -update`" + ` from package pipeline. -->

Hairpin has flows on three bridges of a node. For each table, this page lists which packets enter it,
what its flows do with them, and what happens to a packet that matches no flow. A packet passes the
tables of a bridge in the order of this page. It returns to an earlier table only where "may return"
says so, and then once. ` + "`explain`" + `
calls the tables by these names. Open vSwitch has them, too: ` + "`ovs-ofctl --names dump-flows br-svc`" + `
shows them. A name that another program or an administrator gave a table stays.

The examples are flows of node-a of [examples/demo](../../examples/demo), with
` + "`service-engine = openflow`" + ` on the userspace datapath.
`)
	state := demo(t)["node-a"]
	for _, x := range []struct {
		bridge      pipeline.Bridge
		name, about string
	}{
		{pipeline.Service, "br-svc: pods and Services",
			"The bridge of the Service engine `openflow`. Ports of pods, the host (`svc-host`), OVN (`svc-int`) and " +
				"the gateway bridge (`svc-ext`)."},
		{pipeline.Gateway, "br-ex: the gateway bridge",
			"Ports of the uplink, the host (`LOCAL`), OVN (a patch port) and br-svc (`ext-svc`). Mode " +
				"detached has no uplink."},
		{pipeline.Tunnel, "br-tun: tunnels to other nodes", "Ports of all tunnels (`tunnels`) and of OVN (`tun-int`)."},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n```\n", x.name, wrap(x.about))
		for _, table := range pipeline.Tables(x.bridge) {
			fmt.Fprintf(&b, "%3d %-20s → %s\n", table.ID, table.Name,
				cmp.Or(strings.Join(names(x.bridge, table.Next), ", "), "–"))
		}
		b.WriteString("```\n")
		for _, table := range pipeline.Tables(x.bridge) {
			pipelineTable(&b, &state.Bridge, table)
		}
	}
	want := b.String()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("%s is out of date: run `make golden` (%v)", file, err)
	}
}

func pipelineTable(b *strings.Builder, s *ovs.State, table pipeline.Table) {
	fmt.Fprintf(b, "\n### %d %s\n\n", table.ID, table.Name)
	text := fmt.Sprintf("**Enters**: %s. **Flows** %s. **No match**: %s.", table.Packet, table.Does, table.Miss)
	if len(table.Again) > 0 {
		text += fmt.Sprintf(" **May return** to %s.", strings.Join(names(table.Bridge, table.Again), ", "))
	}
	b.WriteString(wrap(text) + "\n")
	if f := example(s, table); f != nil {
		fmt.Fprintf(b, "\n```\n%s\n```\n", f)
	}
}

// example returns the flow of a table with the highest priority, and of those the first by its
// text.
func example(s *ovs.State, table pipeline.Table) *flow.Flow {
	var list []*flow.Flow
	for _, f := range s.Flows.All() {
		if f.Bridge == string(table.Bridge) && f.Table == table.ID {
			list = append(list, f)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return slices.MinFunc(list, func(a, b *flow.Flow) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.String(), b.String()))
	})
}

func names(b pipeline.Bridge, ids []uint8) (list []string) {
	for _, id := range ids {
		list = append(list, pipeline.Name(b, id))
	}
	return list
}

// wrap breaks a paragraph into lines of at most 100 columns.
func wrap(text string) string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > 100 {
			lines = append(lines, line)
			line = ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return strings.Join(append(lines, line), "\n")
}
