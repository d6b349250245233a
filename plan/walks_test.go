package plan_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/walk"
	"hairpin/walk/explain"
	"hairpin/walk/explain/picture"
	"hairpin/walk/explain/question"
	"hairpin/walk/packet"
)

// walks is the directory of the stories' documentation.
const walks = "../docs/design/walks"

// library is the expected content of docs/design/walks: generated from the stories, by the same
// `make golden`.
type library struct {
	told  int // stories
	files map[string]string
	index map[string]string // page to its introduction
	flows map[string]bool   // pages whose nodes have the default engine for Services
	// differences has those between the documents' walks and Hairpin's, by document and story.
	differences map[string]map[string][]string
}

// documents lists the documents whose walks are compared with Hairpin's, with a remark on each.
var documents = []struct{ name, about string }{
	{"host-to-service.md",
		"Each flow and each connection of its use cases is compared. Two kinds of difference are not listed: the " +
			"upper half of cookies, which names the feature that a flow belongs to, and the names of ports. The " +
			"design has no flows for mode local; [services by host](ovn-services-by-host.md) has those of Hairpin."},
	{"egress-ip.md",
		"Policies, address sets and NAT rows are compared where a packet matches them. An untranslated packet of a " +
			"pod does not leave the node: the design lets packets of the node's own pods pass (priority 109), " +
			"Hairpin drops them (priority 104)."},
	{"node-local-access-dgp.md",
		"The design adds a distributed gateway port. In Hairpin, pods reach their own node as in the design, by a " +
			"policy of the cluster router. The host's default path is that of host-to-service.md, which needs no " +
			"such port. With `[gateway] node-local = dgp` it is that of this design ([dgp](dgp.md)), in every " +
			"gateway mode ([local](dgp-local.md), [detached](dgp-detached.md)). In the design, each node has its " +
			"own address of node_local_switch, from 169.254.0.3 on. In Hairpin all nodes have the same one, because " +
			"no packet with it leaves the node. The design's policies name one address of the node; Hairpin has " +
			"the others in a set. The design lacks one case: in the modes local and detached, the host calls a " +
			"Service with an endpoint on another host. Hairpin sends these packets to the host by the distributed " +
			"gateway port, too, because they would otherwise return with the host's own source."},
	{"nodeport-antrea.md",
		"A design of another system with another data plane. Both have the same contract: for each client, policy " +
			"and endpoint, whether the source is preserved. [node-ports.md](../../user/node-ports.md) has all twelve " +
			"cases. This page compares the mechanisms. The design's redirect by TC flower corresponds to Hairpin's " +
			"`[gateway] nodeport-path = redirect` by eBPF ([redirect detached](ovn-redirect-detached.md)). eBPF maps " +
			"replace its chains and computed handles, which contradict each other in the design. Its filters for " +
			"localhost have no counterpart, because nft on the host serves these packets."},
	{"detached-gateway.md", "Addresses are those of the test case: 172.18.0.3 instead of the design's 10.89.0.3."},
}

func newLibrary() *library {
	return &library{files: map[string]string{}, index: map[string]string{}, flows: map[string]bool{},
		differences: map[string]map[string][]string{}}
}

// add makes the page of a story that has walks. Each has its steps, the first a picture. A section
// "document WALK" of the story adds the document's walk beside it.
func (l *library) add(t *testing.T, name string, archive *txtar.Archive, s *story) {
	t.Helper()
	l.told++
	title := strings.TrimSpace(string(archive.Comment))
	engine := "`service-engine = ovn`, not the default"
	if slices.ContainsFunc(s.world.Snapshot.Nodes, func(n *cluster.Node) bool { return n.Gateway.OpenFlow }) {
		engine, l.flows[name] = "`service-engine = openflow`, the default", true
	}
	var b strings.Builder
	fmt.Fprintf(&b,
		"# %s\n\n%s\n\nEngine for Services: %s. The objects, and the nodes' desired state for them:\n"+
			"[plan/testdata/%s.txtar](../../../plan/testdata/%s.txtar).\n\n",
		strings.ReplaceAll(name, "-", " "), title, engine, name, name)
	pictures := 0
	for _, f := range archive.Files {
		words := strings.Fields(f.Name)
		if words[0] != "walk" {
			continue
		}
		e, err := s.explain(words[1:])
		if err != nil {
			t.Fatalf("%s: %v", f.Name, err)
		}
		file := ""
		if pictures++; pictures == 1 {
			file = name + ".svg"
			l.files[file] = picture.SVG(e)
		}
		b.WriteString(e.Markdown(2, file))
		for _, d := range documents {
			l.beside(t, &b, d.name, name, archive, f.Name, e.Trace)
		}
	}
	if pictures > 0 {
		l.index[name] = title
		l.files[name+".md"] = b.String()
	}
}

