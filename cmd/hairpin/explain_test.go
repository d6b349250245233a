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

// The host that calls a Service that is itself: the tables of the gateway bridge there and back, the zones that part the
// connection, and the two connections that the host believes in.
func TestExplainHostToItself(t *testing.T) {
	t.Chdir("../..")
	var out bytes.Buffer
	c := root()
	c.SetArgs([]string{"explain", "-f", "examples/demo", "host/node-a", "svc/default/hostself"})
	c.SetOut(&out)
	if err := c.Execute(); err != nil {
		t.Fatal(err)
	}
	there, back, _ := strings.Cut(out.String(), "\nREPLY\n")
	for _, w := range []struct{ way, text, want string }{{"there", there, "0 2 0 4 3"}, {"back", back, "0 5 2 0 3"}} {
		var tables []string
		for _, m := range regexp.MustCompile(`(?m)node-a: br-ex table (\d+)`).FindAllStringSubmatch(w.text, -1) {
			tables = append(tables, m[1])
		}
		if got := strings.Join(tables, " "); got != w.want {
			t.Errorf("%s: tables %s, not %s", w.way, got, w.want)
		}
	}
	for _, want := range []string{
		"ct(commit,table=2,zone=64001,nat(src=169.254.169.2))", "ct(commit,table=3,zone=64002,nat(src=169.254.169.1))", "ct(table=5,zone=64002,nat)", "ct(table=2,zone=64001,nat)",
		"Host node-a sees two connections, which are parts of one:\n  1. 172.18.0.3:32768 > 10.96.1.3:80\n  2. 169.254.169.1:32768 > 172.18.0.3:8081\n",
		"Delivered to host node-a port 8081, which sees 169.254.169.1:32768; the reply comes from 10.96.1.3:80",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out.String())
		}
	}
}
