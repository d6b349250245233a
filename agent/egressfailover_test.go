package agent_test

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/demo"
	"hairpin/lab/probe"
)

var (
	failovers = flag.Int("failovers", 5, "how often BenchmarkEgressFailover kills a node")
	moves     = flag.Int("moves", 5, "how often BenchmarkEgressMove moves an address")
)

// startEgress starts the demo with an API, a controller and one egress address on the node that
// will be killed.
func startEgress(t testing.TB, config string) *demo.Egress {
	t.Helper()
	g, err := startAPI(t, cluster.ModeShared, config).StartEgress(t.Context(), "172.18.0.33")
	noError(t, err)
	return g
}

// startAPI starts the demo with an API and a controller.
func startAPI(t testing.TB, mode, config string) *demo.Demo {
	t.Helper()
	hairpin := build(t)
	name := demoName()
	t.Cleanup(func() {
		if err := lab.Remove(name); err != nil {
			t.Error(err)
		}
	})
	favour(t)
	d, err := demo.Start(t.Context(), demo.Options{
		Name: name, Objects: "../examples/demo", Hairpin: hairpin, API: demo.Kubernetes, DieWithCaller: true,
		Out: logged{t}, Mode: mode, Config: config,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range d.Lab().Nodes() {
				t.Logf("%s: end of the agent's log:\n%s\ncontroller:\n%s", n.Name(), tail(n.LogFile(agent)),
					tail(n.LogFile("hairpin-controller")))
			}
		}
	})
	return d
}

// moveTo moves the address to the node that will die, while both are alive.
func moveTo(t testing.TB, g *demo.Egress) moved {
	t.Helper()
	return move(t, g, egressAddress, demo.EgressStays, demo.EgressDies)
}

// egressAddress is the pod's egress address.
const egressAddress = "172.18.0.33"

// moved is the effect of a move on pods.
type moved struct {
	all          []demo.Connection // new ones
	open, broken int               // connections that were open all the time
	why          []string          // why connections broke or failed
}

