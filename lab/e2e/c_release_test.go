//go:build e2e

package e2e

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hairpin/claims"
)

var release = flag.String("release", "", "folder of a release to upgrade to, such as dist/hairpin-v0.2.0")

// TestUpgradeFromRelease upgrades the release that the cluster runs to another, under traffic
// (`make e2e-upgrade` starts such a cluster).
func TestUpgradeFromRelease(t *testing.T) {
	if *release == "" {
		t.Skip("no -release: make e2e-upgrade")
	}
	e := open(t)
	version := strings.TrimPrefix(filepath.Base(*release), "hairpin-")
	before, ovs := e.versions(), e.ovsImage()
	if before[0] == version {
		t.Fatalf("the cluster has %s already", version)
	}
	images, err := e.ReleaseImages(*release)
	e.check(err)
	e.check(e.Import(e.Context(), images))
	replaced := e.ovsImageOf(*release, version) != ovs
	clients := e.toServices(replaced)
	if e.onBridge("node-a", claims.ServiceBridge) == 0 { // OVN serves Services, no longer the default
		clients = e.besidePods()
	}
	e.under("from "+before[0]+" to "+version, clients, func() error { return e.InstallRelease(e.Context(), *release) })
	for _, got := range e.versions() {
		if got != version {
			t.Errorf("an agent, the chart or an image is of version %s, not %s", got, version)
		}
	}
	if now := e.ovsImage(); (now != ovs) != replaced {
		t.Errorf("Open vSwitch ran from %s and runs from %s", ovs, now)
	}
	for _, n := range e.Lab().Nodes() {
		e.kubectl("exec", "-n", namespace, e.agent(n.Name()), "-c", "agent", "--", "hairpin", "status", "--wait=2m")
	}
	e.reachAll()
}

// versions returns the versions of the agents, of their images' tags and of the chart.
func (e *e2e) versions() (list []string) {
	e.Helper()
	for _, n := range e.Lab().Nodes() {
		agent := e.agent(n.Name())
		list = append(list, strings.TrimSpace(e.kubectl("exec", "-n", namespace, agent, "-c", "agent", "--", "hairpin",
			"version")))
		_, tag, _ := strings.Cut(e.kubectl("get", "pod", "-n", namespace, agent, "-o",
			"jsonpath={.spec.containers[?(@.name=='agent')].image}"), ":")
		list = append(list, tag)
	}
	out, err := e.Helm(e.Context(), "list", "--namespace", namespace, "--output", "json")
	e.check(err)
	var releases []struct {
		AppVersion string `json:"app_version"`
	}
	e.check(json.Unmarshal([]byte(out), &releases))
	for _, r := range releases {
		list = append(list, r.AppVersion)
	}
	return list
}

// ovsImage returns the image of Open vSwitch in the cluster.
func (e *e2e) ovsImage() string {
	e.Helper()
	return e.kubectl("get", "daemonset", "-n", namespace, "hairpin-ovs", "-o",
		"jsonpath={.spec.template.spec.containers[0].image}")
}

// ovsImageOf returns the image of Open vSwitch in a release's manifest. All other images there must
// have the release's version.
func (e *e2e) ovsImageOf(release, version string) (ovs string) {
	e.Helper()
	manifest, err := os.ReadFile(filepath.Join("../..", release, "hairpin.yaml"))
	e.check(err)
	for line := range strings.Lines(string(manifest)) {
		image, ok := strings.CutPrefix(strings.TrimSpace(line), "image: ")
		image = strings.Trim(image, `"`)
		switch {
		case ok && strings.Contains(image, "-ovs:"):
			ovs = image
		case ok && !strings.HasSuffix(image, ":"+version):
			e.Errorf("%s has the image %s", release, image)
		}
	}
	return ovs
}
