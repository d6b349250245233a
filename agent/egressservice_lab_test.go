package agent_test

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/demo"
	"hairpin/lab/probe"
)

// balanced is a Service with a load balancer's addresses in the nodes' network, and with the
// endpoints pod-a1 and pod-b1.
func balanced() string {
	text := `apiVersion: v1
kind: Service
metadata: {name: balanced, namespace: default, creationTimestamp: "2026-01-02T00:00:00Z"}
spec:
  type: LoadBalancer
  clusterIP: 10.96.3.3
  clusterIPs: [10.96.3.3, "fd00:10:96::303"]
  ipFamilyPolicy: RequireDualStack
  ipFamilies: [IPv4, IPv6]
  ports: [{name: tcp, protocol: TCP, port: 80, targetPort: 8080}]
status: {loadBalancer: {ingress: [{ip: 172.18.0.55}, {ip: "fc00:f853:ccd::55"}]}}
`
	for family, ips := range map[string][]string{"IPv4": {"10.244.1.3", "10.244.2.3"},
		"IPv6": {"fd00:10:244:1::3", "fd00:10:244:2::3"}} {
		text += fmt.Sprintf(`---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: balanced-%s, namespace: default, labels: {kubernetes.io/service-name: balanced}}
addressType: %s
ports: [{name: tcp, protocol: TCP, port: 8080}]
endpoints:
- {addresses: [%q], conditions: {ready: true}, nodeName: node-a}
- {addresses: [%q], conditions: {ready: true}, nodeName: node-b}
`, map[string]string{"IPv4": "ipv4", "IPv6": "ipv6"}[family], family, ips[0], ips[1])
	}
	return text
}

// egressService is an EgressService with a status as the controller writes it.
func egressService(name, by, host string) string { return egressServiceBy(name, by, host, "") }

// egressServiceBy is an EgressService with a network.
func egressServiceBy(name, by, host, network string) string {
	return fmt.Sprintf(`apiVersion: k8s.ovn.org/v1
kind: EgressService
metadata: {name: %s, namespace: default, creationTimestamp: "2026-01-03T00:00:00Z"}
spec: {sourceIPBy: %s, network: %q}
status: {host: %s}
`, name, by, network, host)
}

// TestEgressService: pods behind a load balancer leave with its address, from the host, even if an
// EgressIP selects them.
func TestEgressService(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{cluster.ModeShared, cluster.ModeLocal, cluster.ModeDetached} {
		t.Run(mode, func(t *testing.T) { testEgressService(t, mode) })
	}
}

func testEgressService(t *testing.T, mode string) {
	t.Parallel()
	l := startDemoIn(t, mode)
	v := newViewer(t, l)
	client := []string{"172.18.0.100:9000", "[fc00:f853:ccd::64]:9000"}
	nodeA, nodeB := []string{"172.18.0.3", "fc00:f853:ccd::3"}, []string{"172.18.0.4", "fc00:f853:ccd::4"}
	egress, balancer := []string{"172.18.0.33", "fc00:f853:ccd::33"}, []string{"172.18.0.55", "fc00:f853:ccd::55"}
	serves := func(addresses ...string) {
		t.Helper()
		for _, a := range addresses {
			to := netip.AddrPortFrom(netip.MustParseAddr(a), 80)
			eventually(t, 20*time.Second, to.String()+" is served", func() (bool, string) {
				a := lab.Get(t.Context(), l.Host("client"),
					probe.Request{Protocol: "tcp", To: to, Timeout: time.Second})
				return a.Error == "", a.Error
			})
		}
	}
	put(t, l, "egressip.yaml", carried("app: web", "172.18.0.33 node-c", "fc00:f853:ccd::33 node-c"))
	put(t, l, "balanced.yaml", balanced())
	v.until("pod-a1", client, egress...)

	put(t, l, "egressservice.yaml", egressService("balanced", "LoadBalancerIP", "node-b"))
	v.until("pod-a1", client, balancer...)
	v.until("pod-b1", client, balancer...)
	v.see("no endpoint", "pod-a2", client, egress...)
	v.see("to a node", "pod-a1", []string{"172.18.0.4:8081", "[fc00:f853:ccd::4]:8081"}, nodeA...)
	v.see("from the host to a node", "pod-b1", []string{"172.18.0.3:8081", "[fc00:f853:ccd::3]:8081"}, nodeB...)
	v.see("to a pod", "pod-a1", []string{"10.244.2.3:8080", "[fd00:10:244:2::3]:8080"}, "10.244.1.3",
		"fd00:10:244:1::3")
	serves(balancer...)

	put(t, l, "egressservice.yaml", egressService("balanced", "LoadBalancerIP", "node-c"))
	for i, x := range balancer {
		eventually(t, 20*time.Second, "the client has heard of the new host of "+x, func() (bool, string) {
			has, err := l.Host("client").Exec(t.Context(), "ip", "neighbor", "show", "to", x)
			return err == nil && v.saw("pod-a1", "tcp", client[i]) == x && strings.Contains(has, "02:42:ac:12:00:05"),
				has
		})
	}
	v.until("pod-b1", client, balancer...)
	serves(balancer...)

	put(t, l, "egressservice.yaml", egressService("balanced", "Network", "ALL"))
	v.until("pod-a1", client, nodeA...)
	v.until("pod-b1", client, nodeB...)
	v.see("no endpoint", "pod-a2", client, egress...)

	// An address of no node's network: routers send its packets to node-a.
	put(t, l, "egressservice.yaml", egressService("outer", "LoadBalancerIP", "node-a"))
	routed := []string{"203.0.113.20", "2001:db8:113::20"}
	v.until("pod-a1", client, routed...)
	v.until("pod-b1", client, egress...)
	serves(routed...)

	put(t, l, "egressservice.yaml", "# nothing\n")
	v.until("pod-a1", client, egress...)
	for _, n := range l.Nodes() {
		waitWell(t, n)
	}
}