// move moves an address by removing the label of its node.
func move(t testing.TB, g *demo.Egress, address, from, to string) (m moved) {
	t.Helper()
	if err := g.Both(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := g.See(t.Context(), address); err != nil {
		t.Fatal(err)
	}
	s, err := lab.StartStream(t.Context(), g.Pod(),
		probe.StreamConfig{Protocol: "tcp", To: g.Server(), Long: 5, Every: 50 * time.Millisecond, Timeout: patience,
			Duration: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	stop := g.Connect(t.Context(), 10*time.Millisecond, 5*time.Second)
	begun := time.Now()
	for _, err := range []error{g.Label(t.Context(), from, false), g.Nodes(t.Context(), to)} {
		if err != nil {
			_, _ = s.End()
			t.Fatal(err)
		}
	}
	left := g.Demo().Lab().Node(from)
	eventually(t, 30*time.Second, from+" has let go", func() (bool, string) {
		// Not the whole table: a load balancer's address is served everywhere.
		rules := sh(t, left, "ovn-nbctl lr-nat-list GR_"+from+
			"; for m in egress4 egress6; do nft list map inet hairpin $m 2>/dev/null || true; done")
		return !strings.Contains(rules, address), rules
	})
	if err := g.Label(t.Context(), from, true); err != nil {
		t.Error(err)
	}
	if err := lab.Flow(t.Context(), 10, s); err != nil {
		t.Error(err)
	}
	m.all = stop()
	r, err := s.End()
	if err != nil {
		t.Fatal(err)
	}
	m.open, m.broken, m.why = r.Long, r.Broken, r.Errors
	for _, c := range m.all {
		if c.Error != "" {
			m.why = append(m.why, fmt.Sprintf("new connection %d ms after the label went: %s",
				c.Begun.Sub(begun).Milliseconds(), c.Error))
		}
	}
	wrongSource(t, address, m.all)
	return m
}

// wrongSource fails if any source but the egress address was recorded.
func wrongSource(t testing.TB, address string, all []demo.Connection) {
	t.Helper()
	for _, c := range all {
		if c.Error == "" && c.Saw.String() != address {
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

// carries reports whether the status assigns the address to a node now.
func carries(t testing.TB, g *demo.Egress, node string) bool {
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	return g.Nodes(ctx, node) == nil
}

// waited counts the connections with a retransmitted packet: a SYN after one second.
func waited(all []demo.Connection) (n int) {
	for _, c := range all {
		if c.Error == "" && c.Took >= 900*time.Millisecond {
			n++
		}
	}
	return n
}

// failover kills the node that carries the address. It returns how long new connections failed, and
// how long at most the machine ran none of the processes meanwhile: nothing could have been faster.
func failover(t testing.TB, g *demo.Egress, address string) (hole, stall time.Duration) {
	t.Helper()
	for !carries(t, g, demo.EgressDies) { // it seemed to be dead for a moment
		t.Logf("%s does not carry the address any more: it is moved again", demo.EgressDies)
		move(t, g, address, demo.EgressStays, demo.EgressDies)
	}
	stop := g.Connect(t.Context(), 10*time.Millisecond, 500*time.Millisecond)
	if err := g.See(t.Context(), address); err != nil { // some succeed before
		t.Fatal(err)
	}
	stalled := watchStalls()
	killed := time.Now()
	for _, err := range []error{g.Kill(), g.Nodes(t.Context(), demo.EgressStays), g.See(t.Context(), address)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	stall = stalled()
	all := stop()
	wrongSource(t, address, all)
	return demo.Blackhole(all, killed), stall
}

// watchStalls returns the longest delay of a timer of 2 ms, until it is read.
func watchStalls() (longest func() time.Duration) {
	end, worst := make(chan struct{}), make(chan time.Duration)
	go func() {
		var most time.Duration
		for last := time.Now(); ; {
			select {
			case <-end:
				worst <- most
				return
			case <-time.After(2 * time.Millisecond):
			}
			now := time.Now()
			most, last = max(most, now.Sub(last)-2*time.Millisecond), now
		}
	}()
	return func() time.Duration { close(end); return <-worst }
}

// again moves the address away and back under a connection that ends in between: the first node
// does not receive its end. Another connection from the same port works all the same.
func again(t *testing.T, g *demo.Egress) {
	t.Helper()
	const port = 20001 // the kernel allocates others
	end, err := g.Open(port)
	if err != nil {
		t.Fatal(err)
	}
	lead(t, g, demo.EgressDies, demo.EgressStays)
	end()
	lead(t, g, demo.EgressStays, demo.EgressDies)
	tries := 0
	defer func() { t.Logf("a port was used again at try %d", tries) }()
	eventually(t, 20*time.Second, "a port is used again", func() (bool, string) {
		tries++
		end, err := g.Open(port)
		if err != nil {
			return false, err.Error()
		}
		end()
		return true, ""
	})
}

// forgets moves the address away and back, under a connection that ends in between. Another one
// from the same port works at once, while the pod is still routed to the other node: the first node
// does not take the reply for the first connection's.
func forgets(t *testing.T, g *demo.Egress) {
	t.Helper()
	const port = 20002
	end, err := g.Open(port)
	if err != nil {
		t.Fatal(err)
	}
	lead(t, g, demo.EgressDies, demo.EgressStays)
	end()
	n := g.Demo().Lab().Node(demo.EgressDies)
	eventually(t, 30*time.Second, demo.EgressDies+" has let go", func() (bool, string) {
		rules := sh(t, n, "ip rule; ovn-nbctl lr-nat-list GR_"+demo.EgressDies)
		return !strings.Contains(rules, fmt.Sprint(claims.RuleEgress, ":")) && !strings.Contains(rules, egressAddress),
			rules
	})
	for _, err := range []error{g.Both(t.Context()), g.Label(t.Context(), demo.EgressStays, false),
		g.Nodes(t.Context(), demo.EgressDies)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if end, err = g.Open(port); err != nil {
		t.Errorf("a port is used again while the address is on its way: %v", err)
	} else {
		end()
	}
	if err := g.Label(t.Context(), demo.EgressStays, true); err != nil {
		t.Fatal(err)
	}
}

// lead moves the address, and waits until the pod is routed to the other node.
func lead(t *testing.T, g *demo.Egress, from, to string) {
	t.Helper()
	n := g.Demo().Lab().Node("node-a")
	ways := func() string { return sh(t, n, "ovn-nbctl lr-policy-list ovn_cluster_router | grep ' 100 '") }
	before := ways()
	for _, err := range []error{
		g.Both(t.Context()), g.Label(t.Context(), from, false), g.Nodes(t.Context(), to),
		g.Label(t.Context(), from, true),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, 30*time.Second, "pods are led to "+to,
		func() (bool, string) { now := ways(); return now != before, now })
}

// TestEgressFailover: an address moves between live nodes without a failed connection, and leaves a
// dead one.
func TestEgressFailover(t *testing.T) {
	t.Parallel()
	// A machine that is busy with other work stalls for longer than it takes to give a node up.
	g := startEgress(t, "[ovnkubernetesfeature]\negressip-reachability-total-timeout = 5\n")
	moveTo(t, g).well(t, "the gateway bridge's network")
	again(t, g)
	forgets(t, g)
	other := onOtherWire(t, g, otherAddress, otherServer)
	move(t, other, otherAddress, demo.EgressStays, demo.EgressDies).well(t, "another network")
	forgets(t, other)
	hole, stall := failover(t, g, egressAddress)
	t.Logf("node killed: new connections failed for %v, the machine stalled for up to %v", hole.Round(time.Millisecond),
		stall.Round(time.Millisecond))
	if err := g.Revive(t.Context()); err != nil {
		t.Fatal(err)
	}
	addressChanges(t, g)
	l := g.Demo().Lab()
	asker := askAll(t, l.Host("client"), netip.MustParseAddr("172.18.0.33"))
	cutOff(t, g, asker)
	foreignClaim(t, g, asker)
	restarts(t, g, asker)
}

// well fails if a move lost more than on a busy machine.
func (m moved) well(t *testing.T, where string) {
	t.Helper()
	n, slowest := failed(m.all)
	t.Logf("%s: of %d connections during a planned move, %d failed; the slowest took %v; of %d open ones, %d broke: %v",
		where, len(m.all), n, slowest.Round(time.Millisecond), m.open, m.broken, m.why)
	if n > len(m.all)/10 || m.broken > m.open/2 {
		t.Errorf("%s: more connections suffered in a planned move than a busy machine loses", where)
	}
}

// Addresses of a network that is not that of the gateway bridge, and a server on it.
const (
	otherAddress, otherServer   = "10.10.10.33", "10.10.10.100"
	otherAddress6, otherServer6 = "fd10::33", "fd10::64"
)

// onOtherWire adds to both egress nodes a link to another network, with a server on it, and gives
// the pod of one of them an address of that network.
func onOtherWire(t testing.TB, g *demo.Egress, address, server string) *demo.Egress {
	t.Helper()
	for name, octet := range map[string]int{demo.EgressStays: 4, demo.EgressDies: 6, "client": 100} {
		p := netip.MustParsePrefix
		if err := g.Demo().Lab().Host(name).Join(t.Context(), "wire2", "eth1", p(fmt.Sprintf("10.10.10.%d/24", octet)),
			p(fmt.Sprintf("fd10::%x/64", octet))); err != nil {
			t.Fatal(err)
		}
	}
	other, err := g.Other(t.Context(), netip.MustParseAddr(server), address)
	if err != nil {
		t.Fatal(err)
	}
	return other
}

// BenchmarkEgressMove repeatedly moves an address between two live nodes, by their label: one of
// the gateway bridge's network, and one of another.
func BenchmarkEgressMove(b *testing.B) {
	for _, c := range append(egressSettings(), egressSetting{name: "other"}, egressSetting{name: "other6"}) {
		b.Run(c.name, func(b *testing.B) {
			g, address := startEgress(b, c.config), egressAddress
			switch c.name {
			case "other":
				g, address = onOtherWire(b, g, otherAddress, otherServer), otherAddress
			case "other6":
				g, address = onOtherWire(b, g, otherAddress6, otherServer6), otherAddress6
			}
			connections, lost, open, broken, late := 0, 0, 0, 0, 0
			var slowest time.Duration
			for i := range *moves {
				to, from := demo.EgressDies, demo.EgressStays
				if i%2 == 1 {
					to, from = from, to
				}
				m := move(b, g, address, from, to)
				n, slow := failed(m.all)
				connections, lost, slowest = connections+len(m.all), lost+n, max(slowest, slow)
				open, broken, late = open+m.open, broken+m.broken, late+waited(m.all)
				if n > 0 || m.broken > 0 {
					b.Logf("%d, to %s: %d of %d failed; %d of %d open ones broke: %v", i, to, n, len(m.all), m.broken,
						m.open, m.why)
				}
			}
			b.ReportMetric(float64(open), "open")
			b.ReportMetric(float64(broken), "broken")
			b.ReportMetric(float64(*moves), "moves")
			b.ReportMetric(float64(lost), "lost")
			b.ReportMetric(float64(late), "waited")
			b.ReportMetric(float64(connections), "connections")
			b.ReportMetric(float64(slowest.Milliseconds()), "slowest-ms")
		})
	}
}

type egressSetting struct{ name, config string }

// egressSettings are the measured settings.
func egressSettings() []egressSetting {
	return []egressSetting{
		{"usual", ""},
		{"fast",
			"[ovnkubernetesfeature]\negressip-reachability-total-timeout = " +
				"0.3\negressip-reachability-interval = 100ms\n"},
	}
}

// BenchmarkEgressFailover repeatedly kills the node that carries an address, with the usual
// settings and with fast ones, and the host of an EgressService. In between, the address is moved
// back while both nodes are alive.
func BenchmarkEgressFailover(b *testing.B) {
	for _, c := range append(egressSettings(), egressSetting{name: "service"}) {
		b.Run(c.name, func(b *testing.B) {
			g, address := startEgress(b, c.config), egressAddress
			if c.name == "service" {
				g, address = behind(b, g), balancerAddress
			}
			var holes, quiet []time.Duration // all, and those while the machine did not stall
			connections, lost := 0, 0
			var slowest time.Duration
			for i := range *failovers {
				m := move(b, g, address, demo.EgressStays, demo.EgressDies)
				n, slow := failed(m.all)
				connections, lost, slowest = connections+len(m.all), lost+n, max(slowest, slow)
				hole, stall := failover(b, g, address)
				holes = append(holes, hole)
				if stall < 30*time.Millisecond {
					quiet = append(quiet, hole)
				}
				b.Logf("%d: planned move: %d of %d failed, slowest %v; killed: %v, stalled for up to %v; %v", i, n,
					len(m.all),
					slow.Round(time.Millisecond), hole.Round(time.Millisecond), stall.Round(time.Millisecond), m.why)
				if err := g.Revive(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			reportHoles(b, "", holes)
			b.ReportMetric(float64(len(quiet)), "quiet")
			reportHoles(b, "quiet-", quiet)
			b.ReportMetric(float64(lost), "planned-lost")
			b.ReportMetric(float64(connections), "planned")
			b.ReportMetric(float64(slowest.Milliseconds()), "planned-slowest-ms")
		})
	}
}

func reportHoles(b *testing.B, of string, list []time.Duration) {
	if len(list) == 0 {
		return
	}
	slices.Sort(list)
	b.ReportMetric(float64(list[len(list)/2].Milliseconds()), of+"p50-ms")
	b.ReportMetric(float64(list[len(list)-1].Milliseconds()), of+"max-ms")
}
