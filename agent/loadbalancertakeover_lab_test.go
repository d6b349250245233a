package agent_test

import (
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/probe"
)

// TestLoadBalancerFalseTakeover: another node takes a load balancer address over although its node
// forwards packets: only the agent there does not run for a time. No connection of either node
// fails or breaks.
func TestLoadBalancerFalseTakeover(t *testing.T) {
	for mode, engine := range map[string]string{cluster.ModeShared: cluster.EngineOpenFlow,
		cluster.ModeLocal: cluster.EngineOVN} {
		t.Run(mode+"-"+engine, func(t *testing.T) {
			t.Parallel()
			l := startDemoIn(t, mode, "[default]", "service-engine = "+engine, "[ovnkubernetesfeature]",
				"egressip-node-healthcheck-port = 9107")
			client, n, address := l.Host("client"), l.Node("node-b"), []string{"172.18.0.55"}
			put(t, l, "balanced.yaml", balanced())
			put(t, l, "pool.yaml", announcedBy(n.Name()))
			announced := func(is bool) {
				t.Helper()
				took := eventually(t, 30*time.Second, "the address moves", func() (bool, string) {
					lab.Get(t.Context(), client, probe.Request{Protocol: "tcp", Timeout: time.Second,
						To: netip.AddrPortFrom(netip.MustParseAddr(address[0]), 80)}) // resolves it
					has, err := client.Exec(t.Context(), "ip", "neighbor", "show", "to", address[0])
					noError(t, err)
					return strings.Contains(has, "lladdr") && strings.Contains(has, "02:42:ac:12:00:04") == is, has
				})
				t.Logf("announced by node-b: %v, after %v", is, took.Round(time.Millisecond))
			}
			announced(true)
			own := withConnections(t, client, address, 80)
			noError(t, n.Signal(agent, syscall.SIGSTOP))
			resume := sync.OnceFunc(func() { noError(t, n.Signal(agent, syscall.SIGCONT)) })
			t.Cleanup(resume)
			announced(false)
			setPorts(t, client, "40000 60999")
			others := withConnections(t, client, address, 80)
			resume()
			announced(true)
			own()
			others()
		})
	}
}