// Addresses of a load balancer with the pod of the egress example as endpoint.
const balancerAddress, balancerAddress6 = "172.18.0.66", "fc00:f853:ccd::66"

// behind makes an EgressService for the pod of the egress example, before its EgressIP.
func behind(t testing.TB, g *demo.Egress) *demo.Egress {
	t.Helper()
	s, err := g.Behind(t.Context(), balancerAddress, balancerAddress6)
	if err == nil {
		err = s.See(t.Context(), balancerAddress)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestEgressServiceHostDies: when the host of an EgressService dies, its pods leave with the load
// balancer's addresses by another node, which also replies to ARP and ND for them. Without the
// Service the pods use the EgressIP again.
func TestEgressServiceHostDies(t *testing.T) {
	t.Parallel()
	g := startEgress(t, "[ovnkubernetesfeature]\negressip-reachability-total-timeout = 5\n"+
		"egressip-node-healthcheck-port = 9107\n")
	noError(t, g.Both(t.Context()))
	s := behind(t, g)
	hole, stall := failover(t, s, balancerAddress)
	t.Logf("host killed: new connections failed for %v, the machine stalled for up to %v", hole.Round(time.Millisecond),
		stall.Round(time.Millisecond))
	client := g.Demo().Lab().Host("client")
	for _, x := range []struct {
		from lab.Place
		to   string
		saw  string
	}{
		{g.Pod(), "[fc00:f853:ccd::64]:9000", balancerAddress6},
		{client, netip.AddrPortFrom(netip.MustParseAddr(balancerAddress), 80).String(), ""},
		{client, netip.AddrPortFrom(netip.MustParseAddr(balancerAddress6), 80).String(), ""},
	} {
		eventually(t, 20*time.Second, x.from.Name()+" reaches "+x.to, func() (bool, string) {
			a := lab.Get(t.Context(), x.from,
				probe.Request{Protocol: "tcp", To: netip.MustParseAddrPort(x.to), Timeout: time.Second})
			return a.Error == "" && (x.saw == "" || a.Saw.Addr().String() == x.saw), fmt.Sprintf("%+v", a)
		})
	}
	noError(t, s.Delete(t.Context()))
	noError(t, g.See(t.Context(), egressAddress))
	agentStops(t, g)
}

// agentStops: a stopped agent serves no gRPC, so its egress addresses move, although the node's
// kernel replies. They stay on the new node when the agent continues.
func agentStops(t *testing.T, g *demo.Egress) {
	noError(t, g.Revive(t.Context()))
	noError(t, g.Both(t.Context()))
	noError(t, g.Nodes(t.Context(), demo.EgressStays))
	n := g.Demo().Lab().Node(demo.EgressStays)
	noError(t, n.Signal(agent, syscall.SIGSTOP))
	goesOn := sync.OnceFunc(func() { noError(t, n.Signal(agent, syscall.SIGCONT)) })
	t.Cleanup(goesOn)
	took := eventually(t, 30*time.Second, "the address moves", func() (bool, string) {
		return carries(t, g, demo.EgressDies), "it has not"
	})
	t.Logf("agent stopped: its address moved after %v", took.Round(time.Millisecond))
	noError(t, g.See(t.Context(), egressAddress))
	goesOn()
	noError(t, g.Both(t.Context()))
	waitWell(t, n)
	noError(t, g.Nodes(t.Context(), demo.EgressDies))
	noError(t, g.See(t.Context(), egressAddress))
}
