package agent_test

import (
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"hairpin/cluster"
	"hairpin/lab"
)

// float is a Service whose endpoint is a floating address of node-a, as with keepalived, in the
// external network.
const float = `apiVersion: v1
kind: Service
metadata: {name: float, namespace: default}
spec: {type: NodePort, clusterIP: 10.96.5.1, clusterIPs: [10.96.5.1], ipFamilies: [IPv4], ports: [{name: tcp, port: 80, protocol: TCP, nodePort: 30090}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: float, namespace: default, labels: {kubernetes.io/service-name: float}}
addressType: IPv4
endpoints: [{addresses: [172.18.0.77], conditions: {ready: true}}]
ports: [{name: tcp, port: 8081, protocol: TCP}]
`

// reroute replaces the default gateways of a node, as if it had never had any.
func reroute(t *testing.T, n *lab.Node, hops []string) {
	t.Helper()
	if err := n.Kill(t.Context(), agent, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	script := `for f in -4 -6; do while ip $f route del default 2>/dev/null; do :; done; done
ovs-vsctl remove Bridge br-ex external_ids k8s.ovn.org/l3-gateway-config
`
	routes := map[bool]string{}
	for _, h := range hops {
		routes[strings.Contains(h, ":")] += " nexthop via " + h + " dev br-ex"
	}
	for v6, hops := range routes {
		script += map[bool]string{false: "ip -4", true: "ip -6"}[v6] + " route add default" + hops + "\n"
	}
	sh(t, n, script)
	if err := n.Start(t.Context(), agent); err != nil {
		t.Fatal(err)
	}
	waitServes(t, n)
}

// TestDefaultGateways: Services do not need a default gateway. Endpoints are pods, the host, and
// other addresses of the host. Clients are hosts, pods, machines on the external network and on a
// second network.
func TestDefaultGateways(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{cluster.ModeShared, cluster.ModeLocal} {
		t.Run(mode, func(t *testing.T) { testDefaultGateways(t, mode) })
	}
}

func testDefaultGateways(t *testing.T, mode string) {
	t.Parallel()
	l := startDemoIn(t, mode)
	secondWire(t, l)
	a := l.Node("node-a")
	if err := a.AddAddress("br-ex", netip.MustParsePrefix("172.18.0.77/32")); err != nil {
		t.Fatal(err)
	}
	put(t, l, "float.yaml", float)
	for _, x := range []struct {
		name string
		hops []string
	}{
		{"one of each family", []string{"172.18.0.1", "fc00:f853:ccd::1"}},
		{"two of each family", []string{"172.18.0.1", "172.18.0.100", "fc00:f853:ccd::1", "fc00:f853:ccd::64"}},
		{"IPv4 only", []string{"172.18.0.1"}},
		{"IPv6 only", []string{"fc00:f853:ccd::1"}},
		{"none", nil},
		{"dead", []string{"172.18.0.99", "fc00:f853:ccd::99"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			for _, n := range []string{"node-a", "node-c"} {
				reroute(t, l.Node(n), x.hops)
			}
			for _, family := range []string{"0.0.0.0/0", "::/0"} {
				got := strings.Fields(sh(t, a, "ovn-nbctl lr-route-list GR_node-a | awk '$1 == \""+family+
					"\" {print $2}'"))
				want := slices.DeleteFunc(slices.Clone(x.hops),
					func(h string) bool { return strings.Contains(h, ":") != (family == "::/0") })
				if len(want) == 0 {
					want = []string{map[string]string{"0.0.0.0/0": "169.254.169.4", "::/0": "fd69::4"}[family]}
				}
				if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
					t.Errorf("the gateway router's way to %s is by %s, not by %s", family, got, want)
				}
			}
			v := newViewer(t, l)
			v.pods["host-a"], v.pods["client"] = a.Host, l.Host("client")
			v.see("by the host", "host-a", []string{"10.96.1.5:80", "[fd00:10:96::105]:80"}, "169.254.169.1", "fd69::1")
			v.see("by a pod", "pod-a2", []string{"10.96.1.5:80", "[fd00:10:96::105]:80"}, "10.244.1.4",
				"fd00:10:244:1::4")
			v.see("by the wire", "client", []string{"172.18.0.3:30005", "[fc00:f853:ccd::3]:30005"}, "169.254.169.1",
				"fd69::1")
			for from, want := range map[string]string{"host-a 10.96.5.1:80": "169.254.169.1",
				"pod-a2 10.96.5.1:80": "10.244.1.4", "client 172.18.0.3:30090": "169.254.169.1"} {
				from, to, _ := strings.Cut(from, " ")
				if got := v.saw(from, "tcp", to); got != want {
					t.Errorf("an address that floats: %s from %s is seen as %s, not %s", to, from, got, want)
				}
			}
			v.see("by the second network", "client", []string{"10.10.10.5:30002", "[fd10::5]:30002"}, "100.64.0.4",
				"fd98::4")
			if mode == cluster.ModeShared && x.name == "dead" {
				// the reply to such a client is on its path to the default gateway when the bridge
				// sends it to the host
				return
			}
			v.see("by the second network, policy Local", "client", []string{"10.10.10.5:30023", "[fd10::5]:30023"},
				"10.10.10.100", "fd10::64")
		})
	}
}
