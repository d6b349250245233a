// Package hairpin holds no code: its tests check the rules of this repository
// (docs/design/overview.md) on the sources.
package hairpin

import (
	"bytes"
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const overview = "docs/design/overview.md"

// arrows reads the documented imports between groups of packages: lines "group → groups", each of
// which names only groups of later lines. A group includes its sub-packages, except those that are
// groups themselves. Tests may import more.
func arrows(t *testing.T) (groups []string, to map[string][]string) {
	t.Helper()
	text, err := os.ReadFile(overview)
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ = bytes.Cut(text, []byte("\n```\n"))
	block, _, _ := strings.Cut(string(text), "\npure ")
	to = map[string][]string{}
	for line := range strings.Lines(block) {
		from, list, _ := strings.Cut(line, "→")
		from = strings.TrimSpace(from)
		groups, to[from] = append(groups, from), strings.Fields(list)
	}
	for i, r := range groups {
		for _, x := range to[r] {
			if !slices.Contains(groups[i+1:], x) {
				t.Errorf("%s: the arrow from %s to %s does not point down", overview, r, x)
			}
		}
	}
	return groups, to
}

// only lists imports that few groups may have.
var only = map[string][]string{
	"k8s.io/client-go": {"kubeapi", "watch", "kube", "inspect", "lab"},
	"os/exec":          {"apply/ofctl", "apply/knft", "cni", "lab", "image", "cmd/lab"},
}

const (
	longestFile     = 450 // lines; the rule says about 400
	longestFunction = 80  // lines; the rule says about 60
)

type source struct {
	path, dir string // path in the tree; folder of it
	text      string
	file      *ast.File
	test      bool
}

func sources(t *testing.T) (*token.FileSet, []source) {
	t.Helper()
	fset := token.NewFileSet()
	var all []source
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." {
			_, nested := os.Stat(filepath.Join(path, "go.mod")) // another module
			if nested == nil || path == "bin" || strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir
			}
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, path, text, parser.ParseComments)
		if err != nil {
			return err
		}
		all = append(all, source{path, filepath.Dir(path), string(text), f, strings.HasSuffix(path, "_test.go")})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("found %d source files: not run in the root of the tree?", len(all))
	}
	return fset, all
}

// group returns the innermost documented group of a directory.
func group(dir string, groups []string) (inner string) {
	for _, r := range groups {
		if in(dir, []string{r}) && len(r) > len(inner) {
			inner = r
		}
	}
	return inner
}

func in(dir string, groups []string) bool {
	return slices.ContainsFunc(groups, func(r string) bool { return dir == r || strings.HasPrefix(dir, r+"/") })
}

// TestArrows checks that the documented imports between groups are exactly the real ones.
func TestArrows(t *testing.T) {
	groups, documented := arrows(t)
	found := map[string]map[string]bool{}
	_, all := sources(t)
	for _, s := range all {
		if s.test || s.dir == "." {
			continue
		}
		r := group(s.dir, groups)
		if r == "" {
			t.Errorf("%s: belongs to no group of packages; add it to %s", s.path, overview)
			continue
		}
		if found[r] == nil {
			found[r] = map[string]bool{}
		}
		for _, i := range s.file.Imports {
			path := strings.Trim(i.Path.Value, `"`)
			ours, ok := strings.CutPrefix(path, "hairpin/")
			if to := group(ours, groups); ok && to != r {
				found[r][to] = true
				if !slices.Contains(documented[r], to) {
					t.Errorf("%s imports %s: there is no arrow from %s to it in %s", s.path, path, r, overview)
				}
			}
			for prefix, groups := range only {
				if (path == prefix || strings.HasPrefix(path, prefix+"/")) && !in(s.dir, groups) {
					t.Errorf("%s imports %s: only %s may", s.path, path, strings.Join(groups, ", "))
				}
			}
		}
	}
	for _, r := range groups {
		if found[r] == nil {
			t.Errorf("%s: there is no group %s", overview, r)
		}
		for _, to := range documented[r] {
			if !found[r][to] {
				t.Errorf("%s: %s does not import %s", overview, r, to)
			}
		}
	}
}

