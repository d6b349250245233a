package agent_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/probe"
)

// TestEgressServiceTable: endpoints of an EgressService leave by a route table of the host, with
// the load balancer's or the link's address.
func TestEgressServiceTable(t *testing.T) {
	t.Parallel()
	testEgressServiceNetwork(t, "100", func(n *lab.Node) {
		sh(t, n, "ip route add default via 10.10.10.100 table 100; ip -6 route add default via fd10::64 table 100")
	})
}

// TestEgressServiceVRF: the same with a VRF, in the VM as TestEgressIPVRF.
func TestEgressServiceVRF(t *testing.T) {
	needVRF(t)
	testEgressServiceNetwork(t, "blue", func(n *lab.Node) {
		sh(t, n, `ip link add blue type vrf table 1042; ip link set blue up; ip link set eth1 master blue
ip addr replace fd10::4/64 dev eth1 nodad
ip route add default via 10.10.10.100 vrf blue; ip -6 route add default via fd10::64 vrf blue`)
	})
}

func testEgressServiceNetwork(t *testing.T, network string, prepare func(*lab.Node)) {
	modes := []string{cluster.ModeShared, cluster.ModeLocal}
	if *egressMode != "" && *egressMode != "all" {
		modes = []string{*egressMode}
	}
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			l := startDemoIn(t, mode)
			secondWire(t, l)
			b := l.Node("node-b")
			sh(t, b, "ip route del 192.0.2.0/24; ip route del 2001:db8:9::/64")
			prepare(b)
			_, err := l.Host("client").Exec(t.Context(), "sh", "-ec", `for a in 20 30; do
	ip route add 203.0.113.$a via 10.10.10.4; ip -6 route add 2001:db8:113::$a via fd10::4
done`)
			noError(t, err)
			v := newViewer(t, l)
			beyond := []string{"192.0.2.9:9000", "[2001:db8:9::9]:9000"}
			routed := []string{"203.0.113.20", "2001:db8:113::20"}

			put(t, l, "namespace.yaml", "{apiVersion: v1, kind: Namespace, metadata: {name: default}}\n")
			put(t, l, "egressservice.yaml", egressServiceBy("outer", "LoadBalancerIP", "node-b", network)) // of pod-a1
			v.until("pod-a1", beyond, routed...)
			node := []string{"172.18.0.4:8081", "[fc00:f853:ccd::4]:8081"}
			pod := []string{"10.244.2.3:8080", "[fd00:10:244:2::3]:8080"}
			v.see("to a node", "pod-a1", node, "172.18.0.3", "fc00:f853:ccd::3")
			v.see("to a pod", "pod-a1", pod, "10.244.1.3", "fd00:10:244:1::3")

			own := []string{"203.0.113.30", "2001:db8:113::30"}
			addresses := strings.NewReplacer("172.18.0.55", own[0], "fc00:f853:ccd::55", own[1])
			put(t, l, "balanced.yaml", addresses.Replace(balanced()))
			put(t, l, "egressservice.yaml", egressServiceBy("balanced", "Network", "ALL", network))
			v.until("pod-b1", beyond, "10.10.10.4", "fd10::4")
			for i, from := range []string{"192.0.2.9", "2001:db8:9::9"} { // only the table has a route to them by eth1
				to := netip.AddrPortFrom(netip.MustParseAddr(own[i]), 80)
				r := probe.Request{Protocol: "tcp", From: netip.MustParseAddr(from), To: to, Timeout: v.patience}
				eventually(t, 20*time.Second, "the Service replies to "+from, func() (bool, string) {
					a := lab.Get(t.Context(), l.Host("client"), r)
					return a.Error == "", a.Error
				})
			}
			explain := []string{"hairpin", "explain", "--live", "-v", "pod/default/pod-b1", "192.0.2.9:9000"}
			explained, err := b.Exec(t.Context(), explain...)
			if err != nil || !strings.Contains(explained, "out of eth1 to 10.10.10.100") {
				t.Errorf("%v: explain does not know the way:\n%s", err, explained)
			}

			put(t, l, "egressservice.yaml", egressServiceBy("balanced", "Network", "ALL", "absent"))
			eventually(t, 20*time.Second, "the status names the VRF", func() (bool, string) {
				out, err := b.Exec(t.Context(), "hairpin", "status")
				return err != nil && strings.Contains(out, `the host has no VRF "absent"`), out
			})
			v.patience = time.Duration(*slow) * time.Second
			for _, to := range beyond {
				got := v.saw("pod-b1", "tcp", to)
				if _, err := netip.ParseAddr(got); err == nil {
					t.Errorf("without the VRF the pod is seen as %s", got)
				}
			}
			put(t, l, "egressservice.yaml", "# nothing\n")
			eventually(t, 20*time.Second, "the rules are removed", func() (bool, string) {
				out := sh(t, b, "ip rule show; ip -6 rule show")
				return !strings.Contains(out, "6000:"), out
			})
		})
	}
}
