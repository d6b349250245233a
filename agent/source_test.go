package agent_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"hairpin/lab"
	"hairpin/lab/probe"
)

// alone is a lab with one node, and the binary under test in it.
func alone(t testing.TB, daemons ...string) (*lab.Lab, *lab.Node) {
	t.Helper()
	hairpin := build(t)
	favour(t)
	l := lab.Start(t, lab.Config{})
	n := l.Add(t, lab.NodeConfig{
		Daemons: daemons, Binds: map[string]string{"/usr/local/bin/hairpin": hairpin},
		Files: map[string]string{settings: "[kubernetes]\nmanifests = " + folder + "\n"},
	})
	l.Raceless(t, agent)
	return l, n
}

// folder is where the agent of a lab with one node looks for manifests.
const folder = "/etc/hairpin/own"

// start starts the agent of a node.
func start(t testing.TB, n *lab.Node) {
	t.Helper()
	if err := n.StartDaemon(t.Context(), agent, "/usr/local/bin/hairpin", "node", "--config-file="+
		settings); err != nil {
		t.Fatal(err)
	}
}

// giveManifests copies the demo's manifests into the folder of a node.
func giveManifests(t testing.TB, n *lab.Node) {
	t.Helper()
	files, err := filepath.Glob("../examples/demo/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no manifests: %v", err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err == nil {
			err = n.WriteFile("/etc/hairpin/new/"+filepath.Base(f), string(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	sh(t, n, "mv /etc/hairpin/new "+folder)
}

// An agent without a source of objects waits for it, and restores the node's own network meanwhile:
// the path to the source may lead over it. It reports no differences from a desired state that it
// does not know.
func TestSourceIsAway(t *testing.T) {
	t.Parallel()
	l, n := alone(t)
	ctx := t.Context()
	start(t, n)
	eventually(t, 10*time.Second, "the agent says what it waits for", func() (bool, string) {
		r, err := reportOf(ctx, n)
		return err == nil && !r.Ready && strings.Contains(r.Reason, folder), r.Reason
	})
	giveManifests(t, n)
	waitWell(t, n)
	if got := strings.TrimSpace(sh(t, n,
		"ovs-vsctl get Open_vSwitch . other_config:flow-restore-wait")); got != `"true"` {
		t.Fatalf("flow-restore-wait is %s", got)
	}
	client, err := l.StartHost(ctx, lab.HostConfig{Name: "client"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lab.Serve(ctx, n.Host, "host-a", 8081); err != nil {
		t.Fatal(err)
	}
	serve := func(what string, port uint16) {
		t.Helper()
		took := eventually(t, slack*3*time.Second, what, func() (bool, string) {
			for _, p := range n.Addresses() {
				a := lab.Get(ctx, client,
					probe.Request{Protocol: "tcp", To: netip.AddrPortFrom(p.Addr(), port),
						Timeout: 200 * time.Millisecond})
				if a.Error != "" {
					return false, a.Error
				}
			}
			return true, ""
		})
		t.Logf("%s after %d ms", what, took.Milliseconds())
	}
	serve("the Service of the host is there", 30003)

	// Everything except the manifests is restored.
	for _, name := range []string{agent, lab.VSwitchd, lab.Controller, lab.Northd} {
		if err := n.Kill(ctx, name, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	sh(t, n, "mv "+folder+" /etc/hairpin/new")
	for _, name := range []string{lab.VSwitchd, lab.Northd, lab.Controller, agent} {
		if err := n.Start(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	serve("the node's own network is back", 8081)
	if r := mustReport(t, n); r.Ready {
		t.Error("the agent is ready without objects")
	}
	notCompared := func(reason string) {
		t.Helper()
		out, err := n.Exec(ctx, "hairpin", "diff")
		if err == nil || !strings.Contains(err.Error(), reason) || out != "" {
			t.Errorf("hairpin diff prints %q (error: %v), without a desired state because of: %s", out, err, reason)
		}
	}
	notCompared(folder)
	sh(t, n, "mv /etc/hairpin/new "+folder)
	serve("the Service of the host is back", 30003)
	waitWell(t, n)

	// An empty folder has no such Node; this must not remove everything.
	sh(t, n, "mkdir /etc/hairpin/new && mv "+folder+"/* /etc/hairpin/new/")
	eventually(t, 5*time.Second, "the agent misses its Node", func() (bool, string) {
		r, err := reportOf(ctx, n)
		return err == nil && strings.Contains(r.Reason, "no Node node-a"), r.Reason
	})
	serve("without its Node, the Service of the host is still there", 30003)
	notCompared("no Node node-a")
}

// An agent without a running Open vSwitch waits for it.
func TestOpenVSwitchIsAway(t *testing.T) {
	t.Parallel()
	_, n := alone(t, lab.NB, lab.SB, lab.Northd)
	giveManifests(t, n)
	start(t, n)
	eventually(t, 10*time.Second, "the agent says what it waits for", func() (bool, string) {
		r, err := reportOf(t.Context(), n)
		return err == nil && !r.Ready && strings.Contains(r.Reason, "Open vSwitch cannot be reached"), r.Reason
	})
	if n.Pid(agent) == 0 {
		t.Fatal("the agent has ended")
	}
}
