package agent_test

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/probe"
)

// announcedBy is a LoadBalancerPool with a status as the controller writes it: a node announces the
// addresses of the Service balanced, and the previous ones did.
func announcedBy(node string, previous ...string) string {
	for i, p := range previous {
		previous[i] = fmt.Sprintf(`{node: %s, until: "2026-01-01T00:00:00Z"}`, p)
	}
	return fmt.Sprintf(`apiVersion: hairpin.dev/v1alpha1
kind: LoadBalancerPool
metadata: {name: edge, creationTimestamp: "2026-01-01T00:00:00Z"}
spec: {ranges: [172.18.0.50-172.18.0.59, "fc00:f853:ccd::50-fc00:f853:ccd::59"]}
status:
  inUse: 2
  available: 24
  addresses:
  - {address: 172.18.0.55, services: [default/balanced], node: %[1]s, previous: [%[2]s]}
  - {address: "fc00:f853:ccd::55", services: [default/balanced], node: %[1]s, previous: [%[2]s]}
`, node, strings.Join(previous, ", "))
}

// withConnections opens long connections to addresses and new ones all the time. end waits for a
// while, and fails the test if one of them failed or broke.
func withConnections(t *testing.T, client lab.Place, addresses []string, port uint16) (end func()) {
	t.Helper()
	var streams []*lab.Stream
	for _, a := range addresses {
		s, err := lab.StartStream(t.Context(), client, probe.StreamConfig{Protocol: "tcp",
			To: netip.AddrPortFrom(netip.MustParseAddr(a), port), Rate: 100, Long: 10, Every: 50 * time.Millisecond,
			Timeout: patience, Duration: 5 * time.Minute})
		noError(t, err)
		streams = append(streams, s)
	}
	noError(t, lab.Flow(t.Context(), 200, streams...))
	return func() {
		t.Helper()
		time.Sleep(6 * time.Second) // longer than egress addresses move
		noError(t, lab.Flow(t.Context(), 200, streams...))
		for i, s := range streams {
			r, err := s.End()
			noError(t, err)
			t.Logf("%s: of %d new connections %d failed, of %d open ones %d broke; the longest gaps were %v and %v ms",
				addresses[i], r.Opened, r.Failed, r.Long, r.Broken, r.OpenGapMs, r.LongGapMs)
			if r.Failed+r.Broken > 0 {
				t.Errorf("%s: connections failed: %v", addresses[i], r.Errors)
			}
		}
	}
}

// setPorts sets the source ports of later connections. A node may have an ended connection with
// ports of a connection that is open through another node; then the open one is not forwarded.
func setPorts(t *testing.T, client *lab.Host, ports string) {
	t.Helper()
	_, err := client.Exec(t.Context(), "sysctl", "-qw", "net.ipv4.ip_local_port_range="+ports)
	noError(t, err)
}

// TestLoadBalancerAddress: a machine outside reaches a Service by its load balancer addresses, at
// the MAC of the node that announces them, and at no other port. No connection fails or breaks when
// another node announces them, even if that node's agent restarts and a third node follows.
func TestLoadBalancerAddress(t *testing.T) {
	for _, mode := range []string{cluster.ModeShared, cluster.ModeLocal, cluster.ModeDetached} {
		for _, engine := range []string{cluster.EngineOVN, cluster.EngineOpenFlow} {
			t.Run(mode+"-"+engine, func(t *testing.T) { testLoadBalancerAddress(t, mode, engine) })
		}
	}
}

func testLoadBalancerAddress(t *testing.T, mode, engine string) {
	t.Parallel()
	l := startDemoIn(t, mode, "[default]", "service-engine = "+engine)
	client := l.Host("client")
	get := func(to netip.AddrPort) string {
		return lab.Get(t.Context(), client, probe.Request{Protocol: "tcp", To: to, Timeout: time.Second}).Error
	}
	neighbor := func(a string) string {
		has, err := client.Exec(t.Context(), "ip", "neighbor", "show", "to", a)
		noError(t, err)
		return has
	}
	balancer := []string{"172.18.0.55", "fc00:f853:ccd::55"}
	put(t, l, "balanced.yaml", balanced())
	for _, a := range balancer {
		if get(netip.AddrPortFrom(netip.MustParseAddr(a), 80)) == "" {
			t.Errorf("%s answers, and no node announces it", a)
		}
	}
	at := func(node, mac string, previous ...string) {
		t.Helper()
		put(t, l, "pool.yaml", announcedBy(node, previous...))
		failed, last := 0, ""
		for _, a := range balancer {
			to := netip.AddrPortFrom(netip.MustParseAddr(a), 80)
			took := eventually(t, 20*time.Second, a+" is announced by "+node, func() (bool, string) {
				why := get(to)
				if why != "" {
					failed, last = failed+1, why
				}
				has := neighbor(a)
				return why == "" && strings.Contains(has, mac), has + why
			})
			t.Logf("%s announces %s after %s", node, a, took.Round(time.Millisecond))
		}
		if failed > 0 {
			t.Logf("meanwhile %d connections failed: %s", failed, last)
		}
	}
	at("node-b", "02:42:ac:12:00:04")
	keeps := withConnections(t, client, balancer, 80)
	at("node-c", "02:42:ac:12:00:05", "node-b")
	at("node-a", "02:42:ac:12:00:03", "node-c", "node-b") // at once: not all nodes know of it at the same time
	at("node-b", "02:42:ac:12:00:04", "node-a", "node-c") // again, while the first move lasts
	keeps()
	setPorts(t, client, "40000 49999")
	keeps = withConnections(t, client, balancer, 80)
	at("node-c", "02:42:ac:12:00:05", "node-b")
	setPorts(t, client, "50000 60999")
	later := withConnections(t, client, balancer, 80)
	noError(t, l.Node("node-c").Restart(t.Context(), agent, syscall.SIGKILL))
	waitWell(t, l.Node("node-c"))
	at("node-a", "02:42:ac:12:00:03", "node-c", "node-b")
	noError(t, l.Node("node-a").Restart(t.Context(), agent, syscall.SIGKILL))
	waitWell(t, l.Node("node-a"))
	keeps()
	later()
	for _, a := range balancer {
		if get(netip.AddrPortFrom(netip.MustParseAddr(a), 8081)) == "" { // the nodes listen there
			t.Errorf("%s answers at a port that no Service has", a)
		}
	}
	put(t, l, "pool.yaml", "# nothing\n")
	for _, a := range balancer {
		eventually(t, 20*time.Second, a+" is not announced any more", func() (bool, string) {
			_, err := client.Exec(t.Context(), "ip", "neighbor", "flush", "to", a)
			noError(t, err)
			why := get(netip.AddrPortFrom(netip.MustParseAddr(a), 80))
			return why != "", "it answers"
		})
	}
	for _, n := range l.Nodes() {
		waitWell(t, n)
	}
}
