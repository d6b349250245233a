package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"hairpin/lab/session"
)

// TestSessions checks the sessions in README.md and docs that need no node against the commands'
// output.
func TestSessions(t *testing.T) {
	changed := changedDemo(t)
	t.Chdir("../..")
	for file, commands := range map[string][]string{
		"README.md":                   {"go run ./cmd/hairpin plan -f ", "hairpin explain -f "},
		"docs/user/explain.md":        {"hairpin explain -f "},
		"docs/user/network-policy.md": {"hairpin explain -f ", "hairpin policies -f "},
	} {
		for _, command := range commands {
			for _, s := range session.Read(t, file, command) {
				t.Run(file+" "+s.Command, func(t *testing.T) {
					var out, errs bytes.Buffer
					_, args, _ := strings.Cut(s.Command, "hairpin ")
					c := root()
					c.SetArgs(strings.Fields(strings.ReplaceAll(args, "--diff changed", "--diff "+changed)))
					c.SetOut(&out)
					c.SetErr(&errs)
					err := c.Execute()
					if !s.Exactly(out.String()) {
						t.Errorf("it prints (error %v):\n%s%s", err, out.String(), errs.String())
					}
					if delivered := !strings.Contains(out.String(), "Not delivered"); delivered != (err == nil) {
						t.Errorf("delivered: %v, error: %v", delivered, err)
					}
				})
			}
		}
	}
}

// TestExplainPicture checks that the picture of README.md and docs/user/explain.md is what the
// command draws.
func TestExplainPicture(t *testing.T) {
	t.Chdir("../..")
	const file = "docs/user/explain.svg"
	var out bytes.Buffer
	c := root()
	c.SetArgs([]string{"explain", "-f", "examples/demo", "host/node-a", "svc/default/hostself", "-o", "svg"})
	c.SetOut(&out)
	if err := c.Execute(); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(file); err != nil || !bytes.Equal(have, out.Bytes()) {
		t.Errorf("%s is out of date (%v): go test ./cmd/hairpin -run ExplainPicture -update", file, err)
	}
}

// changedDemo returns the demo with the endpoint of hostself on node-b instead of node-a.
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

// TestExplainHostToItself explains a host that is its own Service's endpoint: the Service bridge's
// tables in both directions, the separate zones, and the two connections in the host's conntrack.
func TestExplainHostToItself(t *testing.T) {
	t.Chdir("../..")
	var out bytes.Buffer
	c := root()
	c.SetArgs([]string{"explain", "-v", "-f", "examples/demo", "host/node-a", "svc/default/hostself"})
	c.SetOut(&out)
	if err := c.Execute(); err != nil {
		t.Fatal(err)
	}
	there, back, _ := strings.Cut(out.String(), "\nREPLY\n")
	for _, w := range []struct{ way, text, want string }{
		{"there", there,
			"Classifier ServiceConntrack ServiceLB group EgressClassifier IngressClassifier ConntrackCommit SNAT"},
		{"back", back, "Classifier UnSNAT ExternalReply"},
	} {
		var tables []string
		for _, m := range regexp.MustCompile(`(?m)node-a: br-svc (\w+) `).FindAllStringSubmatch(w.text, -1) {
			tables = append(tables, m[1])
		}
		if got := strings.Join(tables, " "); got != w.want {
			t.Errorf("%s: tables %s, not %s", w.way, got, w.want)
		}
	}
	for _, want := range []string{
		"ct(table=10,zone=64003,nat)", "ct(commit,table=50,zone=64003,nat(dst=172.18.0.3:8081))",
		"ct(commit,zone=64004,nat(src=169.254.169.1),", "ct(table=36,zone=64004,nat)", "ct(table=37,zone=64003,nat)",
		"Host node-a sees two connections, which are parts of one:\n  1. 172.18.0.3:32768 > 10.96.1.3:80\n  2. " +
			"169.254.169.1:32768 > 172.18.0.3:8081\n",
		"Delivered to host node-a port 8081, which sees 169.254.169.1:32768; the reply comes from 10.96.1.3:80",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out.String())
		}
	}
}
