package agent_test

import (
	"cmp"
	"net/netip"
	"strings"
	"testing"
	"time"

	"hairpin/cluster"
)

// TestServicesByHostVRF: a Service's endpoint is behind a link of a VRF. The host's main table
// decides, not the VRF's: it needs a route by that link. Replies arrive by the VRF, whose table
// must lead to the main one, or back to the gateway router and the pods. In the VM as
// TestEgressIPVRF.
func TestServicesByHostVRF(t *testing.T) {
	needVRF(t)
	t.Parallel()
	l := startDemoIn(t, cmp.Or(*egressMode, cluster.ModeLocal))
	a, client, p := l.Node("node-a"), l.Host("client"), netip.MustParsePrefix
	noError(t, a.Join(t.Context(), "wire1", "eth1", p("10.10.1.3/24"), p("fd10:1::3/64")))
	noError(t, client.Join(t.Context(), "wire1", "eth1", p("10.10.1.100/24"), p("fd10:1::64/64")))
	for _, x := range []string{"10.9.0.7/32", "fd09::7/128"} {
		noError(t, client.AddAddress("lo", p(x)))
	}
	sh(t, a, `ip link add blue type vrf table 1042; ip link set blue up; ip link set eth1 master blue
ip addr replace fd10:1::3/64 dev eth1 nodad
ip route add 10.9.0.0/24 via 10.10.1.100 vrf blue; ip route add fd09::/64 via fd10:1::64 vrf blue`)
	put(t, l, "far.yaml", far("far", 1, 9000, "10.9.0.7", "fd09::7"))
	waitServes(t, a)
	v := newViewer(t, l)
	v.pods["host-a"], v.pods["client"] = a.Host, client
	ways := map[string][]string{
		"host-a": {"10.96.6.1:80", "[fd00:10:96::601]:80"}, "pod-a2": {"10.96.6.1:80", "[fd00:10:96::601]:80"},
		"client": {"172.18.0.3:30601", "[fc00:f853:ccd::3]:30601"},
	}
	arrives := func(when string) {
		t.Helper()
		for from, to := range ways {
			v.until(from, to, "10.10.1.3", "fd10:1::3")
		}
		t.Logf("%s: host, pod and client reach the endpoint", when)
	}
	lost := func(when string) {
		t.Helper()
		patience := v.patience
		defer func() { v.patience = patience }()
		v.patience = time.Duration(*slow) * time.Second / 2
		for from, to := range ways {
			for _, x := range to {
				got := v.saw(from, "tcp", x)
				t.Logf("%s: tcp %s from %s: %s", when, x, from, got)
				if strings.HasPrefix(got, "10.") || strings.HasPrefix(got, "fd") {
					t.Errorf("%s: tcp %s from %s is seen as %s", when, x, from, got)
				}
			}
		}
	}

	lost("the VRF alone has a route")
	sh(t, a, "ip route add 10.9.0.0/24 via 10.10.1.100 dev eth1; ip route add fd09::/64 via fd10:1::64 dev eth1")
	arrives("the main table has a route by the VRF's link")
	// As the kernel's documentation recommends: the VRF must not fall back to other tables.
	sh(t, a,
		"ip route add unreachable default metric 4278198272 vrf blue; ip -6 route add unreachable default metric "+
			"4278198272 vrf blue")
	lost("the VRF does not fall back to the main table")
	sh(t, a, `ip route add 169.254.169.1 dev br-ex vrf blue; ip route add 10.244.1.0/24 dev ovn-k8s-mp0 vrf blue
ip route add fd69::1 dev br-ex vrf blue; ip route add fd00:10:244:1::/64 dev ovn-k8s-mp0 vrf blue`)
	arrives("the VRF has routes back")
}
