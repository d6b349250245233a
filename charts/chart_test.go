package charts_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"hairpin/config"
	"hairpin/lab/chart"
)

// helmDoes runs Helm with its own home directory, and returns its output.
func helmDoes(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return chart.RunHelm(t.Context(), args...)
}

// template renders the chart with values in the syntax of --set.
func template(t *testing.T, set ...string) (text, problem string, err error) {
	t.Helper()
	return chart.Template(t.Context(), set...)
}

func render(t *testing.T, set ...string) []*unstructured.Unstructured {
	t.Helper()
	all, err := chart.Render(t.Context(), set...)
	must(t, err)
	return all
}

func find(t *testing.T, all []*unstructured.Unstructured, kind, name string) map[string]any {
	t.Helper()
	i := slices.IndexFunc(all,
		func(o *unstructured.Unstructured) bool { return o.GetKind() == kind && o.GetName() == name })
	if i < 0 {
		t.Fatalf("there is no %s %s", kind, name)
	}
	return all[i].Object
}

// configuration reads the rendered configuration file like the program.
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

// TestLint checks the chart with the values that it needs, and without any, as programs do that
// know no values.
func TestLint(t *testing.T) {
	for _, values := range [][]string{
		nil, {"--set", "apiServer.host=172.18.0.10", "--set", chart.Images[0], "--set", chart.Images[1]},
	} {
		out, problem, err := helmDoes(t, append(values, "lint", "--strict", "hairpin")...)
		if err != nil || !strings.Contains(out, "0 chart(s) failed") {
			t.Errorf("%v: %v\n%s%s", values, err, out, problem)
		}
	}
}

// TestImagesAreNamed checks that the chart has no default images. A repository without a registry
// would be one of Docker Hub, whoever owns it. The tag of Open vSwitch's image changes with each
// update of its packages.
func TestImagesAreNamed(t *testing.T) {
	for want, set := range map[string]string{
		"image.repository is needed":      chart.Images[1],
		"openvswitch.image.tag is needed": chart.Images[0],
	} {
		_, problem, err := helmDoes(t, "template", "hairpin", "hairpin", "--set", "apiServer.host=172.18.0.10", "--set",
			set)
		if err == nil || !strings.Contains(problem, want) {
			t.Errorf("with %s only: %v, %s", set, err, problem)
		}
	}
}

// TestRefused checks that misspelled and invalid values are rejected before anything is installed.
func TestRefused(t *testing.T) {
	const api = "apiServer.host=172.18.0.10"
	for _, c := range []struct {
		set  []string
		want string
	}{
		{nil, "apiServer.host is needed"},
		{[]string{"apiServer.host=10.0.0.10:6443"}, `apiServer.host is "10.0.0.10:6443": it is an address or a name`},
		{[]string{"apiServer.host=[fd00::10]"}, "the port is apiServer.port"},
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
