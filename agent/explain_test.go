package agent_test

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"hairpin/config"
	"hairpin/lab"
	"hairpin/lab/session"
	"hairpin/ui"
	"hairpin/ui/uitest"
)

// explains runs `hairpin explain --live` on a node, which reports no fault. Then, without repair by
// the agent, it reports each manually removed object as the fault, for the packets that need the
// object.
func explains(t *testing.T, n *lab.Node) {
	ask := func(args ...string) (string, bool) {
		t.Helper()
		out, err := n.Exec(t.Context(), append([]string{"hairpin", "explain", "--live", "-v"}, args...)...)
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return string(out), err == nil
	}
	if out, well := ask("host/node-a", "svc/default/hostself"); !well || strings.Contains(out, "FAULT") {
		t.Fatalf("nothing is wrong, but:\n%s", out)
	}
	repair(t, n, false)
	sh(t, n, `set -e
ovs-ofctl --strict del-flows br-svc table=30,priority=90,ip,in_port=svc-host
ovs-ofctl --strict del-flows br-svc table=20,priority=200,tcp,nw_dst=10.96.1.2,tp_dst=80
nft delete element inet hairpin nodeports4 '{ tcp . 30001 }'
ip -6 route del fd00:10:96::/112`)
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"host/node-a", "svc/default/hostself"},
			[]string{"FAULT on node-a, br-svc SNAT:",
				`table=30,priority=90,ip,in_port="svc-host" actions=ct(commit,zone=64004`, "object  Node/node-a"}},
		{[]string{"host/node-a", "svc/default/podremote"},
			[]string{"FAULT on node-a, br-svc ServiceLB:", "tcp,nw_dst=10.96.1.2,tp_dst=80 actions=group:",
				"object  Service/default/podremote"}},
		{[]string{"host/node-a", "svc/default/podlocal", "--node-port"},
			[]string{"FAULT on node-a, nft inet hairpin nodeport-output:", "nodeports4",
				"object  Service/default/podlocal"}},
		{[]string{"host/node-a", "svc/default/hostother", "--family", "6"},
			[]string{"FAULT on node-a, ip route:", "fd00:10:96::/112 via fd69::1", "object  Node/node-a"}},
	} {
		out, well := ask(c.args...)
		for _, want := range append(c.want, "[default] repair is off") {
			if well || !strings.Contains(out, want) {
				t.Errorf("%v: it does not say %q:\n%s", c.args, want, out)
			}
		}
	}
	shown := session.Read(t, "../docs/user/explain.md", "hairpin explain --live ")[0]
	if out, _ := ask("host/node-a", "svc/default/hostself"); !shown.Same(out) {
		t.Errorf("%s: the document shows\n%s\nand it prints\n%s", shown.Command, shown.Printed, out)
	}
	showsFault(t, n)
	comparesObjects(t, n)
	collects(t, n)
	repair(t, n, true)
	waitWell(t, n)
	if out, well := ask("host/node-a", "svc/default/podremote"); !well || strings.Contains(out, "FAULT") {
		t.Errorf("all is repaired, but:\n%s", out)
	}
}

// showsFault reads the pages that `hairpin ui` makes from the agent's data, while a flow is
// missing.
func showsFault(t *testing.T, n *lab.Node) {
	t.Helper()
	c := config.DefaultConfig()
	c.Process.RunDir = n.Path("/run/hairpin")
	base := uitest.Serve(t, ui.Options{}, c)
	for path, want := range map[string][]string{
		"/": {"1 node healthy", "<div>Open vSwitch ", `<span class="copied">hairpin status</span>`,
			`href="/problems"`},
		"/services":                         {`href="/walk?to=svc/default/web:tcp"`},
		"/egress":                           {"no EgressIP and no EgressService"},
		"/policies":                         {"The cluster has no policy."},
		"/problems":                         {"No object and no node has a problem."},
		"/pod/default/pod-a1":               {`<span class="copied">hairpin policies default/pod-a1</span>`},
		"/pod/default/pod-a1/policies.json": {`"pod": "default/pod-a1"`},
		"/node/node-a":                      {"GR_node-a", `href="/node/node-a?from=pod/default/pod-a1"`},
		"/walk?from=host/node-a&to=svc/default/hostself": {"Delivered to host node-a port 8081",
			"what is really there"},
		"/walk?from=host/node-a&to=svc/default/hostself&live=1": {"Drift: node-a, br-svc SNAT",
			`<a href="/node/node-a">Node/node-a</a>`,
			"Not delivered: switch node-a", `faulty"`, "[default] repair is off"},
	} {
		status, body, _ := uitest.Fetch(t, "GET", base+path, "")
		for _, w := range want {
			if status != 200 || !strings.Contains(body, w) {
				t.Errorf("%s: %d, without %q:\n%s", path, status, w, body)
			}
		}
	}
}

