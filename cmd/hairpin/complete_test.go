package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestCompletion checks the candidates that shells get for objects, nodes and option values.
func TestCompletion(t *testing.T) {
	const demo = "../../examples/demo"
	config := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(config, []byte(`{apiVersion: v1, kind: Config, current-context: test, contexts: [
  {name: test, context: {cluster: c}}, {name: prod, context: {cluster: c}}],
  clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", config)
	for _, c := range []struct {
		words []string
		want  []string // among the candidates
		not   string
	}{
		{[]string{"explain", "-f", demo, ""}, []string{"outside", "host/node-a", "pod/default/pod-a1"},
			"svc/default/web"},
		{[]string{"explain", "-f", demo, "host/"}, []string{"host/node-a", "host/node-b", "host/node-c"}, "outside"},
		{[]string{"explain", "-f", demo, "host/node-a", "svc/default/w"},
			[]string{"svc/default/web", "svc/default/web:tcp", "svc/default/web:udp"}, "svc/default/hostself"},
		{[]string{"explain", "-f", demo, "host/node-a", "pod/"}, []string{"pod/default/pod-a1:"}, "host/node-a"},
		{[]string{"explain", "-f", demo, "outside", "svc/default/web", ""}, nil, "outside"},
		{[]string{"explain", "-f", demo, "outside", "svc/default/web", "--via", ""}, []string{"node-b"}, "outside"},
		{[]string{"explain", "-f", demo, "outside", "svc/default/web:tcp", "--endpoint", ""},
			[]string{"10.244.1.3", "fd00:10:244:1::3"}, "172.18.0.3"},
		{[]string{"explain", "--proto", ""}, []string{"tcp", "udp", "sctp"}, ""},
		{[]string{"explain", "-o", ""}, []string{"text", "json", "yaml", "svg"}, "wide"},
		{[]string{"status", "-o", ""}, []string{"text", "wide", "json", "yaml"}, ""},
		{[]string{"policies", "-o", ""}, []string{"text", "wide", "json", "yaml"}, ""},
		{[]string{"preflight", "-o", ""}, []string{"text", "json", "yaml"}, ""},
		{[]string{"diff", "--system", "ovn,"}, []string{"ovn,nft"}, "nft"},
		{[]string{"status", "--context", ""}, []string{"prod", "test"}, ""},
		{[]string{"collect", "--context", ""}, []string{"prod", "test"}, ""},
		{[]string{"test", "--context", ""}, []string{"prod", "test"}, ""},
		{[]string{"test", "--kubeconfig", "none", "--context", ""}, nil, "prod"},
		{[]string{"test", "--nodes", ""}, nil, "node-a"}, // the cluster does not answer
		{[]string{"policies", "-f", demo, "default/pod-a"}, []string{"default/pod-a1", "default/pod-a2"},
			"default/pod-b1"},
		{[]string{"plan", "-f", demo, "--node", ""}, []string{"node-a", "node-b", "node-c"}, ""},
		{[]string{"diff", "--system", ""}, []string{"ovn", "openvswitch", "nft"}, ""},
		{[]string{"diff", "-o", ""}, []string{"text", "wide", "json", "yaml"}, ""},
		{[]string{"explain", "-f", t.TempDir(), ""}, nil, "outside"}, // without a cluster
	} {
		out, err := execute(t, append([]string{"__complete"}, c.words...)...)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(out, "\n")
		for _, want := range c.want {
			if !slices.Contains(lines, want) {
				t.Errorf("%q: no candidate %q:\n%s", c.words, want, out)
			}
		}
		if c.not != "" && slices.Contains(lines, c.not) {
			t.Errorf("%q: candidate %q:\n%s", c.words, c.not, out)
		}
	}
}

// TestPluginArguments checks that the plugin of kubectl and its completion are about all nodes.
func TestPluginArguments(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"/bin/hairpin explain a b", "explain a b"},
		{"/bin/kubectl-hairpin explain a b", "explain --all a b"},
		{"/bin/kubectl-hairpin version", "version"},
		{"/bin/kubectl-hairpin", ""},
		{"kubectl-hairpin.exe status", "status --all"},
		{"kubectl-hairpin diff --object a", "diff --all --object a"},
		{"kubectl-hairpin __complete explain a", "__complete explain --all a"},
		{"kubectl_complete-hairpin explain pod/", "__complete explain --all pod/"},
		{"kubectl_complete-hairpin", "__complete"},
		{"kubectl_complete-hairpin pl", "__complete pl"},
	} {
		if got := strings.Join(arguments(strings.Fields(c.args)), " "); got != c.want {
			t.Errorf("%s: %q, not %q", c.args, got, c.want)
		}
	}
}

// TestVersionFlag checks that --version prints what the command version prints.
func TestVersionFlag(t *testing.T) {
	flag, err := execute(t, "--version")
	command, second := execute(t, "version")
	if err != nil || second != nil || flag != command || strings.Count(flag, "\n") != 1 {
		t.Errorf("%q, %q: %v, %v", flag, command, err, second)
	}
}
