package agent_test

import (
	"net/netip"
	"strings"
	"testing"

	"hairpin/cluster"
)

// TestEgressIPDestinations: a pod leaves with the egress address to the destinations that the
// EgressIP names, and with its node's address to others, over TCP and UDP and both families.
func TestEgressIPDestinations(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{cluster.ModeShared, cluster.ModeLocal, cluster.ModeDetached} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			l := startDemoIn(t, mode)
			for _, p := range []string{"172.18.0.101/16", "172.18.0.102/16", "fc00:f853:ccd::65/64",
				"fc00:f853:ccd::66/64"} {
				noError(t, l.Host("client").AddAddress("eth0", netip.MustParsePrefix(p)))
			}
			v := newViewer(t, l)
			to := []string{"172.18.0.100:9000", "172.18.0.101:9000", "172.18.0.102:9000", "[fc00:f853:ccd::64]:9000",
				"[fc00:f853:ccd::65]:9000", "[fc00:f853:ccd::66]:9000"}
			const four, six = "172.18.0.33", "fc00:f853:ccd::33"  // of the EgressIP
			const node4, node6 = "172.18.0.3", "fc00:f853:ccd::3" // of the pod's node
			for _, c := range []struct {
				spec string
				want []string
			}{
				{`destinationCIDRs: [172.18.0.100/31, "fc00:f853:ccd::64/127"]
  excludedCIDRs: [172.18.0.101/32, "fc00:f853:ccd::65/128"]`, []string{four, node4, node4, six, node6, node6}},
				{`excludedCIDRs: [172.18.0.101/32, "fc00:f853:ccd::65/128"]`,
					[]string{four, node4, four, six, node6, six}},
				{`destinationCIDRs: [172.18.0.100/32]`, []string{four, node4, node4, node6, node6, node6}},
				{`destinationCIDRs: ["fc00:f853:ccd::/64"]`, []string{node4, node4, node4, six, six, six}},
				{"", []string{four, four, four, six, six, six}},
			} {
				manifest := carried("target: podlocal", four+" node-b", six+" node-b")
				put(t, l, "egressip.yaml", strings.Replace(manifest, "spec:\n", "spec:\n  "+c.spec+"\n", 1))
				v.until("pod-a1", to, c.want...)
				v.see("not selected: "+c.spec, "pod-a2", to, node4, node4, node4, node6, node6, node6)
			}
		})
	}
}