// beside adds a document's walk beside Hairpin's, if the story has one.
func (l *library) beside(t *testing.T, b *strings.Builder, document, story string, archive *txtar.Archive, walk string,
	trace walk.Trace) {
	t.Helper()
	i := slices.IndexFunc(archive.Files, func(d txtar.File) bool { return d.Name == "document "+document+" "+walk })
	if i < 0 {
		return
	}
	page, differences, err := compare(string(archive.Files[i].Data), trace)
	if err != nil {
		t.Errorf("%s: %v", archive.Files[i].Name, err)
	}
	fmt.Fprintf(b, "Beside %s:\n\n%s", document, page)
	if l.differences[document] == nil {
		l.differences[document] = map[string][]string{}
	}
	l.differences[document][story] = append(l.differences[document][story], differences...)
}

// explain returns story.walk, rendered for a page.
func (s *story) explain(words []string) (*explain.Explanation, error) {
	trace, err := s.trace(words)
	if err != nil {
		return nil, err
	}
	from, via, _ := strings.Cut(words[0], "@")
	if !strings.HasPrefix(from, "outside/") { // a source address, which the steps show
		via = ""
	}
	return explain.Of(s.world.Snapshot, question.Question{From: from, To: words[2], Via: via,
		Protocol: trace.Sent.Protocol}, trace)
}

// compare compares a document's walk. Its lines are "there flow FLOW", "back flow FLOW", "there CT
// src=… dst=… src=… dst=… zone=…", "there seen ADDRESS" for the source that the endpoint sees, or a
// rule of another kind in its tool's syntax, with the story's addresses. A line that begins with !
// says why Hairpin's differs from the line before. It is an error if it is missing or not needed.
func compare(text string, t walk.Trace) (page string, differences []string, err error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	var b strings.Builder
	b.WriteString("| direction | design | Hairpin | result |\n|---|---|---|---|\n")
	next, direction := map[string]int{}, map[string]string{"there": "request", "back": "reply"}
	for i, line := range lines {
		if strings.HasPrefix(line, "!") {
			continue
		}
		why := ""
		if i+1 < len(lines) {
			why, _ = strings.CutPrefix(lines[i+1], "! ")
			if why == lines[i+1] {
				why = ""
			}
		}
		way, what, _ := strings.Cut(line, " ")
		rule := what // as on the page: the tool's syntax shows its kind
		if kind, rest, _ := strings.Cut(what, " "); !slices.Contains([]string{"flow", "CT", "seen"}, kind) {
			rule = rest
		}
		steps := t.Forward
		if way == "back" {
			steps = t.Reply
		}
		at, ours, same := find(what, steps, next[way])
		if address, ok := strings.CutPrefix(what, "seen "); ok {
			at, ours, same = -1, "`seen "+t.Verdict.Seen.Src.String()+"`", t.Verdict.Seen.Src.String() == address
		}
		if at >= 0 {
			next[way] = at
		}
		switch {
		case same && why != "":
			return "", nil, fmt.Errorf("%s: ours is the same, but the story says why it is not", line)
		case same:
			fmt.Fprintf(&b, "| %s | `%s` | step %d | the same |\n", direction[way], rule, at+1)
		case why == "":
			return "", nil, fmt.Errorf("%s: ours is %s; the next line must say why: ! …", line, ours)
		default:
			fmt.Fprintf(&b, "| %s | `%s` | %s | %s |\n", direction[way], rule, ours, why)
			differences = append(differences, fmt.Sprintf("design: `%s`\n  Hairpin: %s\n  %s", rule, ours, why))
		}
	}
	return b.String() + "\n", differences, nil
}

// find searches the steps, from one on, for the document's flow or entry. It returns the step that
// has it, or the nearest one instead.
func find(what string, steps []packet.Step, from int) (at int, ours string, same bool) {
	kind, rest, _ := strings.Cut(what, " ")
	instead, words, sure := -1, "nothing", false
	for i := from; i < len(steps); i++ {
		var mine string
		switch kind {
		case "flow":
			if explain.PlaceOf(steps[i].Stage).Kind != explain.Bridge {
				continue
			}
			_, mine, _ = strings.Cut(steps[i].Rule, ",")
			if mine == rest {
				return i, "", true
			}
			if same, near := sameTable(mine, rest); same || near && instead < 0 {
				if instead < 0 || !sure {
					instead, words, sure = i, fmt.Sprintf("step %d: `%s`", i+1, mine), same
				}
			}
		case "CT":
			if steps[i].Entry == "" {
				continue
			}
			mine = withoutPorts(steps[i].Entry)
			if sameEntry(mine, rest) {
				return i, "", true
			}
			if a, _, _ := strings.Cut(mine, " src="); instead < 0 && strings.HasPrefix(rest, a) {
				instead, words = i, fmt.Sprintf("step %d: `CT %s`", i+1, mine)
			}
		default:
			if !ofKind(kind, steps[i].Stage) {
				continue
			}
			if steps[i].Rule == rest {
				return i, "", true
			}
			if instead < 0 {
				instead, words = i, fmt.Sprintf("step %d: `%s`", i+1, steps[i].Rule)
			}
		}
	}
	return instead, words, false
}

