package plan_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"hairpin/datapath/flow"
	"hairpin/walk"
	"hairpin/walk/explain"
)

// walks is where the stories stand as documentation.
const walks = "../docs/walks"

// library is what docs/walks must hold: made of the stories, with the same `make golden`.
type library struct {
	told  int // stories
	files map[string]string
	index map[string]string // page to its first words
	// differences are those between the documents' walks and ours, by story.
	differences map[string][]string
}

func newLibrary() *library {
	return &library{files: map[string]string{}, index: map[string]string{}, differences: map[string][]string{}}
}

// add makes the page of a story that has walks: each with its steps, the first with a picture, and beside the document's
// where a section "document WALK" tells what stands there.
func (l *library) add(t *testing.T, name string, archive *txtar.Archive, s *story) {
	t.Helper()
	l.told++
	title := strings.TrimSpace(string(archive.Comment))
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n\nThe objects and all that the nodes must have for them: [plan/testdata/%s.txtar](../../plan/testdata/%s.txtar).\n\n",
		strings.ReplaceAll(name, "-", " "), title, name, name)
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
		picture := ""
		if pictures++; pictures == 1 {
			picture = name + ".svg"
			l.files[picture] = e.SVG()
		}
		b.WriteString(e.Markdown(2, picture))
		i := slices.IndexFunc(archive.Files, func(d txtar.File) bool { return d.Name == "document "+f.Name })
		if i < 0 {
			continue
		}
		beside, differences, err := compare(string(archive.Files[i].Data), e.Trace)
		if err != nil {
			t.Errorf("%s: %v", archive.Files[i].Name, err)
		}
		b.WriteString(beside)
		l.differences[name] = append(l.differences[name], differences...)
	}
	if pictures > 0 {
		l.index[name] = title
		l.files[name+".md"] = b.String()
	}
}

// explain is story.walk, told for a page.
func (s *story) explain(words []string) (*explain.Explanation, error) {
	trace, err := s.trace(words)
	if err != nil {
		return nil, err
	}
	from, via, _ := strings.Cut(words[0], "@")
	return explain.Of(s.world.Snapshot, explain.Question{From: from, To: words[2], Via: via, Protocol: trace.Sent.Protocol}, trace)
}

// A line of a document's walk: "there flow FLOW", "back flow FLOW" or "there CT src=… dst=… src=… dst=… zone=…". A line
// that begins with ! says why ours is not what the line before says; one that is not needed is an error, as is one that
// is missing.
func compare(text string, t walk.Trace) (page string, differences []string, err error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	var b strings.Builder
	b.WriteString("Beside the document:\n\n| | the document | Hairpin | |\n|---|---|---|---|\n")
	next := map[string]int{}
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
		steps := t.Forward
		if way == "back" {
			steps = t.Reply
		}
		at, ours, same := find(what, steps, next[way])
		if at >= 0 {
			next[way] = at
		}
		switch {
		case same && why != "":
			return "", nil, fmt.Errorf("%s: ours is the same, but the story says why it is not", line)
		case same:
			fmt.Fprintf(&b, "| %s | `%s` | step %d | the same |\n", way, what, at+1)
		case why == "":
			return "", nil, fmt.Errorf("%s: ours is %s; the next line must say why: ! …", line, ours)
		default:
			fmt.Fprintf(&b, "| %s | `%s` | %s | %s |\n", way, what, ours, why)
			differences = append(differences, fmt.Sprintf("document: `%s`\n  ours: %s\n  %s", what, ours, why))
		}
	}
	return b.String() + "\n", differences, nil
}

// find looks for the document's flow or entry among the steps from one on. It gives the step that has it, or the one that
// is there in its stead.
func find(what string, steps []walk.Step, from int) (at int, ours string, same bool) {
	kind, rest, _ := strings.Cut(what, " ")
	instead, words := -1, "nothing"
	for i := from; i < len(steps); i++ {
		var mine string
		switch kind {
		case "flow":
			if !strings.Contains(steps[i].Stage, " table ") {
				continue
			}
			_, mine, _ = strings.Cut(steps[i].Rule, ",")
			if mine == rest {
				return i, "", true
			}
			if instead < 0 && sameTable(mine, rest) {
				instead, words = i, fmt.Sprintf("step %d: `%s`", i+1, mine)
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
		}
	}
	return instead, words, false
}

// sameTable tells whether two flows are of one table and priority.
func sameTable(a, b string) bool {
	list := map[[2]uint16]bool{}
	for _, text := range []string{a, b} {
		f, err := flow.Parse("cookie=0xdeff105," + text + "\n")
		if err != nil {
			return false
		}
		for k := range f.Flows {
			list[[2]uint16{uint16(k.Table), k.Priority}] = true
		}
	}
	return len(list) == 1
}

// withoutPorts gives the addresses, mark and zone of an entry.
func withoutPorts(entry string) string {
	return strings.Join(slices.DeleteFunc(strings.Fields(entry), func(w string) bool {
		return strings.HasPrefix(w, "sport=") || strings.HasPrefix(w, "dport=") || strings.HasPrefix(w, "mark=") || !strings.Contains(w, "=")
	}), " ")
}

// sameEntry compares an entry of ours with one of the document. The numbers of OVN's own zones are ovn-controller's
// choice: the document has 16, ours a name.
func sameEntry(ours, document string) bool {
	if a, zone, ok := strings.Cut(ours, " zone="); ok && strings.HasPrefix(zone, "GR_") {
		ours = a + " zone=16"
	}
	return ours == document
}

// check compares docs/walks with what it must hold, or writes it.
func (l *library) check(t *testing.T) {
	t.Helper()
	l.readme()
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

// readme is the list of pages, and the page of differences.
func (l *library) readme() {
	var b, d strings.Builder
	b.WriteString("# Walks\n\nPackets through every table, as `hairpin explain` tells them. These pages are made from the stories that the tests run\n" +
		"(`make golden`); a test fails when they are stale. Where host-to-service.md walks the same packet, ours stands beside it, and\n" +
		"[differences.md](differences.md) lists where ours is another and why.\n\n")
	d.WriteString("# Where ours differs from the documents' walks\n\nCookies differ in their upper half, which says what feature a flow belongs to; ports have other names. Beyond that:\n")
	var names []string
	for name := range l.index {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&b, "- [%s](%s.md): %s\n", strings.ReplaceAll(name, "-", " "), name, strings.Join(strings.Fields(l.index[name]), " "))
		if list := l.differences[name]; len(list) > 0 {
			fmt.Fprintf(&d, "\n## [%s](%s.md)\n\n", strings.ReplaceAll(name, "-", " "), name)
			slices.Sort(list)
			for _, x := range slices.Compact(list) {
				fmt.Fprintf(&d, "- %s\n", x)
			}
		}
	}
	l.files["README.md"], l.files["differences.md"] = b.String(), d.String()
}
