package agent_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hairpin/config"
	"hairpin/lab"
	"hairpin/lab/probe"
	"hairpin/ui"
	"hairpin/ui/uitest"
)

// problems are those of testdata/bad.yaml: object and field.
func problems() []string {
	return []string{
		"EndpointSlice/default/bad-endpoint-1: endpoints[0].addresses[0]: ",
		"EndpointSlice/default/nobodys-1: metadata.labels[kubernetes.io/service-name]: ",
		"File/broken.yaml: document 1: ",
		"Node/node-d: spec.podCIDRs: ",
		"Service/default/bad-address: spec.clusterIPs[0]: ",
		"Service/default/bad-kind: in bad.yaml: ",
		"Service/default/bad-node-port: spec.ports[0].nodePort: ",
		"Service/default/bad-port: spec.ports[0].port: ",
		"Service/default/bad-protocol: spec.ports[0].protocol: ",
		"Service/default/same-address: spec.clusterIPs: ",
		"Service/default/same-node-port: spec.ports: ",
	}
}

// put writes a file atomically into the folder that the agents of a demo read.
func put(t *testing.T, l *lab.Lab, name, content string) {
	t.Helper()
	dir := filepath.Join(l.Dir(), "manifests")
	err := os.WriteFile(filepath.Join(dir, ".new"), []byte(content), 0o644)
	if err == nil {
		err = os.Rename(filepath.Join(dir, ".new"), filepath.Join(dir, name))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// showsProblems reads the pages of `hairpin ui` while the agent reports problems.
func showsProblems(t *testing.T, n *lab.Node) {
	t.Helper()
	c := config.DefaultConfig()
	c.Process.RunDir = n.Path("/run/hairpin")
	base := uitest.Serve(t, ui.Options{}, c)
	for path, want := range map[string]string{
		"/":         "Problems with the objects of the cluster",
		"/problems": `<a href="/services?find=default/bad-address">Service/default/bad-address: `,
	} {
		if status, body, _ := uitest.Fetch(t, "GET", base+path, ""); status != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d, without %q:\n%s", path, status, want, body)
		}
	}
}

// badObjects adds invalid objects: each is reported, once, and everything else works.
func badObjects(t *testing.T, l *lab.Lab, ways []path) {
	n := l.Node("node-a")
	text, err := os.ReadFile("testdata/bad.yaml")
	if err != nil {
		t.Fatal(err)
	}
	logged := len(logOf(t, n))
	put(t, l, "broken.yaml", "kind: [\n")
	put(t, l, "bad.yaml", string(text))
	told := func(list []string) (bool, string) {
		want := problems()
		ok := slices.EqualFunc(list, want, strings.HasPrefix)
		return ok, strings.Join(list, "\n")
	}
	for _, n := range l.Nodes() {
		eventually(t, 10*time.Second, n.Name()+" reports all problems",
			func() (bool, string) { return told(sorted(mustReport(t, n).Problems)) })
	}
	for _, p := range mustReport(t, n).Problems {
		t.Log(p)
	}
	// The status as text has the same problems, and its exit status is not 0.
	out, err := n.Exec(t.Context(), "hairpin", "status", "--output=wide", "--config-file="+settings)
	if err == nil {
		t.Error("hairpin status says that all is well")
	}
	for _, p := range problems() {
		if strings.Count(out, "problem: "+p) != 1 {
			t.Errorf("hairpin status has %q %d times:\n%s", p, strings.Count(out, "problem: "+p), out)
		}
	}

	showsProblems(t, n)

	// Everything else works, also a Service that was added with them.
	good := path{"host → ClusterIP good", n.Host, "tcp", netip.MustParseAddrPort("10.96.9.9:80")}
	t.Logf("all works after %d ms", serves(t, append(slices.Clone(ways), good), slack*time.Second).Milliseconds())
	for _, n := range l.Nodes() {
		waitWell(t, n)
	}
	if a := lab.Get(t.Context(), n.Host, probe.Request{Protocol: "tcp", To: good.to}); a.Name != "host-a" {
		t.Errorf("the good Service: %+v", a)
	}

	// The log has each once.
	eventually(t, 10*time.Second, "all is in the log", func() (bool, string) {
		log := logOf(t, n)[logged:]
		return strings.Count(log, "msg=problem") >= len(problems()), log
	})
	ownNode(t, l, n, ways)
	if log := logOf(t, n)[logged:]; strings.Count(log, "object=Service/default/bad-address") != 1 {
		t.Errorf("not once in the log:\n%s", log)
	}
	for _, name := range []string{"bad.yaml", "broken.yaml"} {
		if err := os.Remove(filepath.Join(l.Dir(), "manifests", name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range l.Nodes() {
		eventually(t, 10*time.Second, n.Name()+" has no problem any more", func() (bool, string) {
			list := mustReport(t, n).Problems
			return len(list) == 0, strings.Join(list, "\n")
		})
	}
}

// ownNode removes the pod ranges from the Node of an agent, which reports that and changes nothing.
// (The other nodes do: for them, that node has no pods any more.)
func ownNode(t *testing.T, l *lab.Lab, n *lab.Node, ways []path) {
	file := filepath.Join(l.Dir(), "manifests", "nodes.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before := string(text)
	without := before
	for _, field := range []string{"podCIDR:", "podCIDRs:"} {
		line := without[strings.Index(without, field):]
		without = strings.Replace(without, line[:strings.Index(line, "\n")], "", 1)
	}
	put(t, l, "nodes.yaml", without)
	eventually(t, 10*time.Second, "the agent says what is wrong with its Node", func() (bool, string) {
		r := mustReport(t, n)
		return !r.Ready && strings.Contains(r.Reason, ": Node/node-a: spec.podCIDRs: "), r.Reason
	})
	t.Log(mustReport(t, n).Reason)
	own := slices.DeleteFunc(slices.Clone(ways), func(w path) bool { return strings.Contains(w.name, "podremote") })
	serves(t, own, slack*time.Second)
	put(t, l, "nodes.yaml", before)
	waitWell(t, n)
}

func logOf(t *testing.T, n *lab.Node) string {
	t.Helper()
	text, err := os.ReadFile(n.LogFile(agent))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func sorted(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return list
}