// impure lists what a pure group does not import, with what is below it, and what it does not call.
// Types and arithmetic of package time are fine, its clock is not.
var (
	impure = []string{"os", "net", "syscall", "io/fs", "io/ioutil", "path/filepath", "embed", "log", "math/rand",
		"crypto/rand", "context", "sync", "runtime", "plugin",
		"testing", "golang.org/x", "k8s.io/client-go", "github.com/vishvananda"}
	impureCalls = map[string][]string{
		"time": {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"},
		"fmt":  {"Print", "Printf", "Println", "Scan", "Scanf", "Scanln"},
	}
)

// impureFor lists what packages of pure groups have in spite of that, and why.
var impureFor = map[string]map[string]string{
	"net/netip": {"": "values and their text; no network"},
	"os":        {"datapath/datapathtest": "tests read their examples with it"},
	"testing":   {"datapath/datapathtest": "tests read their examples with it"},
}

// impurities returns what a file of a pure group has that it may not have.
func impurities(dir string, file *ast.File) (found []string) {
	for _, i := range file.Imports {
		path := strings.Trim(i.Path.Value, `"`)
		if _, everywhere := impureFor[path][""]; !everywhere && impureFor[path][dir] == "" && in(path, impure) {
			found = append(found, "imports "+path)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = append(found, "starts a goroutine")
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && slices.Contains(impureCalls[x.Name], n.Sel.Name) {
				found = append(found, "uses "+x.Name+"."+n.Sel.Name)
			}
		}
		return true
	})
	return found
}

// TestPure checks that the groups documented as pure have no I/O, no clock and no goroutines.
func TestPure(t *testing.T) {
	text, err := os.ReadFile(overview)
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(text), "\npure ")
	line, _, _ = strings.Cut(line, "\n")
	_, line, _ = strings.Cut(line, ": ")
	pure := strings.Fields(line)
	if len(pure) < 5 {
		t.Fatalf("%s draws as pure: %v", overview, pure)
	}
	_, all := sources(t)
	for _, s := range all {
		if s.test || !in(s.dir, pure) {
			continue
		}
		for _, x := range impurities(s.dir, s.file) {
			t.Errorf("%s %s: %s is pure", s.path, x, group(s.dir, pure))
		}
	}
}

// TestImpurities checks what TestPure finds.
func TestImpurities(t *testing.T) {
	for code, want := range map[string]string{
		`import "os"`:                                   "imports os",
		`import "os/exec"`:                              "imports os/exec",
		`import "net"`:                                  "imports net",
		`import "net/http"`:                             "imports net/http",
		`import "net/netip"`:                            "",
		`import "time"; var _ = time.Second`:            "",
		`import "time"; var _ = time.Now()`:             "uses time.Now",
		`import "time"; var now = time.Now`:             "uses time.Now",
		`func f() { go f() }`:                           "starts a goroutine",
		`import "fmt"; func f() { fmt.Println("out") }`: "uses fmt.Println",
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\n"+code, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(impurities("x", f), ", "); got != want {
			t.Errorf("%s: found %q, wanted %q", code, got, want)
		}
	}
}

// notLinked lists, by group, what its programs must not link. Programs that inspect or explain
// change no system. client-go's clientset would make the program, and the agent's memory, larger by
// half.
var notLinked = map[string][]string{
	"cmd/hairpin": {"k8s.io/client-go/kubernetes", "k8s.io/client-go/kubernetes/scheme", "k8s.io/client-go/informers",
		"k8s.io/api/apps/v1"},
	"inspect": {"hairpin/ovsdb", "github.com/vishvananda/netlink"},
	"ui":      {"hairpin/ovsdb", "github.com/vishvananda/netlink"},
	"agent":   {"hairpin/ui/page", "hairpin/inspect", "k8s.io/client-go/tools/remotecommand"},
}

// TestLinks checks what a group links, including indirect imports.
func TestLinks(t *testing.T) {
	for r, list := range notLinked {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "./"+r).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range strings.Fields(string(out)) {
			if slices.Contains(list, p) {
				t.Errorf("%s links %s", r, p)
			}
		}
	}
}

func TestPackages(t *testing.T) {
	_, all := sources(t)
	documented := map[string]bool{}
	for _, s := range all {
		if !s.test || s.dir == "." {
			documented[s.dir] = documented[s.dir] || s.file.Doc != nil
		}
		if slices.Contains([]string{"util", "utils", "common", "helper", "helpers", "manager", "types"},
			s.file.Name.Name) {
			t.Errorf("%s: package %s says nothing about what it holds", s.path, s.file.Name.Name)
		}
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s: no package comment", dir)
		}
	}
}

func TestSizes(t *testing.T) {
	fset, all := sources(t)
	for _, s := range all {
		if n := strings.Count(s.text, "\n"); n > longestFile && !s.test {
			t.Errorf("%s has %d lines", s.path, n)
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil || s.test {
				continue
			}
			if n := fset.Position(f.End()).Line - fset.Position(f.Pos()).Line; n > longestFunction {
				t.Errorf("%s: %s has %d lines", s.path, f.Name.Name, n)
			}
		}
	}
}

