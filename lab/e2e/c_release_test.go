//go:build e2e

package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hairpin/claims"
	"hairpin/lab/cluster"
)

var release = flag.String("release", "", "folder of a release to upgrade to, such as dist/hairpin-v0.2.0")

// TestUpgradeFromRelease upgrades the release that the cluster runs to another, goes back, and
// upgrades again, each under traffic (`make e2e-upgrade` starts such a cluster).
func TestUpgradeFromRelease(t *testing.T) {
	if *release == "" {
		t.Skip("no -release: make e2e-upgrade")
	}
	e := open(t)
	earlier, later := e.versions()[0], strings.TrimPrefix(filepath.Base(*release), "hairpin-")
	if earlier == later {
		t.Fatalf("the cluster has %s already", later)
	}
	images, err := e.ReleaseImages(*release)
	e.check(err)
	e.check(e.Import(e.Context(), images))
	replaced := e.ovsImageOf(*release, later) != e.ovsImage()
	clients := e.toServices(replaced)
	if e.onBridge("node-a", claims.ServiceBridge) == 0 { // OVN serves Services, no longer the default
		clients = e.besidePods()
	}
	upgrade := func() error { return e.InstallRelease(e.Context(), *release) }
	e.changeRelease(later, replaced, clients, upgrade)

	balanced, atNode := e.balance()
	outside, may := e.Lab().Host(cluster.ClientName), none
	if replaced { // the address moves, and v0.1.0 resets connections that another node has opened
		may = anyOpen
	}
	clients = append(clients, client{"outside → load balancer address", outside, balanced, 50, may})
	e.changeRelease(earlier, replaced, clients, func() error {
		_, err := e.Helm(e.Context(), "rollback", "hairpin", "--namespace", namespace)
		return err
	})
	e.changeRelease(later, replaced, clients, upgrade)
	for _, to := range []netip.AddrPort{balanced, atNode} {
		e.until("an answer of "+to.String(), time.Minute, func() (bool, error) {
			err := e.ask(outside, "tcp", to)
			return err == nil, err
		})
	}
}

// changeRelease installs another release under traffic. The test fails unless all of it has that
// version, the nodes are as it wants them, and everything is reachable. replaced says whether the
// image of Open vSwitch differs.
func (e *e2e) changeRelease(version string, replaced bool, clients []client, install func() error) {
	e.Helper()
	before, ovs := e.versions()[0], e.ovsImage()
	e.under("from "+before+" to "+version, clients, install)
	for _, got := range e.versions() {
		if got != version {
			e.Errorf("an agent, the chart or an image is of version %s, not %s", got, version)
		}
	}
	if now := e.ovsImage(); (now != ovs) != replaced {
		e.Errorf("Open vSwitch ran from %s and runs from %s", ovs, now)
	}
	for _, n := range e.Lab().Nodes() {
		agent := []string{"exec", "-n", namespace, e.agent(n.Name()), "-c", "agent", "--", "hairpin"}
		e.kubectl(append(agent, "status", "--wait=2m")...)
		e.until(version+" finds no difference on "+n.Name(), time.Minute, func() (bool, error) {
			out, err := e.Kubectl(e.Context(), "", append(agent, "diff")...)
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			return err == nil, err
		})
	}
	e.reachAll()
}

// loadBalanced has Services of type LoadBalancer, one with an address of a range and one with the
// nodes' addresses, which v0.1.0 does not know.
const loadBalanced = `apiVersion: hairpin.dev/v1alpha1
kind: LoadBalancerPool
metadata: {name: range}
spec:
  ranges: [172.18.0.200-172.18.0.209]
  serviceSelector: {matchLabels: {pool: range}}
---
apiVersion: hairpin.dev/v1alpha1
kind: LoadBalancerPool
metadata: {name: nodes}
spec:
  nodeAddresses: {ports: ["8443"]}
  serviceSelector: {matchLabels: {pool: nodes}}
---
apiVersion: v1
kind: Service
metadata: {name: range, labels: {pool: range}}
spec:
  type: LoadBalancer
  loadBalancerClass: hairpin.dev/l2
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: nodes, labels: {pool: nodes}}
spec:
  type: LoadBalancer
  loadBalancerClass: hairpin.dev/l2
  selector: {app: web}
  ports: [{port: 8443, targetPort: 8080}]
`

// balance creates Services with load balancer addresses and returns where they answer. The address
// of the first has moved to another node, so that the pool's status has a previous node.
func (e *e2e) balance() (moved, atNode netip.AddrPort) {
	e.Helper()
	e.apply(loadBalanced)
	get := func(kind, name, path string) (is string) {
		e.Helper()
		e.until(kind+" "+name+" has "+path, time.Minute, func() (bool, error) {
			var err error
			is, err = e.Kubectl(e.Context(), "", "get", kind, name, "-o", "jsonpath={"+path+"}")
			return is != "", err
		})
		return is
	}
	const pools, address = "loadbalancerpools.hairpin.dev", ".status.loadBalancer.ingress[0].ip"
	moved = netip.AddrPortFrom(netip.MustParseAddr(get("service", "range", address)), 80)
	atNode = netip.AddrPortFrom(netip.MustParseAddr(get("service", "nodes", address)), 8443)
	node := get(pools, "range", ".status.addresses[0].node")
	const exclude = "node.kubernetes.io/exclude-from-external-load-balancers"
	e.kubectl("label", "node", node, exclude+"=")
	e.Logf("%s moved from %s", moved, get(pools, "range", ".status.addresses[0].previous[0].node"))
	e.kubectl("label", "node", node, exclude+"-")
	return moved, atNode
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
