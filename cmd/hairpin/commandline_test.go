package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hairpin/lab/quickstart"
	"hairpin/report"
)

// execute returns the output of a command line.
func execute(t *testing.T, words ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c := root()
	c.SetArgs(append([]string{}, words...)) // nil: those of the test
	c.SetOut(&out)
	c.SetErr(&out)
	err := c.Execute()
	return out.String(), err
}

// TestErrors checks that an error about the command line names its cause and a remedy.
func TestErrors(t *testing.T) {
	const demo = "../../examples/demo"
	nothing, broken := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(broken, "a.yaml"), []byte("kind: ["), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", filepath.Join(nothing, "none"))
	t.Setenv("HOME", nothing)
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, c := range []struct {
		words []string
		want  string
	}{
		{[]string{"explai"}, "has no command \"explai\"; nearest: explain\nusage: hairpin COMMAND\nsee hairpin --help"},
		{[]string{"nothing"}, "has no command \"nothing\"\nusage: hairpin COMMAND"},
		{[]string{"config"}, "needs convert FILE… or pools FILE…\nusage: hairpin config COMMAND"},
		{[]string{"config", "pool"}, "has no command \"pool\"; nearest: pools\nusage: hairpin config COMMAND"},
		{[]string{"config", "pools"}, "needs at least one FILE\nusage: hairpin config pools FILE…"},
		{[]string{"status", "node-a"}, "takes no arguments, and has \"node-a\"\nusage: hairpin status [flags]"},
		{[]string{"policies"}, "needs exactly [NAMESPACE/]POD, not 0 arguments\nusage: hairpin policies"},
		{[]string{"policies", "-f", "../../examples/network-policy", "shop/dbb"},
			`there is no Pod "shop/dbb" with an address of its own (policies do not apply to Pods in the host's ` +
				"network); nearest: shop/db"},
		{[]string{"explain"},
			"needs exactly FROM and TO, not 0 arguments\nusage: hairpin explain FROM TO [flags]\nsee " +
				"hairpin explain --help"},
		{[]string{"explain", "--colour", "a", "b"}, "unknown flag: --colour\nusage: hairpin explain FROM TO"},
		{[]string{"explain", "-f", nothing, "host/node-a", "svc/default/web"}, nothing + ": has no Node in its *.yaml"},
		{[]string{"explain", "-f", broken, "host/node-a", "svc/default/web"}, "File/a.yaml: document 1: "},
		{[]string{"explain", "-f", demo, "--diff", nothing, "host/node-a", "svc/default/web"}, "--diff " + nothing},
		{[]string{"explain", "-f", demo, "host/node-a", "svc/default/web", "--proto", "icmp"},
			`--proto "icmp": must be tcp, udp or sctp`},
		{[]string{"explain", "-f", demo, "host/node-a", "outside/192.0.2.1:99999"},
			`TO "outside/192.0.2.1:99999": "99999" is not a port number (1 to 65535)`},
		{[]string{"explain", "--run-dir", nothing, "host/node-a", "svc/default/web"},
			"no agent answers on this node: nothing listens at " + nothing +
				"/agent.sock (is `hairpin node` running?); -f DIR reads"},
		{[]string{"explain", "--all", "host/node-a", "svc/default/web"}, "there is no kubeconfig"},
		{[]string{"status", "--run-dir", nothing},
			"/agent.sock (is `hairpin node` running?); --all asks every node through the Kubernetes API"},
		{[]string{"status", "--all"}, "there is no kubeconfig"},
		{[]string{"status", "--context", "prod"}, `context "prod" does not exist`},
		{[]string{"preflight", "--context", "prod"}, `context "prod" does not exist`},
		{[]string{"status", "-o", "xml"}, `"xml" for "-o, --output" flag: is none of text, wide, json, yaml`},
		{[]string{"explain", "-o", "wide", "a", "b"}, "flag: is none of text, json, yaml, markdown, svg"},
		{[]string{"preflight", "-o", "wide"}, "flag: is none of text, json, yaml"},
		{[]string{"diff", "--run-dir", nothing}, "no agent answers on this node"},
		{[]string{"diff", "--all"}, "there is no kubeconfig"},
		{[]string{"diff", "--system", "ovs"}, `--system: "ovs" is none of ovn, openvswitch, nft`},
		{[]string{"diff", "--object", "web"}, `--object: "web" is not KIND/NAMESPACE/NAME`},
		{[]string{"diff", "-o", "xml"}, `"xml" for "-o, --output" flag: is none of text, wide, json, yaml`},
		{[]string{"plan"}, "needs manifests: -f DIR"},
		{[]string{"plan", "-f", demo, "--node", "x"},
			`has no Node "x"; choose one with --node: node-a, node-b, node-c`},
		{[]string{"plan", "-f", demo, "--node", "node-a", "--gateway-mode", "local"},
			"--gateway-mode changes nothing: the annotation k8s.ovn.org/l3-gateway-config of Node node-a has shared"},
		{[]string{"plan", "-f", demo, "--node", "node-a", "--system", "ovs"},
			`--system: "ovs" is none of ovn, openvswitch, nft, host, connections, redirect`},
		{[]string{"plan", "-f", demo, "--node", "node-a", "--object", "web"},
			`--object: "web" is not KIND/NAMESPACE/NAME`},
		{[]string{"plan", "-f", demo, "--node", "node-a", "--object", "Service/default/none"},
			"--object Service/default/none: nothing is planned for it on node node-a"},
		{[]string{"plan", "-f", demo, "--node", "node-a", "--object", "svc/web"},
			"nothing is planned for it on node node-a; nearest: Service/default/web"},
		{[]string{"plan", "-f", demo, "--node", "node-a", "--system", "redirect"},
			"--system redirect: nothing is planned for it on node node-a"},
		{[]string{"explain", "-f", demo, "--gateway-mode", "local", "host/node-a", "svc/default/web"},
			"--gateway-mode changes nothing: the annotation k8s.ovn.org/l3-gateway-config of Node node-a has shared"},
		{[]string{"plan", "-f", demo, "--node", "node-a", "--service-engine", "ovn"},
			"--service-engine changes nothing: the annotation k8s.ovn.org/l3-gateway-config of Node node-a has openflow"},
		{[]string{"explain", "-f", demo, "--gateway-nodeport-path", "redirect", "outside", "svc/default/web"},
			"--gateway-nodeport-path changes nothing: the annotation k8s.ovn.org/l3-gateway-config of " +
				"Node node-a has nft"},
		{[]string{"explain", "--gateway-mode", "local", "--run-dir", nothing, "host/node-a", "svc/default/web"},
			"--gateway-mode changes nothing: the configuration is that of the nodes' agents"},
		{[]string{"explain", "-f", demo, "--live", "--service-cidrs", "10.0.0.0/8", "host/node-a", "svc/default/web"},
			"--service-cidrs changes nothing: the configuration is that of the nodes' agents"},
		{[]string{"ui", "-f", demo, "--gateway-mode", "local"}, "--gateway-mode changes nothing"},
		{[]string{"ui", "--run-dir", nothing}, "no agent answers on this node"},
		{[]string{"ui", "-f", demo, "--listen", "0.0.0.0:0"}, `--listen "0.0.0.0:0": is not a loopback address`},
		{[]string{"probe"}, "needs exactly one endpoint, not 0 arguments\nusage: hairpin probe livez|readyz|healthz|metrics"},
	} {
		if out, err := execute(t, c.words...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, without %q\n%s", c.words, err, c.want, out)
		}
	}
}