const (
	widestCode    = 120 // columns; a tab counts as 4
	widestComment = 100
)

func columns(line string) int { return len([]rune(line)) + 3*strings.Count(line, "\t") }

// TestWidths: lines of code and of comments are not too wide, but for long strings and for text
// that comments indent.
func TestWidths(t *testing.T) {
	fset, all := sources(t)
	for _, s := range all {
		literals := map[int]int{} // columns of long strings, by line; of lines within a string all
		ast.Inspect(s.file, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING && len(l.Value) > 30 {
				first, last := fset.Position(l.Pos()).Line, fset.Position(l.End()).Line
				literals[first] += columns(l.Value)
				for i := first + 1; i <= last; i++ {
					literals[i] = columns(l.Value)
				}
			}
			return true
		})
		for i, line := range strings.Split(s.text, "\n") {
			comment, is := strings.CutPrefix(strings.TrimSpace(line), "//")
			indented := strings.HasPrefix(comment, "\t") || strings.HasPrefix(comment, "  ") ||
				!strings.Contains(comment, " ")
			if w := columns(line) - literals[i+1]; !is && w > widestCode || is && !indented && w > widestComment {
				t.Errorf("%s:%d: %d columns", s.path, i+1, columns(line))
			}
		}
	}
}

var (
	codeBlock    = regexp.MustCompile("(?s)```.*?```")
	relativeLink = regexp.MustCompile(`\]\(([^)\s:]+)\)`) // without a scheme
	heading      = regexp.MustCompile(`(?m)^#+ (.*)$`)
	linkText     = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	htmlComment  = regexp.MustCompile(`(?s)<!--.*?-->`)
	document     = regexp.MustCompile(`([\w./-]+\.md)(#[\w-]+)?`)
	notInAnchor  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// prose returns a Markdown file without its code blocks.
func prose(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return codeBlock.ReplaceAllString(string(text), "")
}

// leads reports whether a Markdown file exists and has the heading of an anchor, which may be
// empty.
func leads(t *testing.T, file, anchor string) bool {
	t.Helper()
	if _, err := os.Stat(file); err != nil || anchor == "" {
		return err == nil
	}
	return slices.ContainsFunc(heading.FindAllStringSubmatch(prose(t, file), -1), func(m []string) bool {
		text := linkText.ReplaceAllString(m[1], "$1")
		return strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(text), ""), " ", "-") == anchor
	})
}

// TestDocumentsInComments: a comment that names a Markdown file by its path names one that is in
// the tree, and a heading of it.
func TestDocumentsInComments(t *testing.T) {
	_, all := sources(t)
	for _, s := range all {
		if s.path == "house_test.go" {
			continue
		}
		for _, group := range s.file.Comments {
			for _, m := range document.FindAllStringSubmatch(group.Text(), -1) {
				if !leads(t, m[1], strings.TrimPrefix(m[2], "#")) {
					t.Errorf("%s: a comment names %s, which is not in the tree", s.path, m[0])
				}
			}
		}
	}
}

// TestUserPages: user pages say what the product does now. Dates, loads, tests and benchmarks
// belong in docs/development and bench/results.
func TestUserPages(t *testing.T) {
	history := regexp.MustCompile(`\b20\d\d-\d\d-\d\d\b|\bload (of )?\d|\bgo test\b|\b(Test|Benchmark)[A-Z]\w*|` +
		`\bmake (demo|test|bench|compare|churn|soak|scale|e2e)\b`)
	for _, folder := range []string{"docs/user", "docs/operations"} {
		pages, err := filepath.Glob(folder + "/*.md")
		if err != nil || len(pages) == 0 {
			t.Fatalf("%s has no page: %v", folder, err)
		}
		for _, file := range pages {
			if m := history.FindString(htmlComment.ReplaceAllString(prose(t, file), "")); m != "" {
				t.Errorf("%s: %q does not belong in a user page", file, m)
			}
		}
	}
}

// TestCommands: users find the command for a first look in README, developers the one for all tests
// in contributing.md.
func TestCommands(t *testing.T) {
	for file, command := range map[string]string{
		"README.md":                        "\nmake demo ",
		"docs/development/contributing.md": "\n| `make test` |",
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), command) {
			t.Errorf("%s does not show %q", file, command)
		}
	}
}

