package agent_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"hairpin/lab"
)

// BenchmarkRouteChanges measures the agent's cost while a routing daemon changes a route ten times
// a second: on the uplink, on another link, and on a machine with many routes.
func BenchmarkRouteChanges(b *testing.B) {
	_, n := alone(b)
	giveManifests(b, n)
	start(b, n)
	waitWell(b, n)
	sh(b, n,
		`ip link add lan5 type veth peer name far5; ip link set far5 up; ip link set lan5 up; ip addr add 10.5.0.1/24 dev lan5`)
	for _, c := range []struct {
		name, before, via string
	}{
		{"uplink", "", "dev br-ex via 172.18.0."},
		{"link", "", "dev lan5 via 10.5.0."},
		{"uplink with 100000 routes", manyRoutes, "dev br-ex via 172.18.0."},
		{"link with 100000 routes", "", "dev lan5 via 10.5.0."},
	} {
		b.Run(c.name, func(b *testing.B) {
			sh(b, n, c.before)
			waitWell(b, n)
			atRest(b, n)
			for b.Loop() {
				speak(b, n, c.via)
			}
		})
	}
}

// manyRoutes adds to a machine the routes of a routing daemon with a full table.
const manyRoutes = `for a in $(seq 0 99); do for b in $(seq 0 249); do for c in 0 64 128 192; do echo route add 20.$a.$b.$c/26 via 10.5.0.2 proto bgp; done; done; done | ip -batch -`

// speak changes a route ten times a second, and reports the agent's cost, in percent of a core.
func speak(b *testing.B, n *lab.Node, via string) {
	const changes, pause = 100, 100 * time.Millisecond
	b.Helper()
	used, begin := cpuTime(b, n, agent), time.Now()
	var script strings.Builder
	for i := range changes {
		fmt.Fprintf(&script, "ip route replace 203.0.113.0/24 %s%d proto bgp; sleep %.3f\n", via, 8+i%2,
			pause.Seconds())
	}
	sh(b, n, script.String())
	took := time.Since(begin)
	b.ReportMetric(100*(cpuTime(b, n, agent)-used).Seconds()/took.Seconds(), "%core")
	b.ReportMetric(changes/took.Seconds(), "changes/s")
}
