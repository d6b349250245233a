//go:build e2e

package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"hairpin/claims"
	"hairpin/lab/cluster"
)

// TestBurst creates 30 pods at once, with the default scheduler, and reaches each.
func TestBurst(t *testing.T) {
	e := open(t)
	const pods = 30
	e.apply(podsManifest("burst", pods))
	took := e.until("all pods are ready", 3*time.Minute,
		func() (bool, error) { return len(e.pods("burst")) == pods, nil })
	t.Logf("%d pods ready after %s", pods, took.Round(time.Millisecond))
	from := e.place(e.clientPod("node-a").Name)
	seen := map[string]bool{}
	for _, p := range e.pods("burst") {
		for _, ip := range p.Status.PodIPs {
			if seen[ip.IP] {
				t.Errorf("two pods have %s", ip.IP)
			}
			seen[ip.IP] = true
			if err := e.ask(from, "tcp", netip.AddrPortFrom(netip.MustParseAddr(ip.IP), 8080)); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestReboot kills every process of a node at once and boots it again; everything on it recovers.
func TestReboot(t *testing.T) {
	e := open(t)
	before := e.containers("node-c")
	begin := time.Now()
	e.check(e.Reboot(e.Context(), "node-c"))
	took := e.until("new containers run on node-c", 3*time.Minute, func() (bool, error) {
		now := e.containers("node-c")
		if len(now) < len(before) {
			return false, nil
		}
		for _, id := range now {
			if slices.Contains(before, id) {
				return false, nil
			}
		}
		return true, nil
	})
	e.check(e.WaitWorkloads(e.Context()))
	t.Logf("pods of node-c run again after %s, all workloads are ready after %s", took.Round(time.Millisecond),
		time.Since(begin).Round(time.Millisecond))
	e.reachAll()
}

// TestNodeReplaced removes a node permanently and adds another.
func TestNodeReplaced(t *testing.T) {
	e := open(t)
	e.check(e.RemoveNode(e.Context(), "node-c"))
	took := e.until("the pods of node-c are elsewhere", 3*time.Minute, func() (bool, error) {
		for _, app := range []string{"web", "db", "client"} {
			for _, p := range e.pods(app) {
				if p.Spec.NodeName == "node-c" {
					return false, nil
				}
			}
		}
		return len(e.pods("web")) == 3 && len(e.pods("db")) == 3, nil
	})
	t.Logf("node-c removed: its pods run elsewhere after %s", took.Round(time.Millisecond))
	e.reachAll()
	for _, n := range []string{"node-a", "node-b"} {
		e.until(n+" has forgotten node-c", time.Minute, func() (bool, error) {
			out, err := e.Kubectl(e.Context(), "", "exec", "-n", namespace, e.ovs(n), "--", "ovs-ofctl", "dump-flows",
				claims.TunnelBridge)
			return strings.Count(out, "tun_src=") == 1, err
		})
	}
	for _, name := range []string{"node-d", "node-c"} {
		begin := time.Now()
		e.check(e.AddNode(e.Context(), name))
		t.Logf("%s added: ready after %s", name, time.Since(begin).Round(time.Millisecond))
	}
	e.check(e.WaitWorkloads(e.Context()))
	e.reachAll()
	e.check(e.RemoveNode(e.Context(), "node-d"))
	e.check(e.WaitWorkloads(e.Context()))
}

// TestUninstall removes Hairpin as in docs/operations/uninstall.md: nodes have their original
// state.
func TestUninstall(t *testing.T) {
	e := open(t)
	e.check(e.Uninstall(e.Context()))
	for _, n := range e.Lab().Nodes() {
		before, err := e.Found(n.Name())
		e.check(err)
		after, err := cluster.Look(e.Context(), n)
		e.check(err)
		for what, was := range before {
			if is := after[what]; is != was {
				t.Errorf("%s: %s is not as it was found:\n%s", n.Name(), what, cluster.Difference(was, is))
			}
		}
	}
	begin := time.Now()
	e.check(e.InstallHairpin(e.Context()))
	for _, ns := range []string{"default", "kube-system"} { // their pods have had no network since
		e.kubectl("delete", "pods", "--all", "-n", ns)
	}
	e.check(e.WaitWorkloads(e.Context()))
	t.Logf("installed again: all workloads ready after %s", time.Since(begin).Round(time.Millisecond))
	e.reachAll()
}

// podsManifest returns the manifest of a number of pods NAME-0, NAME-1 … with label app=NAME.
func podsManifest(name string, pods int) string {
	var manifest strings.Builder
	for i := range pods {
		fmt.Fprintf(&manifest, `---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s-%[2]d, labels: {app: %[1]s}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: server, image: pod:dev, imagePullPolicy: Never, args: [serve]}]
`, name, i)
	}
	return manifest.String()
}