// TestPageWidths: lines of pages are not wider than comments, but for tables, code and generated
// lists.
func TestPageWidths(t *testing.T) {
	pages := []string{"README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md"}
	for _, folder := range []string{"user", "operations", "start", "reference", "development"} {
		list, err := filepath.Glob("docs/" + folder + "/*.md")
		if err != nil || len(list) == 0 {
			t.Fatalf("docs/%s has no page: %v", folder, err)
		}
		pages = append(pages, list...)
	}
	generated := []string{"docs/reference/api.md", "docs/reference/cli.md", "docs/reference/metrics.md"}
	for _, file := range pages {
		if slices.Contains(generated, file) {
			continue
		}
		for line := range strings.Lines(prose(t, file)) {
			line = strings.TrimRight(line, "\n")
			if len([]rune(line)) > widestComment && !strings.HasPrefix(strings.TrimSpace(line), "|") {
				t.Errorf("%s: %d columns: %s", file, len([]rune(line)), line)
			}
		}
	}
}

// TestScriptWidths: lines of scripts and their comments are not too wide.
func TestScriptWidths(t *testing.T) {
	scripts := []string{".ci/run"}
	for _, pattern := range []string{"image/entry/*", "image/*.sh", "lab/*.sh", "charts/*.sh"} {
		list, err := filepath.Glob(pattern)
		if err != nil || len(list) == 0 {
			t.Fatalf("there is no %s: %v", pattern, err)
		}
		scripts = append(scripts, list...)
	}
	for _, file := range scripts {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			limit := widestCode
			if strings.HasPrefix(strings.TrimSpace(line), "#") {
				limit = widestComment
			}
			if columns(line) > limit {
				t.Errorf("%s:%d: %d columns", file, i+1, columns(line))
			}
		}
	}
}

// TestDocumentLinks: every relative link of a Markdown file leads to a file, and to a heading that
// it has.
func TestDocumentLinks(t *testing.T) {
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == "bin" || d.Name() == "dist" || d.Name() == ".git") {
			return cmp.Or(err, fs.SkipDir)
		}
		if filepath.Ext(file) != ".md" {
			return nil
		}
		for _, m := range relativeLink.FindAllStringSubmatch(prose(t, file), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if target = filepath.Join(filepath.Dir(file), target); strings.HasPrefix(m[1], "#") {
				target = file
			}
			if !leads(t, target, anchor) {
				t.Errorf("%s: the link to %s leads nowhere", file, m[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

var openEnd = regexp.MustCompile(`\b(TODO|FIXME|XXX)\b(\(#\d+\))?`)

func TestNoOpenEnds(t *testing.T) {
	_, all := sources(t)
	for _, s := range all {
		if s.path == "house_test.go" {
			continue
		}
		for n, line := range strings.Split(s.text, "\n") {
			if m := openEnd.FindStringSubmatch(line); m != nil && m[2] == "" {
				t.Errorf("%s:%d: %s without an issue number: %s", s.path, n+1, m[1], strings.TrimSpace(line))
			}
		}
	}
}

// TestNoMutableState finds package variables that something assigns to. Tables of values, errors
// and compiled patterns are fine: nobody changes them.
func TestNoMutableState(t *testing.T) {
	_, all := sources(t)
	vars := map[string]map[string]bool{} // folder → names
	for _, s := range all {
		for _, d := range s.file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR || s.test {
				continue
			}
			for _, spec := range g.Specs {
				for _, n := range spec.(*ast.ValueSpec).Names {
					if vars[s.dir] == nil {
						vars[s.dir] = map[string]bool{}
					}
					vars[s.dir][n.Name] = true
				}
			}
		}
	}
	for _, s := range all {
		if s.test {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			a, ok := n.(*ast.AssignStmt)
			if !ok || a.Tok != token.ASSIGN {
				return true
			}
			for _, l := range a.Lhs {
				if id, ok := l.(*ast.Ident); ok && id.Name != "_" && id.Obj == nil && vars[s.dir][id.Name] {
					t.Errorf("%s: assigns to the package variable %s", s.path, id.Name)
				}
			}
			return true
		})
	}
}

// `make test` skips what lab/long-tests.txt lists. A line that names no test of its package would
// stop being run when the test is renamed.
func TestLongTests(t *testing.T) {
	const list = "lab/long-tests.txt"
	text, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		dir, pattern, _ := strings.Cut(strings.TrimSpace(line), " ")
		first, _, _ := strings.Cut(pattern, "/")
		function := "\nfunc " + strings.TrimSuffix(strings.TrimPrefix(first, "^"), "$") + "(t *testing.T) {"
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(text), function)
		}) {
			t.Errorf("%s: %s has no test %s", list, dir, first)
		}
	}
}
