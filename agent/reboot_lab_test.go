package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hairpin/hostnet/logind"
	"hairpin/lab"
	"hairpin/lab/demo"
)

// TestReboot: the node of an egress address and of a load balancer address is rebooted without a
// drain. Its agent delays the reboot until other nodes have the addresses. When logind lets the
// reboot begin, all processes and the network of the node end at once.
func TestReboot(t *testing.T) {
	g := startEgress(t, "[ovnkubernetesfeature]\negressip-reachability-total-timeout = 5\n")
	ctx := t.Context()
	noError(t, g.Label(ctx, demo.EgressStays, false))
	p, err := g.Pooled(ctx, "172.18.0.55")
	noError(t, err)
	noError(t, g.Nodes(ctx, demo.EgressDies))
	noError(t, p.Nodes(ctx, demo.EgressDies))
	addressAnswers(t, p)
	noError(t, g.See(ctx, egressAddress))

	socket := g.Demo().Lab().Node(demo.EgressDies).Path(strings.TrimPrefix(logind.Bus, "unix:path="))
	noError(t, os.MkdirAll(filepath.Dir(socket), 0o755))
	machine := lab.StartLogind(t, socket)
	machine.AwaitLock()
	noError(t, g.Label(ctx, demo.EgressStays, true))
	noError(t, g.Both(ctx))

	toPool := p.Connect(ctx, 10*time.Millisecond, 5*time.Second)
	toServer := g.Connect(ctx, 10*time.Millisecond, 5*time.Second)
	time.Sleep(time.Second) // of connections from before
	begun := time.Now()
	machine.Reboot()
	select {
	case unit := <-machine.Units:
		t.Logf("logind starts %s after %v", unit, time.Since(begun).Round(10*time.Millisecond))
	case <-time.After(30 * time.Second):
		t.Fatal("logind does not reboot")
	}
	noError(t, g.Kill())
	noError(t, g.Nodes(ctx, demo.EgressStays))
	noError(t, p.Nodes(ctx, demo.EgressStays))
	noError(t, g.See(ctx, egressAddress))
	time.Sleep(5 * time.Second) // of connections from after
	egress, pooled := toServer(), toPool()
	wrongSource(t, egressAddress, egress)
	for what, all := range map[string][]demo.Connection{"egress address": egress, "load balancer address": pooled} {
		n, slowest := failed(all)
		t.Logf("%s: of %d connections %d failed, the slowest took %v", what, len(all), n, slowest.Round(time.Millisecond))
		for _, c := range all {
			if c.Error != "" {
				t.Logf("%s: %d ms after the request: %s", what, c.Begun.Sub(begun).Milliseconds(), c.Error)
			}
		}
		if n > len(all)/10 {
			t.Errorf("%s: more connections failed than a busy machine loses", what)
		}
	}
}
