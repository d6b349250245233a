//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/lab/cluster"
	"hairpin/lab/quickstart"
)

// TestQuickStart plays the commands of quick starts, in their order, each on a new cluster of its
// own with the images and the datapath of the lab. Each page installs Hairpin, and ends with
// `hairpin test`.
func TestQuickStart(t *testing.T) {
	for _, q := range []struct {
		page  string
		nodes []string
	}{
		{"kubeadm", []string{"node-a", "node-b"}},
		{"edge", []string{"node-a"}},
	} {
		t.Run(q.page, func(t *testing.T) {
			steps, err := quickstart.Read("../..", q.page)
			if err != nil {
				t.Fatal(err)
			}
			e := newCluster(t, "quickstart", q.nodes...)
			values, err := e.Values()
			e.check(err)
			p := &player{e, t.TempDir(), values}
			for _, s := range steps {
				p.play(s)
			}
		})
	}
}

// newCluster starts a cluster without a network plugin, with what kubeadm creates: DNS, and the
// address of the API server. It ends with the test.
func newCluster(t *testing.T, name string, nodes ...string) *e2e {
	c, err := cluster.Start(t.Context(), cluster.Options{
		Name: name, Root: "../..", Nodes: nodes, Bare: true, DieWithCaller: true, Out: t.Output(),
	})
	t.Cleanup(func() {
		if err := cluster.Remove(name); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	e := &e2e{t, c}
	e.kubectl("apply", "-f", "../cluster/manifests/dns.yaml")
	e.clusterInfo()
	return e
}

// clusterInfo writes the address of the API server as kubeadm does.
func (e *e2e) clusterInfo() {
	e.Helper()
	address := e.Lab().Node("node-a").Addresses()[0].Addr()
	_, err := e.Client().CoreV1().ConfigMaps("kube-public").Create(e.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster-info"},
		Data: map[string]string{"kubeconfig": fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters:\n- name: \"\"\n  "+
			"cluster: {server: \"https://%s:6443\"}\n", address)}}, metav1.CreateOptions{})
	e.check(err)
}

// player plays the steps of a page in a folder.
type player struct {
	*e2e
	dir    string
	values []string // of the chart, for the lab
}

func (p *player) play(s quickstart.Step) {
	p.Helper()
	if s.File != "" {
		p.check(os.WriteFile(filepath.Join(p.dir, filepath.Base(s.File)), []byte(s.Content), 0o644))
		return
	}
	var out string
	var err error
	words := strings.Fields(s.Command)
	switch {
	case s.Where == quickstart.Nowhere:
		p.Logf("not played: %s: %s", s.Command, s.Reason)
		return
	case s.Where == quickstart.Node:
		out, err = p.onNode(words)
	case words[0] == "helm":
		out, err = p.install(words[1:])
	case words[1] == "hairpin": // the plugin of kubectl is this program
		cmd := exec.CommandContext(p.Context(), "../../bin/hairpin",
			append(words[2:], "--kubeconfig", p.Kubeconfig())...)
		var text []byte
		text, err = cmd.CombinedOutput()
		out = string(text)
	default:
		out, err = p.Kubectl(p.Context(), "", words[1:]...)
	}
	p.Logf("$ %s\n%s", s.Command, out)
	if err != nil {
		p.Fatalf("%s: %v", s.Command, err)
	}
	for _, want := range strings.Fields(s.Comment) {
		if !strings.Contains(out, want) {
			p.Errorf("%s: it does not print %s", s.Command, want)
		}
	}
}

// install runs helm install with the chart of the checkout.
func (p *player) install(words []string) (string, error) {
	args := slices.Clone(words)
	for i, w := range args {
		switch {
		case strings.HasSuffix(w, ".tgz"):
			args[i] = "../../charts/hairpin"
		case strings.HasSuffix(w, ".yaml"):
			args[i] = filepath.Join(p.dir, w)
		}
	}
	for _, v := range p.values {
		args = append(args, "--set", v)
	}
	return p.Helm(p.Context(), args...)
}

// onNode runs a command on a node, which gets the program for it.
func (p *player) onNode(words []string) (string, error) {
	n := p.Lab().Node("node-a")
	const path = "/usr/local/bin/hairpin"
	text, err := os.ReadFile("../../bin/hairpin")
	p.check(err)
	p.check(os.WriteFile(n.Path(path), text, 0o755))
	defer func() { p.check(os.Remove(n.Path(path))) }()
	return n.Exec(p.Context(), words...)
}
