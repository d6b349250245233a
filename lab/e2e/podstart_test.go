//go:build e2e

package e2e

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/lab/cluster"
)

// peerList configures the reference plugin that only connects pods of one node.
const peerList = `{"cniVersion": "1.0.0", "name": "peer", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipam": {"type": "host-local",
    "ranges": [[{"subnet": "10.244.0.0/24"}], [{"subnet": "fd00:10:244::/64"}]], "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
`

// BenchmarkPodStart measures 30 pods on one node from kubectl create to Ready, and compares them
// with the reference bridge plugin: two clusters of one node each, round by round.
func BenchmarkPodStart(b *testing.B) {
	start := func(name, list string) *cluster.Cluster {
		c, err := cluster.Start(b.Context(), cluster.Options{
			Name: name, Root: "../..", Nodes: []string{"node-a"}, NodeConfList: list, DieWithCaller: true,
			Out:    b.Output(),
			Values: []string{"controller.replicas=1"},
		})
		b.Cleanup(func() {
			if err := cluster.Remove(name); err != nil {
				b.Error(err)
			}
		})
		if err != nil {
			b.Fatal(err)
		}
		return c
	}
	own, peer := start("clbench", ""), start("clpeer", peerList)
	const rounds = 5
	var ownTimes, peerTimes []float64
	for b.Loop() {
		for range rounds {
			ownTimes = append(ownTimes, startPods(b, own))
			peerTimes = append(peerTimes, startPods(b, peer))
		}
	}
	slices.Sort(ownTimes)
	slices.Sort(peerTimes)
	b.Logf("30 pods, Hairpin %.2f s, bridge %.2f s", ownTimes, peerTimes)
	b.ReportMetric(ownTimes[len(ownTimes)/2], "hairpin-s")
	b.ReportMetric(peerTimes[len(peerTimes)/2], "bridge-s")
	b.ReportMetric(ownTimes[len(ownTimes)/2]/peerTimes[len(peerTimes)/2], "ratio")
}

// startPods returns the seconds from kubectl create to 30 pods that are ready.
func startPods(b *testing.B, c *cluster.Cluster) float64 {
	const pods = 30
	manifest := podsManifest("start", pods)
	count := func() (isReady, all int) {
		list, err := c.Client().CoreV1().Pods("default").List(b.Context(),
			metav1.ListOptions{LabelSelector: "app=start"})
		if err != nil {
			b.Fatal(err)
		}
		for _, p := range list.Items {
			if cluster.Ready(&p) {
				isReady++
			}
		}
		return isReady, len(list.Items)
	}
	wait := func(done func() bool) {
		for end := time.Now().Add(5 * time.Minute); !done(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				b.Fatal("the pods are not ready, or not gone, after 5 minutes")
			}
		}
	}
	begin := time.Now()
	if _, err := c.Kubectl(b.Context(), manifest, "create", "-f", "-"); err != nil {
		b.Fatal(err)
	}
	wait(func() bool { n, _ := count(); return n == pods })
	took := time.Since(begin).Seconds()
	if _, err := c.Kubectl(b.Context(), manifest, "delete", "--wait=false", "-f", "-"); err != nil {
		b.Fatal(err)
	}
	wait(func() bool { _, n := count(); return n == 0 })
	return took
}