// comparesObjects runs `hairpin diff` for objects and systems, while flows, an nft element and a
// route are missing.
func comparesObjects(t *testing.T, n *lab.Node) {
	t.Helper()
	const flow = "table=20,priority=200,tcp,nw_dst=10.96.1.2,tp_dst=80"
	compare := func(code int, args ...string) string {
		t.Helper()
		out, err := n.Exec(t.Context(), append([]string{"hairpin", "diff"}, args...)...)
		got, exit := 0, (*exec.ExitError)(nil)
		if errors.As(err, &exit) {
			got = exit.ExitCode()
		}
		if got != code {
			t.Errorf("diff %v: exit code %d (%v), not %d:\n%s", args, got, err, code, out)
		}
		return out
	}
	const podremote = "--object=Service/default/podremote"
	if out := compare(1, podremote); strings.Count(out, "\n") != 1 || !strings.Contains(out, flow) ||
		!strings.HasPrefix(out, "- ") || !strings.HasSuffix(out, " # Service/default/podremote\n") {
		t.Errorf("the missing flow of podremote: %s", out)
	}
	compare(0, podremote, "--system=nft,host")
	compare(0, "--object=Service/default/web")
	compare(2, "--object=Service/default/none")
	sh(t, n, `ovs-ofctl add-flow br-svc cookie=0xdeff105,`+flow+`,actions=drop`)
	if out := compare(1, podremote); strings.Count(out, "\n") != 2 ||
		!strings.Contains(out, "\n+ cookie=0xdeff105,"+flow) ||
		!strings.HasSuffix(out, " actions=drop # Service/default/podremote\n") {
		t.Errorf("the changed flow of podremote: %s", out)
	}
	sh(t, n, `ovs-ofctl --strict del-flows br-svc `+flow)
	if out := compare(1, "--system=nft", "-o", "json"); !strings.Contains(out, `"node": "node-a"`) ||
		!strings.Contains(out, "30001") || strings.Contains(out, "openvswitch") {
		t.Errorf("the differences of nft: %s", out)
	}
}

// repair starts the agent with or without repair.
func repair(t *testing.T, n *lab.Node, on bool) {
	t.Helper()
	script := `sed -i '/^repair = /d' ` + settings
	if !on {
		script += ` && sed -i '1i [default]\nrepair = false\n' ` + settings
	} else {
		script = `sed -i '1,2{/^\[default\]$/d;/^repair = /d}' ` + settings
	}
	if err := n.Kill(t.Context(), agent, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	sh(t, n, script)
	if err := n.Start(t.Context(), agent); err != nil {
		t.Fatal(err)
	}
	// Facts that the agent learns after its start change the desired state: it writes all of it.
	const quiet = 3 * time.Second
	applies, since := -1, time.Now()
	eventually(t, time.Minute, "the agent is there, and applies nothing any more", func() (bool, string) {
		r, err := reportOf(t.Context(), n)
		if err != nil {
			return false, err.Error()
		}
		all := 0
		for _, p := range r.Parts {
			all += int(p.Applies)
		}
		if all != applies {
			applies, since = all, time.Now()
		}
		return r.Ready && r.NoRepair != on && time.Since(since) > quiet, r.Reason
	})
}

// collects requests the archive of a node on which something is missing, and whose log contains a
// secret.
func collects(t *testing.T, n *lab.Node) {
	const secret = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJub2JvZHkifQ.c2VjcmV0"
	sh(t, n, `mkdir -p /var/log/ovn && echo "Authorization: Bearer `+secret+
		`" >> /var/log/ovn/secret.log; hairpin collect --file /run/all.tar.gz; rm /var/log/ovn/secret.log; hairpin ask /found | grep -q table=36`)
	files := members(t, n.Path("/run/all.tar.gz"))
	for name, want := range map[string]string{
		"report.json": `"noRepair":true`, "configuration.txt": "[default] repair = false",
		"snapshot.json": `"hostself"`, "wanted.txt": `table=30,priority=90,ip,in_port="svc-host"`,
		"differences.txt": `table=30,priority=90,ip,in_port="svc-host"`, "found.txt": "table=36,",
		"counters.txt": "n_packets=", "metrics.txt": "# HELP hairpin_",
		"version.txt": "", "kernel-net-dev.txt": "br-ex", "logs/secret.log": "<left out>",
	} {
		if got, ok := files["hairpin/"+name]; !ok || !strings.Contains(got, want) {
			t.Errorf("%s is there: %v, and does not say %q:\n%.300s", name, ok, want, got)
		}
	}
	if strings.Contains(files["hairpin/found.txt"], `table=30,priority=90,ip,in_port="svc-host" `) {
		t.Error("found.txt has a flow that was deleted")
	}
	for name, text := range files {
		if strings.Contains(text, secret) {
			t.Errorf("%s has a secret", name)
		}
	}
}

// members reads an archive.
func members(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		out[h.Name] = string(text)
	}
}
