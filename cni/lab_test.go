package cni_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/ovsdb"
)

// agent is the name under which labs run `hairpin node`.
const agent = "hairpin"

// settings is the path of an agent's configuration.
const settings = "/etc/hairpin/hairpin.conf"

// world is a lab of nodes with Hairpin's agent, with manifests instead of an API server.
type world struct {
	t      testing.TB
	lab    *lab.Lab
	binary string
	dir    string // of the manifests
	engine string // of the nodes; empty: cluster.EngineOVN
}

// engines runs a test with nodes of each engine.
func engines(t *testing.T, test func(t *testing.T, engine string)) {
	for _, engine := range []string{cluster.EngineOVN, cluster.EngineOpenFlow} {
		t.Run(engine, func(t *testing.T) { test(t, engine) })
	}
}

// config is the configuration of agents.
func (w *world) config() string {
	text := "[kubernetes]\nmanifests = /etc/hairpin/manifests\n[logging]\nlevel = debug\n"
	if w.engine != "" {
		text += "[default]\nservice-engine = " + w.engine + "\n"
	}
	return text
}

var ready = flag.String("hairpin", "", "the binary under test, where it is not to be built")

// build returns the binary under test, built once.
var build = sync.OnceValues(func() (string, error) {
	if *ready != "" {
		return filepath.Abs(*ready)
	}
	dir, err := os.MkdirTemp("", "hairpin-cni-test-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "hairpin")
	cmd := exec.Command("go", "build", "-o", path, "hairpin/cmd/hairpin")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build hairpin: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := build(); err == nil && *ready == "" {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// newWorld starts a lab without nodes.
func newWorld(t testing.TB) *world {
	t.Helper()
	binary, err := build()
	must(t, err)
	w := &world{t: t, lab: lab.Start(t, lab.Config{}), binary: binary, dir: t.TempDir()}
	w.lab.Raceless(t, agent)
	return w
}

// manifest writes a file into the folder that the agents read.
func (w *world) manifest(name, text string) {
	w.t.Helper()
	part := filepath.Join(w.dir, name+".part")
	must(w.t, os.WriteFile(part, []byte(text), 0o644))
	must(w.t, os.Rename(part, filepath.Join(w.dir, name)))
}

// nodeManifest is the Node of number id (from 1), with pod CIDRs as a YAML list.
func nodeManifest(id int, podCIDRs string) string {
	name, a, mac := fmt.Sprintf("node-%c", 'a'+id-1), id+2, fmt.Sprintf("02:42:ac:12:00:%02x", id+2)
	return fmt.Sprintf(`apiVersion: v1
kind: Node
metadata:
  name: %[1]s
  annotations:
    k8s.ovn.org/node-id: "%[2]d"
    k8s.ovn.org/host-cidrs: '["172.18.0.%[3]d/16","fc00:f853:ccd::%[3]d/64"]'
    k8s.ovn.org/l3-gateway-config: '{"default":{"mode":"shared","bridge-id":"br-ex","uplink":"eth0","mac-address":"%[4]s","ip-addresses":["172.18.0.%[3]d/16","fc00:f853:ccd::%[3]d/64"],"next-hops":["172.18.0.1","fc00:f853:ccd::1"],"datapath":"netdev"}}'
spec:
  podCIDRs: %[5]s
status:
  addresses:
  - {type: InternalIP, address: 172.18.0.%[3]d}
  - {type: InternalIP, address: "fc00:f853:ccd::%[3]d"}
`, name, id, a, mac, podCIDRs)
}

// usualCIDRs are the pod CIDRs of the Node of number id.
func usualCIDRs(id int) string {
	return fmt.Sprintf(`["10.244.%[1]d.0/24", "fd00:10:244:%[1]d::/64"]`, id)
}

// node starts node-a, node-b … by number, without its agent.
func (w *world) node(id int) *lab.Node {
	w.t.Helper()
	entry, err := filepath.Abs("../image/entry")
	must(w.t, err)
	return w.lab.Add(w.t, lab.NodeConfig{
		Name: fmt.Sprintf("node-%c", 'a'+id-1),
		Binds: map[string]string{
			"/usr/local/bin/hairpin": w.binary, "/opt/cni/bin/hairpin": w.binary, "/etc/hairpin/manifests": w.dir,
			"/usr/local/lib/hairpin": entry,
		},
		Files: map[string]string{
			settings:                             w.config(),
			"/etc/cni/net.d/10-hairpin.conflist": `{"cniVersion": "1.1.0", "name": "hairpin", "plugins": [{"type": "hairpin"}]}`,
		},
	})
}

// start starts the agent of a node.
func (w *world) start(n *lab.Node) {
	w.t.Helper()
	must(w.t, n.StartDaemon(w.t.Context(), agent, "/usr/local/bin/hairpin", "node", "--config-file="+settings))
}

// ready waits until the plugin reports that the node can serve pods.
func (w *world) ready(n *lab.Node) {
	w.t.Helper()
	eventually(w.t, 30*time.Second, n.Name()+" is ready",
		func() error { return w.plugin(n, "STATUS", netconf(n), nil).err })
}

// single is a world with one node that is ready.
func single(t testing.TB) (*world, *lab.Node) {
	t.Helper()
	return singleWith(t, cluster.EngineOVN)
}

// singleWith is single with an engine.
func singleWith(t testing.TB, engine string) (*world, *lab.Node) {
	t.Helper()
	w := newWorld(t)
	w.engine = engine
	w.manifest("node-a.yaml", nodeManifest(1, usualCIDRs(1)))
	n := w.node(1)
	w.start(n)
	w.ready(n)
	return w, n
}

// netconf is the network configuration for the plugin of a node that runs outside of it: only the
// socket is the node's.
func netconf(n *lab.Node) map[string]any {
	return map[string]any{"cniVersion": "1.1.0", "name": "hairpin", "type": "hairpin", "runDir": n.Path("/run/hairpin")}
}

// outcome is the result of the plugin.
type outcome struct {
	stdout string
	err    error // a *types.Error if the plugin returned one
}

// plugin runs the real plugin, as a container runtime does.
func (w *world) plugin(n *lab.Node, command string, conf map[string]any, env map[string]string) outcome {
	return w.pluginUntil(w.t.Context(), n, command, conf, env)
}

// pluginUntil kills the plugin when ctx ends.
func (w *world) pluginUntil(ctx context.Context, n *lab.Node, command string, conf map[string]any,
	env map[string]string) outcome {
	text, err := json.Marshal(conf)
	if err != nil {
		return outcome{err: err}
	}
	cmd := exec.CommandContext(ctx, w.binary)
	cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_PATH=/opt/cni/bin"}
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Stdin = bytes.NewReader(text)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	o := outcome{stdout: stdout.String(), err: err}
	var said types.Error
	if err != nil && json.Unmarshal(stdout.Bytes(), &said) == nil {
		o.err = &said
	} else if err != nil {
		o.err = fmt.Errorf("%s %s: %w: %s%s", n.Name(), command, err, o.stdout, stderr.String())
	}
	return o
}

// code returns the CNI error code of an outcome; 0 for none.
func (o outcome) code() uint {
	var e *types.Error
	if errors.As(o.err, &e) {
		return e.Code
	}
	return 0
}

// result returns the result of an ADD.
func (o outcome) result(t testing.TB) *current.Result {
	t.Helper()
	must(t, o.err)
	r := &current.Result{}
	must(t, json.Unmarshal([]byte(o.stdout), r))
	return r
}

// refused asserts that the plugin returned an error with that code and those words.
func (o outcome) refused(t testing.TB, code uint, words ...string) {
	t.Helper()
	if o.err == nil {
		t.Fatalf("no error, want code %d: %s", code, o.stdout)
	}
	for _, w := range words {
		if !strings.Contains(o.err.Error(), w) {
			t.Errorf("error %q lacks %q", o.err, w)
		}
	}
	if o.code() != code {
		t.Errorf("code %d, want %d: %v", o.code(), code, o.err)
	}
}

// row reads the Interface row of a host's end.
func row(t testing.TB, n *lab.Node, host string) *ovsdb.Interface {
	t.Helper()
	for _, r := range interfaces(t, n) {
		if r.Name == host {
			return r
		}
	}
	return nil
}

// interfaces reads the Interface rows of pods.
func interfaces(t testing.TB, n *lab.Node) []*ovsdb.Interface {
	t.Helper()
	c, err := ovsdb.Open(ovsdb.Config{
		Endpoint: "unix:" + n.Path("/run/openvswitch/db.sock"), Database: "Open_vSwitch",
		Tables: []ovsdb.Table{ovsdb.Mirror[ovsdb.Interface]()},
	})
	must(t, err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	must(t, c.WaitSynced(ctx))
	var list []*ovsdb.Interface
	for r := range ovsdb.Rows[ovsdb.Interface](c.View()) {
		if r.ExternalIDs["sandbox"] != "" {
			list = append(list, r)
		}
	}
	return list
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until done has no error.
func eventually(t testing.TB, limit time.Duration, what string, done func() error) time.Duration {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		err := done()
		took := time.Since(begin)
		if err == nil {
			return took
		}
		if took > limit || t.Context().Err() != nil {
			t.Fatalf("%s: not within %v: %v", what, limit, err)
		}
	}
}

// sh runs a shell script in a node.
func sh(t testing.TB, n *lab.Node, script string) string {
	t.Helper()
	out, err := n.Exec(t.Context(), "sh", "-ec", script)
	must(t, err)
	return strings.TrimSpace(out)
}

// bridge returns the bridge of pods' ports.
func (w *world) bridge() string {
	if w.engine == cluster.EngineOpenFlow {
		return claims.ServiceBridge
	}
	return claims.IntegrationBridge
}

// knownToOVN reads the IPv4 addresses of pods from OVN, behind one port for all or one port each.
func knownToOVN(t testing.TB, n *lab.Node) []string {
	t.Helper()
	var list []string
	for line := range strings.Lines(sh(t, n,
		"ovn-nbctl --no-headings --format=csv --data=bare --columns=name,addresses find Logical_Switch_Port")) {
		if !strings.HasPrefix(line, "default_") && !strings.HasPrefix(line, "pods-") {
			continue
		}
		for word := range strings.FieldsSeq(line) {
			if ip, err := netip.ParseAddr(strings.Trim(word, `",`)); err == nil && ip.Is4() {
				list = append(list, ip.String())
			}
		}
	}
	slices.Sort(list)
	return list
}
