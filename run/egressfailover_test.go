package run_test

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"hairpin/lab"
	"hairpin/lab/demo"
)

var (
	failovers = flag.Int("failovers", 5, "how often BenchmarkEgressFailover kills a node")
	moves     = flag.Int("moves", 5, "how often BenchmarkEgressMove moves an address")
)

// startEgress starts the demo with an API, a controller and one egress address on the node that will be killed.
func startEgress(t testing.TB, config string) *demo.Egress {
	t.Helper()
	hairpin := build(t)
	name := fmt.Sprintf("eip%d", os.Getpid())
	t.Cleanup(func() {
		if err := lab.Remove(name); err != nil {
			t.Error(err)
		}
	})
	d, err := demo.Start(t.Context(), demo.Options{
		Name: name, Objects: "../examples/demo", Hairpin: hairpin, DieWithCaller: true, Out: told{t}, Config: config,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range d.Lab().Nodes() {
				t.Logf("%s: end of the agent's log:\n%s\ncontroller:\n%s", n.Name(), tail(n.LogFile(agent)), tail(n.LogFile("hairpin-controller")))
			}
		}
	})
	g, err := d.StartEgress(t.Context(), "172.18.0.33")
	if err != nil {
		t.Fatal(err)
	}
	return g
}

type told struct{ t testing.TB }

func (l told) Write(b []byte) (int, error) {
	l.t.Log(string(b[:len(b)-1]))
	return len(b), nil
}

// moveTo moves the address to the node that dies, while both live, and gives the connections of that time.
func moveTo(t testing.TB, g *demo.Egress) []demo.Connection {
	t.Helper()
	return move(t, g, demo.EgressStays, demo.EgressDies)
}

// move moves the address by taking the label of the node that has it.
func move(t testing.TB, g *demo.Egress, from, to string) []demo.Connection {
	t.Helper()
	if err := g.Both(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := g.See(t.Context(), "172.18.0.33"); err != nil {
		t.Fatal(err)
	}
	stop := g.Connect(t.Context(), 10*time.Millisecond, 5*time.Second)
	for _, err := range []error{
		g.Label(t.Context(), from, false), g.Nodes(t.Context(), to), g.Label(t.Context(), from, true),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(6 * time.Second) // the move takes 5 s, and is what is looked at
	return stop()
}

// wrongSource fails when anybody but the egress address was seen.
func wrongSource(t testing.TB, all []demo.Connection) {
	t.Helper()
	for _, c := range all {
		if c.Error == "" && c.Saw.String() != "172.18.0.33" {
			t.Errorf("a connection was seen as %s", c.Saw)
		}
	}
}

func failed(all []demo.Connection) (n int, slowest time.Duration) {
	for _, c := range all {
		if c.Error != "" {
			n++
		}
		slowest = max(slowest, c.Took)
	}
	return n, slowest
}

// failover kills the node that carries the address and gives for how long new connections failed.
func failover(t testing.TB, g *demo.Egress) time.Duration {
	t.Helper()
	stop := g.Connect(t.Context(), 10*time.Millisecond, 500*time.Millisecond)
	time.Sleep(100 * time.Millisecond) // some that succeed before
	killed := time.Now()
	for _, err := range []error{g.Kill(), g.Nodes(t.Context(), demo.EgressStays), g.See(t.Context(), "172.18.0.33")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	all := stop()
	wrongSource(t, all)
	return demo.Blackhole(all, killed)
}

// TestEgressFailover: an address moves between living nodes without a failed connection, and leaves a dead one.
func TestEgressFailover(t *testing.T) {
	// A machine that is busy with other things stalls for longer than it takes to call a node dead.
	g := startEgress(t, "[ovnkubernetesfeature]\negressip-reachability-total-timeout = 5\n")
	all := moveTo(t, g)
	wrongSource(t, all)
	n, slowest := failed(all)
	t.Logf("of %d connections during a planned move, %d failed; the slowest took %v", len(all), n, slowest.Round(time.Millisecond))
	if n > len(all)/10 {
		t.Error("more connections failed in a planned move than a busy machine loses")
	}
	t.Logf("node killed: new connections failed for %v", failover(t, g).Round(time.Millisecond))
	if err := g.Revive(t.Context()); err != nil {
		t.Fatal(err)
	}
	l := g.Demo().Lab()
	asker := askAll(t, l.Host("client"), netip.MustParseAddr("172.18.0.33"))
	cutOff(t, g, asker)
	stranger(t, g, asker)
	restarts(t, g, asker)
}

// BenchmarkEgressMove moves an address between two living nodes, again and again, by their label.
func BenchmarkEgressMove(b *testing.B) {
	for _, c := range egressSettings() {
		b.Run(c.name, func(b *testing.B) {
			g := startEgress(b, c.config)
			connections, lost := 0, 0
			var slowest time.Duration
			for i := range *moves {
				to, from := demo.EgressDies, demo.EgressStays
				if i%2 == 1 {
					to, from = from, to
				}
				all := move(b, g, from, to)
				wrongSource(b, all)
				n, slow := failed(all)
				connections, lost, slowest = connections+len(all), lost+n, max(slowest, slow)
				if n > 0 {
					b.Logf("%d: %d of %d failed", i, n, len(all))
				}
			}
			b.ReportMetric(float64(*moves), "moves")
			b.ReportMetric(float64(lost), "lost")
			b.ReportMetric(float64(connections), "connections")
			b.ReportMetric(float64(slowest.Milliseconds()), "slowest-ms")
		})
	}
}

// egressSettings are what is measured with.
func egressSettings() []struct{ name, config string } {
	return []struct{ name, config string }{
		{"usual", ""},
		{"fast", "[ovnkubernetesfeature]\negressip-reachability-total-timeout = 0.3\negressip-reachability-interval = 100ms\n"},
	}
}

// BenchmarkEgressFailover kills the node that carries an address, again and again, with the usual settings and with fast
// ones. In between, the address is moved back while both nodes live.
func BenchmarkEgressFailover(b *testing.B) {
	for _, c := range egressSettings() {
		b.Run(c.name, func(b *testing.B) {
			g := startEgress(b, c.config)
			var holes []time.Duration
			connections, lost := 0, 0
			var slowest time.Duration
			for i := range *failovers {
				all := moveTo(b, g)
				wrongSource(b, all)
				n, slow := failed(all)
				connections, lost, slowest = connections+len(all), lost+n, max(slowest, slow)
				holes = append(holes, failover(b, g))
				b.Logf("%d: planned move: %d of %d failed, slowest %v; killed: %v", i, n, len(all), slow.Round(time.Millisecond), holes[i].Round(time.Millisecond))
				if err := g.Revive(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			slices.Sort(holes)
			b.ReportMetric(float64(holes[len(holes)/2].Milliseconds()), "p50-ms")
			b.ReportMetric(float64(holes[len(holes)-1].Milliseconds()), "max-ms")
			b.ReportMetric(float64(lost), "planned-lost")
			b.ReportMetric(float64(connections), "planned")
			b.ReportMetric(float64(slowest.Milliseconds()), "planned-slowest-ms")
		})
	}
}
