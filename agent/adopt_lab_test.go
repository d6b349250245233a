package agent_test

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// fight is another program that adds the uplink's address again whenever it is removed.
const fight = `while :; do ip address add 172.18.0.99/16 dev eth0 2>/dev/null || sleep 0.005; done`

// TestUplinkContested: a program that keeps adding an address to the uplink blocks nothing. It is
// counted and reported, and the agent slows down.
func TestUplinkContested(t *testing.T) {
	m := newMachine(t)
	m.known(t, true)
	m.pod(t, "one", "zone", "ovs", agent)
	waitServes(t, m.n)
	if p := part(t, mustReport(t, m.n), "uplink"); !p.InSync || p.Drift != 0 {
		t.Errorf("before: %+v", p)
	}
	if err := m.n.StartDaemon(t.Context(), "fighter", "sh", "-c", fight); err != nil {
		t.Fatal(err)
	}
	used, begin, slowest := cpuTime(t, m.n, "one-"+agent), time.Now(), time.Duration(0)
	told := func(list []string) bool {
		return slices.ContainsFunc(list, func(p string) bool {
			return strings.Contains(p, "Node/node-a: [gateway] interface: another program keeps moving to the uplink")
		})
	}
	eventually(t, 20*time.Second, "the agent tells of it", func() (bool, string) {
		time.Sleep(50 * time.Millisecond) // replies cost, too
		asked := time.Now()
		list := mustReport(t, m.n).Problems
		slowest = max(slowest, time.Since(asked))
		return told(list) && part(t, mustReport(t, m.n), "uplink").Drift >= 4, strings.Join(list, "\n")
	})
	r := part(t, mustReport(t, m.n), "uplink")
	t.Logf("in %v: the agent worked %v, the slowest answer took %v; %+v", time.Since(begin),
		cpuTime(t, m.n, "one-"+agent)-used, slowest, r)
	if slowest > time.Second*time.Duration(*slow) {
		t.Errorf("an answer took %v", slowest)
	}
	// Pauses of half a second, after the first few times.
	if most := uint64(10 + 4*time.Since(begin).Seconds()); r.Applies > most {
		t.Errorf("it counted %d changes by others, and moved things %d times, of at most %d", r.Drift, r.Applies, most)
	}
	if err := m.n.Kill(t.Context(), "fighter", 9); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "it is over", func() (bool, string) {
		r := mustReport(t, m.n)
		return !told(r.Problems) && part(t, r, "uplink").InSync, strings.Join(r.Problems, "\n")
	})
	m.onBridge(t)
}
