// Package hairpin holds no code: its tests are the rules of the house (docs/architecture.md), checked on the sources.
package hairpin

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// arrows lists what of ours each room may import; a room includes its sub-packages. Tests may import more: they stand
// outside of the rooms.
var arrows = map[string][]string{
	"api":         {},
	"cluster":     {"api"},
	"claims":      {},
	"ovsdb":       {},
	"image":       {},
	"datapath":    {"cluster", "claims"},
	"plan":        {"cluster", "claims", "datapath"},
	"walk":        {"cluster", "claims", "datapath"},
	"watch":       {"cluster", "api"},
	"apply":       {"datapath", "ovsdb", "cluster", "claims"},
	"cni":         {"cluster", "claims", "ovsdb"},
	"config":      {"cluster"},
	"report":      {},
	"run":         {"config", "report", "api", "watch", "plan", "walk", "apply", "cni", "datapath", "cluster", "claims", "ovsdb"},
	"lab":         {"run", "image", "watch", "cluster", "claims", "ovsdb"},
	"cmd/hairpin": {"run", "config", "report", "cni"},
	"cmd/lab":     {"lab", "image"},
}

// only lists imports that few rooms may have.
var only = map[string][]string{
	"k8s.io/client-go": {"watch", "run", "lab"},
	"os/exec":          {"apply/ofctl", "apply/knft", "lab", "image", "cmd/lab"},
}

const (
	longestFile     = 450 // lines; the rule says about 400
	longestFunction = 70  // lines; the rule says about 60
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

func room(dir string) string {
	for r := range arrows {
		if dir == r || strings.HasPrefix(dir, r+"/") {
			return r
		}
	}
	return ""
}

func in(dir string, rooms []string) bool {
	return slices.ContainsFunc(rooms, func(r string) bool { return dir == r || strings.HasPrefix(dir, r+"/") })
}

func TestArrows(t *testing.T) {
	_, all := sources(t)
	for _, s := range all {
		if s.test || s.dir == "." {
			continue
		}
		r := room(s.dir)
		if r == "" {
			t.Errorf("%s: no room of the house; draw it in docs/architecture.md and here", s.path)
			continue
		}
		for _, i := range s.file.Imports {
			path := strings.Trim(i.Path.Value, `"`)
			if ours, ok := strings.CutPrefix(path, "hairpin/"); ok && !in(ours, arrows[r]) && !in(ours, []string{r}) {
				t.Errorf("%s imports %s: there is no arrow from %s to it", s.path, path, r)
			}
			for prefix, rooms := range only {
				if (path == prefix || strings.HasPrefix(path, prefix+"/")) && !in(s.dir, rooms) {
					t.Errorf("%s imports %s: only %s may", s.path, path, strings.Join(rooms, ", "))
				}
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
		if slices.Contains([]string{"util", "utils", "common", "helper", "helpers", "manager", "types"}, s.file.Name.Name) {
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

// TestNoMutableState finds package variables that something assigns to. Tables of values, errors and compiled
// patterns are fine: nobody changes them.
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