// TestQuickStartCommands checks that the program accepts its command lines in the quick starts.
func TestQuickStartCommands(t *testing.T) {
	for _, page := range quickstart.Pages {
		steps, err := quickstart.Read("../..", page)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range steps {
			words, ok := strings.CutPrefix(strings.TrimPrefix(s.Command, "kubectl "), "hairpin ")
			if !ok {
				continue
			}
			c, args, err := root().Find(strings.Fields(words))
			if err == nil {
				err = c.ParseFlags(args)
			}
			if err == nil {
				err = c.ValidateArgs(c.Flags().Args())
			}
			if err != nil {
				t.Errorf("%s: %s: %v", page, s.Command, err)
			}
		}
	}
}

// TestPlanOfObject checks that plan prints what a Service has in each system, and nothing else.
func TestPlanOfObject(t *testing.T) {
	const object = "Service/default/podlocal"
	words := []string{"plan", "-f", "../../examples/demo", "--node", "node-a", "--object", object}
	all, err := execute(t, words...)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"### Open vSwitch", "bridge br-svc\n", "### nft", "tcp . 30001"} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
	for line := range strings.Lines(all) {
		if !strings.HasPrefix(line, "### ") && !strings.HasPrefix(line, "bridge ") && !strings.Contains(line, object) {
			t.Errorf("is of another object: %s", line)
		}
	}
	some, err := execute(t, append(words, "--system", "nft")...)
	if err != nil || !strings.HasPrefix(some, "### nft\n") || !strings.Contains(all, some) {
		t.Errorf("only nft: %v\n%s", err, some)
	}
}

// TestCollectWithoutAgent checks that collect names the node and what it could not get, writes the
// rest, and fails.
func TestCollectWithoutAgent(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.tar.gz")
	out, err := execute(t, "collect", "--node=node-x", "--run-dir", dir, "--file", file)
	if !errors.Is(err, report.ErrProblems) {
		t.Errorf("error is %v", err)
	}
	for _, want := range []string{
		"node-x: could not get report.json and 7 more: no agent answers on this node: nothing listens at " + dir,
		"written to " + file,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %q", want, out)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Size() == 0 {
		t.Error(info, err)
	}
}

// TestHelp checks that the help of a command that only reads fits on a screen, and refers to the
// rest.
func TestHelp(t *testing.T) {
	for _, command := range []string{"explain", "ui", "status", "plan", "diff", "collect", "probe"} {
		out, err := execute(t, command, "--help")
		if n := strings.Count(out, "\n"); err != nil || n > 50 || !strings.Contains(out, "hairpin node --help") {
			t.Errorf("%s: %d lines, %v\n%s", command, n, err, out)
		}
	}
	if out, err := execute(t, "node", "--help"); err != nil || !strings.Contains(out, "--gateway-mode") ||
		!strings.Contains(out, "--conntrack-min") {
		t.Errorf("node: %v\n%s", err, out)
	}
	if out, err := execute(t); err != nil || !strings.Contains(out, "\nInspect:\n") ||
		!strings.Contains(out, "Follow a packet") {
		t.Errorf("nothing: %v\n%s", err, out)
	}
}
