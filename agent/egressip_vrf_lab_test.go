package agent_test

import (
	"cmp"
	"os/exec"
	"testing"

	"hairpin/cluster"
)

func needVRF(t *testing.T) {
	t.Helper()
	if out, err := exec.Command("unshare", "-n", "ip", "link", "add", "blue", "type", "vrf", "table",
		"1042").CombinedOutput(); err != nil {
		t.Skipf("this kernel has no VRFs: %s", out)
	}
}

// TestEgressIPVRF: the link that has the address belongs to a VRF. Where the machine's kernel has
// none:
//
//	go build -o bin/hairpin ./cmd/hairpin && go test -c -o agent/agent.test ./agent
//	lab/kernel.sh -t 1800 bash -c "cd agent && ./agent.test -test.run EgressIPVRF -test.v -hairpin ../bin/hairpin -slow 20"
func TestEgressIPVRF(t *testing.T) {
	needVRF(t)
	t.Parallel()
	l := startDemoIn(t, cmp.Or(*egressMode, cluster.ModeShared))
	secondWire(t, l)
	sh(t, l.Node("node-b"), `ip route del 192.0.2.0/24; ip route del 2001:db8:9::/64
ip link add blue type vrf table 1042; ip link set blue up; ip link set eth1 master blue
ip addr replace fd10::4/64 dev eth1 nodad
ip route add 192.0.2.0/24 via 10.10.10.100 vrf blue; ip route add 2001:db8:9::/64 via fd10::64 vrf blue`)
	v := newViewer(t, l)
	put(t, l, "egressip.yaml", carriedAs([]string{"10.10.10.33", "fd10::33"}, "app: web", "10.10.10.33 node-b",
		"fd10::33 node-b"))
	egress := []string{"10.10.10.33", "fd10::33"}
	for _, from := range []string{"pod-a1", "pod-b1"} { // the second is where the address is
		v.until(from, []string{"10.10.10.100:9000", "[fd10::64]:9000"}, egress...)
		v.see("by a route of the VRF", from, []string{"192.0.2.9:9000", "[2001:db8:9::9]:9000"}, egress...)
	}
}
