package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hairpin/claims"
	"hairpin/lab"
	"hairpin/lab/probe"
)

// TestDemo runs all tests that need the three nodes of the demo, on one lab. Its measurements are
// in its log (-v).
func TestDemo(t *testing.T) {
	l := startDemo(t)
	ways := paths(t, l)
	each := func(name string, f func(*testing.T)) {
		t.Run(name, f)
		for _, n := range l.Nodes() {
			waitWell(t, n)
		}
	}
	each("Start", func(t *testing.T) {
		for _, n := range l.Nodes() {
			for _, p := range mustReport(t, n).Parts {
				t.Logf("%s %s: %d reads, %d applies, %d written, %d errors", n.Name(), p.System, p.Reads, p.Applies,
					p.Written, p.Errors)
				if p.Reads > 25 {
					t.Errorf("%d reads at the start", p.Reads)
				}
			}
		}
	})
	each("Quiet", func(t *testing.T) { quiet(t, l.Node("node-b")) })
	each("Unchanged", func(t *testing.T) {
		for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
			t.Run(sig.String(), func(t *testing.T) { restartUnchanged(t, l.Node("node-a"), sig) })
		}
	})
	each("Kill", func(t *testing.T) {
		for _, name := range []string{agent, lab.Controller, lab.Northd, lab.NB, lab.SB} {
			t.Run(name, func(t *testing.T) { killAlone(t, l, ways, name) })
		}
		t.Run(lab.OVSDB, func(t *testing.T) { killSwitchDB(t, l, ways) })
	})
	each("Deleted", func(t *testing.T) { deletedMeanwhile(t, l) })
	each("Switch", func(t *testing.T) {
		for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
			t.Run(sig.String(), func(t *testing.T) { restartSwitch(t, l, ways, sig) })
		}
	})
	each("Drift", func(t *testing.T) { alterOurs(t, l.Node("node-a"), alterations()) })
	each("Explain", func(t *testing.T) { explains(t, l.Node("node-a")) })
	each("Problems", func(t *testing.T) { badObjects(t, l, ways) })
	each("Everything", func(t *testing.T) { restartEverything(t, l, ways) })
}

// Slack for a busy machine: a test fails if something takes longer than the limit times this.
const slack = 6

