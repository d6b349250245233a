package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The sessions of docs/explain.md that need no node are what the command prints. A line with … stands for any lines.
func TestExplainDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/explain.md")
	if err != nil {
		t.Fatal(err)
	}
	sessions := regexp.MustCompile("(?s)```\n\\$ hairpin (explain -f .*?)\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(sessions) < 4 {
		t.Fatalf("%d sessions", len(sessions))
	}
	changed := changedDemo(t)
	t.Chdir("../..")
	for _, s := range sessions {
		t.Run(s[1], func(t *testing.T) {
			var out, errs bytes.Buffer
			c := root()
			c.SetArgs(strings.Fields(strings.ReplaceAll(s[1], "--diff changed", "--diff "+changed)))
			c.SetOut(&out)
			c.SetErr(&errs)
			err := c.Execute()
			var parts []string
			for _, p := range strings.Split("\n"+s[2], "\n…") {
				parts = append(parts, regexp.QuoteMeta(p))
			}
			want := regexp.MustCompile("^" + strings.Join(parts, "(?s:\n.*?)") + "$")
			if !want.MatchString("\n" + out.String()) {
				t.Errorf("it prints (error %v):\n%s%s", err, out.String(), errs.String())
			}
			if delivered := !strings.Contains(out.String(), "Not delivered"); delivered != (err == nil) {
				t.Errorf("delivered: %v, error: %v", delivered, err)
			}
		})
	}
}

// changedDemo is the demo with the endpoint of hostself on node-b instead of node-a.
func changedDemo(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	files, err := filepath.Glob("../../examples/demo/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no manifests: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text = bytes.ReplaceAll(text, []byte(`addresses: ["172.18.0.3"]`), []byte(`addresses: ["172.18.0.4"]`))
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
