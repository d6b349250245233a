package charts_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"hairpin/config"
)

// helm gives the path of the real Helm, built from charts/helm, once.
var helm = sync.OnceValues(func() (string, error) {
	path, err := filepath.Abs("../bin/helm")
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "make", "-C", "..", "bin/helm")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", &exec.Error{Name: string(out), Err: err}
	}
	return path, nil
})

// helmDoes runs Helm, with a home of its own, and gives what it wrote.
func helmDoes(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	path, err := helm()
	must(t, err)
	home := t.TempDir()
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "KUBECONFIG="+filepath.Join(home, "none"))
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err = cmd.Run()
	return o.String(), e.String(), err
}

// template renders the chart with values as of --set.
func template(t *testing.T, set ...string) (text, problem string, err error) {
	t.Helper()
	args := []string{"template", "hairpin", "hairpin", "--namespace", "hairpin"}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	return helmDoes(t, args...)
}

func render(t *testing.T, set ...string) []*unstructured.Unstructured {
	t.Helper()
	text, problem, err := template(t, append([]string{"apiServer.host=172.18.0.10"}, set...)...)
	if err != nil {
		t.Fatalf("%v: %s", err, problem)
	}
	return objects(t, text)
}

func objects(t *testing.T, text string) (all []*unstructured.Unstructured) {
	t.Helper()
	for _, doc := range strings.Split(text, "\n---") {
		o := &unstructured.Unstructured{}
		must(t, yaml.UnmarshalStrict([]byte(doc), &o.Object))
		if len(o.Object) > 0 {
			all = append(all, o)
		}
	}
	return all
}

func find(t *testing.T, all []*unstructured.Unstructured, kind, name string) map[string]any {
	t.Helper()
	i := slices.IndexFunc(all, func(o *unstructured.Unstructured) bool { return o.GetKind() == kind && o.GetName() == name })
	if i < 0 {
		t.Fatalf("there is no %s %s", kind, name)
	}
	return all[i].Object
}

// configuration reads the configuration file in what was rendered, as the program does.
func configuration(t *testing.T, all []*unstructured.Unstructured) config.Config {
	t.Helper()
	text, _, err := unstructured.NestedString(find(t, all, "ConfigMap", "hairpin"), "data", "hairpin.conf")
	must(t, err)
	file := filepath.Join(t.TempDir(), "hairpin.conf")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	c, err := config.Load(file)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return c
}

func TestLint(t *testing.T) {
	out, problem, err := helmDoes(t, "lint", "--strict", "--set", "apiServer.host=172.18.0.10", "hairpin")
	if err != nil || !strings.Contains(out, "0 chart(s) failed") {
		t.Errorf("%v\n%s%s", err, out, problem)
	}
}

// TestRefused: what is misspelled or cannot be is refused before anything is installed.
func TestRefused(t *testing.T) {
	const api = "apiServer.host=172.18.0.10"
	for _, c := range []struct {
		set  []string
		want string
	}{
		{nil, "apiServer.host is needed"},
		{[]string{api, "apiserver.host=x"}, "apiserver"},
		{[]string{api, "config.gateway.moed=shared"}, "moed"},
		{[]string{api, "config.gatewy.mode=shared"}, "gatewy"},
		{[]string{api, "config.gateway.mode=shraed"}, "/config/gateway/mode"},
		{[]string{api, "config.default.mtu=100"}, "/config/default/mtu"},
		{[]string{api, "config.default.node=node-a"}, "node"},
		{[]string{api, "config.gateway.nodeport=often"}, "/config/gateway/nodeport"},
		{[]string{api, "datapath=quick"}, "/datapath"},
		{[]string{api, "apiServer.port=0"}, "/apiServer/port"},
		{[]string{api, "controller.replicas=0"}, "/controller/replicas"},
		{[]string{api, "cni.binDir=opt/cni/bin"}, "/cni/binDir"},
		{[]string{api, "cni.confFile=10-hairpin.conf"}, "/cni/confFile"},
		{[]string{api, "node.tolerations[0].operator=Exist"}, "/node/tolerations/0/operator"},
		{[]string{api, "node.resources.agents.requests.cpu=1"}, "agents"},
		{[]string{api, "image.digest=sha256:1234"}, "/image/digest"},
	} {
		if _, problem, err := template(t, c.set...); err == nil || !strings.Contains(problem, c.want) {
			t.Errorf("%v: %v, %s", c.set, err, problem)
		}
	}
}