// killAlone kills a daemon of node-a under traffic, and starts it again. No connection notices.
func killAlone(t *testing.T, l *lab.Lab, ways []path, name string) {
	n := l.Node("node-a")
	o := under(t, ways, func(f traffic) {
		f.flows(some) // before the kill
		if err := n.Kill(t.Context(), name, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		f.flows(some) // without it
		if err := n.Start(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		waitWell(t, n)
		sh(t, n, "ovn-nbctl --wait=hv --timeout=20 sync") // ovn-controller has put its own flows in place
		f.flows(late)                                     // late effects
	})
	t.Log(o)
	if name == lab.Controller {
		o.fewFail(t)
	} else {
		o.allWell(t)
	}
}

// killSwitchDB kills the server of Open vSwitch's own database. Without the server, ovs-vswitchd
// does not run its userspace datapath (bridge_run returns before it), and it looks for the server
// only every second. On such a node there is an outage. No connection is lost by it.
func killSwitchDB(t *testing.T, l *lab.Lab, ways []path) {
	n := l.Node("node-a")
	o := under(t, ways, func(f traffic) {
		f.flows(some)
		if err := n.Restart(t.Context(), lab.OVSDB, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		waitWell(t, n)
		f.flows(late)
	})
	t.Log(o)
	if n.Datapath() != "netdev" {
		o.allWell(t)
	}
	if o.broken > 0 || o.failed > 0 {
		t.Errorf("%s\n%s", o, strings.Join(o.errors, "\n"))
	}
}

// waitRestarted waits until the agent has counted one more restart of ovs-vswitchd than before, and
// has restored its flows.
func waitRestarted(t *testing.T, n *lab.Node, before uint64) {
	t.Helper()
	eventually(t, 5*time.Second, "Open vSwitch is let go", func() (bool, string) {
		r, err := reportOf(t.Context(), n)
		return err == nil && r.Restarts == before+1, "not yet"
	})
}

// restartSwitch restarts ovs-vswitchd under traffic. The outage is half a second at most, and no
// open connection is lost.
//
// The userspace datapath loses its connection tracking with the process. A connection never
// recovers if its handshake is in progress at that moment, and its client then waits for the server
// to send first: the server's retransmissions look like packets of an unknown connection.
func restartSwitch(t *testing.T, l *lab.Lab, ways []path, sig syscall.Signal) {
	n := l.Node("node-a")
	before, flows := mustReport(t, n).Restarts, ownFlows(t, n)
	o := under(t, ways, func(f traffic) {
		f.flows(some)
		begin := time.Now()
		if err := n.Restart(t.Context(), lab.VSwitchd, sig); err != nil {
			t.Fatal(err)
		}
		started := time.Since(begin)
		waitRestarted(t, n, before)
		t.Logf("ovs-vswitchd was there again after %d ms, forwarded after %d ms", started.Milliseconds(),
			time.Since(begin).Milliseconds())
		waitWell(t, n)
		f.flows(late)
	})
	t.Logf("%s; %s", o, strings.Join(o.gaps, ", "))
	// The outage and the failures in it are logged above: a busy machine affects them, too.
	if o.broken > 0 {
		t.Errorf("%s\n%s", o, strings.Join(o.errors, "\n"))
	}
	eventually(t, 20*time.Second, "flows and groups are as before", func() (bool, string) {
		now := ownFlows(t, n)
		return now == flows, lab.Difference(flows, now)
	})
}

// ownFlows returns the flows and groups of Hairpin's bridges, without those that connections made.
func ownFlows(t *testing.T, n *lab.Node) string {
	t.Helper()
	var list []string
	for _, bridge := range []string{"br-ex", claims.ServiceBridge, claims.TunnelBridge} {
		for _, what := range []string{"flows", "groups"} {
			out := sh(t, n, "ovs-ofctl -O OpenFlow15 --no-stats dump-"+what+" "+bridge)
			for _, l := range lines(out) {
				if learned := strings.Contains(l, "_timeout="); !learned && !strings.Contains(l, "xid=") {
					list = append(list, bridge+" "+strings.TrimSpace(l))
				}
			}
		}
	}
	slices.Sort(list)
	return strings.Join(list, "\n")
}

// deletedMeanwhile deletes a Service while the agent does not run: nothing of it remains.
func deletedMeanwhile(t *testing.T, l *lab.Lab) {
	n := l.Node("node-a")
	const number = 9
	const left = "ovn-nbctl lb-list; nft list ruleset; ovs-ofctl dump-flows br-ex; ovs-ofctl dump-flows br-svc; ip " +
		"route show table all"
	put(t, l, "moving.yaml", fmt.Sprintf(movingService, number, "10.244.2.3"))
	words := []string{fmt.Sprintf("10.96.77.%d", number), fmt.Sprintf("3077%d", number)}
	has := func(all bool) func() (bool, string) {
		return func() (bool, string) {
			out := sh(t, n, left)
			for _, w := range words {
				if strings.Contains(out, w) != all {
					return false, fmt.Sprintf("%s, want it: %v", w, all)
				}
			}
			return true, ""
		}
	}
	eventually(t, 20*time.Second, "the Service is served", has(true))
	noError(t, n.Kill(t.Context(), agent, syscall.SIGKILL))
	noError(t, os.Remove(filepath.Join(l.Dir(), "manifests", "moving.yaml")))
	noError(t, n.Start(t.Context(), agent))
	waitWell(t, n)
	eventually(t, 20*time.Second, "nothing is left of it", has(false))
}

// restartEverything ends all processes of node-a and starts them again, in various orders, with and
// without the state that they can rebuild.
func restartEverything(t *testing.T, l *lab.Lab, ways []path) {
	natural := []string{lab.OVSDB, lab.NB, lab.SB, lab.VSwitchd, lab.Northd, lab.Controller, agent}
	reverse := slices.Clone(natural)
	slices.Reverse(reverse)
	const nb, sb = "/var/lib/ovn/ovnnb_db.db", "/var/lib/ovn/ovnsb_db.db"
	for _, c := range []struct {
		name  string
		sig   syscall.Signal
		order []string
		lost  string // command that removes state meanwhile
	}{
		{"in order", syscall.SIGKILL, natural, "true"},
		{"in reverse, without NB", syscall.SIGKILL, reverse, "rm " + nb},
		{"the agent first, without SB", syscall.SIGKILL, append([]string{agent}, natural[:6]...), "rm " + sb},
		{"in order, without NB and SB", syscall.SIGKILL, natural, "rm " + nb + " " + sb},
		{"terminated", syscall.SIGTERM, natural, "true"},
		// As after a reboot, except for the pods. The system adds br-ex's addresses again.
		{"without devices and nft", syscall.SIGKILL, natural,
			"ip link del ovn-k8s-mp0; ip link del br-int; ip link del br-ex; nft flush ruleset; sysctl -qw " +
				"net.ipv4.ip_forward=0"},
	} {
		t.Run(c.name, func(t *testing.T) { restartAll(t, l.Node("node-a"), ways, c.sig, c.order, c.lost) })
	}
}

func restartAll(t *testing.T, n *lab.Node, ways []path, sig syscall.Signal, order []string, lost string) {
	for _, name := range slices.Backward(order) {
		if err := n.Kill(t.Context(), name, sig); err != nil {
			t.Fatal(err)
		}
	}
	sh(t, n, lost)
	begin := time.Now()
	var wg sync.WaitGroup
	for i, name := range order {
		wg.Go(func() { // some return only when their dependencies run, too
			for i > 0 && n.Pid(order[i-1]) == 0 && time.Since(begin) < slack*time.Second {
				time.Sleep(time.Millisecond)
			}
			if err := n.Start(t.Context(), name); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	started := time.Since(begin)
	took := serves(t, ways, slack*3*time.Second)
	t.Logf("%s: all started within %d ms; serves %d ms later", strings.Join(order, ", "), started.Milliseconds(),
		took.Milliseconds())
	waitWell(t, n)
	if diff, err := ask(t.Context(), n, "/diff"); err != nil || diff != "" {
		t.Errorf("%v; differences:\n%s", err, diff)
	}
}

// serves waits until there is a reply on every path, and returns the time that took.
func serves(t *testing.T, ways []path, limit time.Duration) time.Duration {
	t.Helper()
	begin := time.Now()
	var wg sync.WaitGroup
	last, took := make([]string, len(ways)), make([]time.Duration, len(ways))
	for i, w := range ways {
		wg.Go(func() {
			for last[i] = "no answer"; last[i] != "" && time.Since(begin) < limit &&
				t.Context().Err() == nil; took[i] = time.Since(begin) {
				a := lab.Get(t.Context(), w.from,
					probe.Request{Protocol: w.protocol, To: w.to, Timeout: 100 * time.Millisecond})
				last[i] = a.Error
			}
		})
	}
	wg.Wait()
	for i, w := range ways {
		if last[i] != "" {
			t.Errorf("%s: nothing within %v: %s", w.name, limit, last[i])
		} else if took[i] > time.Second {
			t.Logf("%s after %d ms", w.name, took[i].Milliseconds())
		}
	}
	return slices.Max(took)
}