// ofKind reports whether a rule of a kind is applied at a stage. Hairpin may do on the bridge what
// the documents do in the host's kernel.
func ofKind(kind, stage string) bool {
	switch kind {
	case "policy":
		return strings.HasSuffix(stage, " lr_in_policy")
	case "nat":
		return strings.HasSuffix(stage, " lr_out_snat")
	case "lroute":
		return strings.HasSuffix(stage, " lr_in_ip_routing")
	case "lb":
		return strings.HasSuffix(stage, " lr_in_dnat") || strings.HasSuffix(stage, " ls_in_lb")
	case "route":
		return stage == "ip route"
	case "kernel":
		return strings.HasPrefix(stage, "nft ") || strings.HasSuffix(stage, " Classifier")
	}
	return false
}

// sameTable reports whether two flows have one table and priority (same), or one table (near).
func sameTable(a, b string) (same, near bool) {
	list, tables := map[[2]uint16]bool{}, map[uint16]bool{}
	for _, text := range []string{a, b} {
		match, _, _ := strings.Cut(text, " actions=")
		f, err := flow.ParseFlow(match + " actions=drop")
		if err != nil {
			return false, false
		}
		list[[2]uint16{uint16(f.Table), f.Priority}] = true
		tables[uint16(f.Table)] = true
	}
	return len(list) == 1, len(tables) == 1
}

// withoutPorts returns the addresses, mark and zone of an entry.
func withoutPorts(entry string) string {
	return strings.Join(slices.DeleteFunc(strings.Fields(entry), func(w string) bool {
		return strings.HasPrefix(w, "sport=") || strings.HasPrefix(w, "dport=") || strings.HasPrefix(w, "mark=") ||
			!strings.Contains(w, "=")
	}), " ")
}

// sameEntry compares an entry of Hairpin's with one of the document. ovn-controller chooses the
// numbers of OVN's own zones: the document has 16, Hairpin a name.
func sameEntry(ours, document string) bool {
	if a, zone, ok := strings.Cut(ours, " zone="); ok && strings.HasPrefix(zone, "GR_") {
		ours = a + " zone=16"
	}
	return ours == document
}

// check compares docs/design/walks with its expected content, or writes it.
func (l *library) check(t *testing.T) {
	t.Helper()
	l.readme(t)
	names, err := filepath.Glob(walks + "/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range names {
		if name := filepath.Base(path); l.files[name] == "" {
			if !*update {
				t.Errorf("%s belongs to no story (make golden removes it)", path)
			} else if err := os.Remove(path); err != nil {
				t.Error(err)
			}
		}
	}
	if err := os.MkdirAll(walks, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, want := range l.files {
		path := filepath.Join(walks, name)
		if *update {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Error(err)
			}
		} else if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s is not what its story says (make golden rewrites it)", path)
		}
	}
}

// readme returns the list of pages, and the page of differences.
func (l *library) readme(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Walks\n\nThese pages show the path of packets through every table, as `hairpin explain` prints " +
		"it. They are generated from the\nstories that the tests run (`make golden`); a test fails when they are out " +
		"of date. If one of the five [original\ndesigns](../origins.md) describes the same packet, the page has its " +
		"rules beside Hairpin's.\n[differences.md](differences.md) lists the differences and the reasons.\n")
	for _, group := range []struct {
		title string
		flows bool
	}{
		{"With the default engine, `service-engine = openflow`", true},
		{"With `service-engine = ovn`, the engine of the design documents", false},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n", group.title)
		if group.flows {
			b.WriteString("[explain.md](../../user/explain.md) has more examples.\n\n")
		}
		for _, name := range slices.Sorted(maps.Keys(l.index)) {
			if l.flows[name] == group.flows {
				fmt.Fprintf(&b, "- [%s](%s.md): %s\n", strings.ReplaceAll(name, "-", " "), name,
					strings.Join(strings.Fields(l.index[name]), " "))
			}
		}
	}
	l.files["README.md"], l.files["differences.md"] = b.String(), l.differing(everyRow(t))
}

// differing returns the page of differences.
func (l *library) differing(rows map[string]string) string {
	var d strings.Builder
	d.WriteString("# Differences from the original designs\n\nThis page compares the five [original " +
		"designs](../origins.md) with Hairpin. For each design:\n\n" +
		"- a table of its sections, rules and remarks. The last column has the corresponding rule of Hairpin, and " +
		"the test case that contains it;\n" +
		"- for each packet that both describe, the rules that differ, with the reason.\n\n" +
		"Rules are in the syntax of their tools, with the addresses of the test case.\n")
	for _, doc := range documents {
		fmt.Fprintf(&d, "\n## %s\n\n%s\n%s", doc.name, doc.about, rows[doc.name])
		for _, story := range slices.Sorted(maps.Keys(l.differences[doc.name])) {
			list := slices.Compact(slices.Sorted(slices.Values(l.differences[doc.name][story])))
			fmt.Fprintf(&d, "\n### [%s](%s.md)\n\n", strings.ReplaceAll(story, "-", " "), story)
			if len(list) == 0 {
				d.WriteString("The same.\n")
			}
			for _, x := range list {
				fmt.Fprintf(&d, "- %s\n", x)
			}
		}
	}
	return d.String()
}
