package agent_test

import (
	"encoding/json"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"hairpin/cluster"
)

// TestEgressIPThirdLink: a pod has an egress address on one link, and connects to a node on
// another. All links have strict reverse path filtering, and the reply arrives. Addresses that are
// not of scope global belong to no network for egress addresses.
func TestEgressIPThirdLink(t *testing.T) {
	t.Parallel()
	l := startDemoIn(t, cluster.ModeLocal)
	secondWire(t, l)
	b, p := l.Node("node-b"), netip.MustParsePrefix
	for name, a := range map[string]string{"node-b": "10.30.30.4/24", "node-c": "10.30.30.5/24"} {
		if err := l.Host(name).Join(t.Context(), "wire3", "eth2", p(a)); err != nil {
			t.Fatal(err)
		}
	}
	file := l.Dir() + "/manifests/nodes.yaml"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	put(t, l, "nodes.yaml", strings.Replace(string(text), `'["172.18.0.5/16",`, `'["172.18.0.5/16","10.30.30.5/24",`,
		1))
	sh(t, b, `ip address add 10.40.40.4/24 dev eth2 scope link; ip address add 10.41.41.4/24 dev eth2 scope host
for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 1 > $f; done`)
	v := newViewer(t, l)
	put(t, l, "egressip.yaml", carriedAs([]string{"10.10.10.33"}, "app: web", "10.10.10.33 node-b"))
	v.until("pod-b1", []string{"10.10.10.100:9000"}, "10.10.10.33")
	v.see("by the third link", "pod-b1", []string{"10.30.30.5:8081"}, "10.30.30.4")

	eventually(t, 10*time.Second, "the agent knows its links", func() (bool, string) {
		body, err := ask(t.Context(), b, "/snapshot")
		if err != nil {
			return false, err.Error()
		}
		var s cluster.Snapshot
		if err := json.Unmarshal([]byte(body), &s); err != nil {
			return false, err.Error()
		}
		i := slices.IndexFunc(s.Node("node-b").Links, func(x cluster.HostLink) bool { return x.Name == "eth2" })
		return i >= 0 && slices.Equal(s.Node("node-b").Links[i].Addresses, []netip.Prefix{p("10.30.30.4/24")}), body
	})
}
