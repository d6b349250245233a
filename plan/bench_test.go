package plan_test

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/plan"
)

// byEngines runs a benchmark with both engines, and with one family and two, at 10 000 Services.
func byEngines(b *testing.B, run func(b *testing.B, s *cluster.Snapshot, families int)) {
	for _, c := range []struct {
		name     string
		families []cluster.Family
		flows    bool
	}{
		{"IPv4", []cluster.Family{cluster.IPv4}, false}, {"dual", []cluster.Family{cluster.IPv4, cluster.IPv6}, false},
		{"openflow-IPv4", []cluster.Family{cluster.IPv4}, true},
		{"openflow-dual", []cluster.Family{cluster.IPv4, cluster.IPv6}, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			run(b, byEngine(large(100, 10000, c.families...), "node-000", c.flows), len(c.families))
		})
	}
}

func BenchmarkNode10k(b *testing.B) {
	byEngines(b, func(b *testing.B, s *cluster.Snapshot, _ int) {
		timer := startTimer()
		for range b.N {
			state, problems := plan.Node(s, "node-000")
			if len(state.NB)+state.Bridge.Groups.Len() < 10000 || len(problems) != 0 {
				b.Fatalf("%d rows, %d groups, problems %v", len(state.NB), state.Bridge.Groups.Len(), problems)
			}
		}
		timer.report(b, 200)
	})
}

// replanned measures a Planner that has planned s, at each next Snapshot, which must have the given
// number of problems. The Store is not measured.
func replanned(b *testing.B, s *cluster.Snapshot, want int, next func(s *cluster.Snapshot, i int) *cluster.Snapshot) {
	p := plan.NewPlanner()
	p.Node(s, "node-000")
	list := make([]*cluster.Snapshot, b.N)
	for i := range list {
		s = next(s, i)
		list[i] = s
	}
	b.ResetTimer()
	timer := startTimer()
	for _, s := range list {
		if _, problems := p.Node(s, "node-000"); len(problems) != want {
			b.Fatal(problems)
		}
	}
	timer.report(b, 5)
}

// oneSlice changes an IPv4 endpoint of one Service. Each Service has one Frontend per family.
func oneSlice(families int) func(*cluster.Snapshot, int) *cluster.Snapshot {
	return func(s *cluster.Snapshot, i int) *cluster.Snapshot {
		return change(s, families*(10+i%9000), fmt.Sprintf("10.244.7.%d:8080", 3+i%200))
	}
}

func BenchmarkOneSliceChanged10k(b *testing.B) {
	byEngines(b, func(b *testing.B, s *cluster.Snapshot, families int) { replanned(b, s, 0, oneSlice(families)) })
}

// A pod is added to a node.
func BenchmarkPodAdded10k(b *testing.B) {
	byEngines(b, func(b *testing.B, s *cluster.Snapshot, _ int) {
		replanned(b, s, 0, func(last *cluster.Snapshot, i int) *cluster.Snapshot {
			with := *last
			with.Pods = append(slices.Clone(s.Pods),
				pod("node-000", fmt.Sprintf("z%d", i), fmt.Sprintf("10.244.1.%d", 100+i%100),
					fmt.Sprintf("fd00:10:244:1::%x", 100+i%100)))
			return &with
		})
	})
}

// A rejection for one Service makes no later change more expensive.
func BenchmarkOneSliceChanged10kRejected(b *testing.B) {
	s := large(100, 10000, cluster.IPv4, cluster.IPv6)
	for _, i := range []int{5, 6} {
		edited(s.Frontends[2*i], external("192.0.2.7"))
	}
	replanned(b, s, 1, oneSlice(2))
}

// Another node's taint, zone or moved address, of 10 and of 250 at 1 000 Services, and of 100 at 10
// 000.
func BenchmarkPeerChanged(b *testing.B) {
	for _, size := range []struct{ nodes, services int }{{10, 1000}, {250, 1000}, {100, 10_000}} {
		s := large(size.nodes, size.services, cluster.IPv4, cluster.IPv6)
		for name, edit := range map[string]func(n *cluster.Node, i int){
			"taint": func(n *cluster.Node, i int) { n.Leaving = i%2 == 0 },
			"zone":  func(n *cluster.Node, i int) { n.Zone = fmt.Sprint(i) },
			"address": func(n *cluster.Node, i int) {
				n.HostAddresses = append(n.HostAddresses[:2:2], netip.PrefixFrom(addr("192.168.0.1"), 20+i%8))
			},
		} {
			b.Run(fmt.Sprintf("%s-%d", name, size.nodes), func(b *testing.B) {
				replanned(b, s, 0, func(_ *cluster.Snapshot, i int) *cluster.Snapshot {
					next := new(*s)
					next.Nodes = slices.Clone(s.Nodes)
					next.Nodes[7] = new(*s.Nodes[7])
					edit(next.Nodes[7], i)
					return next
				})
			})
		}
	}
}

// Another node is added and removed, beside 10 and 1 000 others and 1 000 Services. Each round does
// one of both.
func BenchmarkNodeJoins(b *testing.B) {
	for _, size := range []int{10, 1000} {
		for _, flows := range []bool{false, true} {
			s := byEngine(large(10, 1000, cluster.IPv4, cluster.IPv6), "node-000", flows)
			for i := len(s.Nodes); i <= size; i++ {
				n := new(*s.Nodes[1])
				n.Name, n.ID = fmt.Sprintf("other-%04d", i), 1000+i
				n.Addresses = []netip.Addr{addr(fmt.Sprintf("172.18.%d.%d", 1+i/250, i%250)),
					addr(fmt.Sprintf("fc00:f853:ccd::1:%x", i))}
				n.HostAddresses = []netip.Prefix{netip.PrefixFrom(n.Addresses[0], 16),
					netip.PrefixFrom(n.Addresses[1], 64)}
				n.PodCIDRs = []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.244.%d.%d/27", 11+i/8, i%8*32)),
					netip.MustParsePrefix(fmt.Sprintf("fd00:10:244:%x::/64", 11+i))}
				s.Nodes = append(s.Nodes, n)
			}
			b.Run(fmt.Sprintf("nodes=%d/openflow=%v", size, flows), func(b *testing.B) {
				replanned(b, s, 0, func(_ *cluster.Snapshot, i int) *cluster.Snapshot {
					next := new(*s)
					next.Nodes = s.Nodes[:size+i%2]
					return next
				})
			})
		}
	}
}

// timer measures rounds of a benchmark.
type timer struct {
	start time.Time
	cpu   time.Duration
}

func startTimer() timer { return timer{time.Now(), cpuTime()} }

// cpuTime returns the CPU time of this process, garbage collection included.
func cpuTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// report reports the time of one round in milliseconds, its part of the limit of issue 2, and the
// CPU time, which does not depend on the load of the machine.
func (t timer) report(b *testing.B, allowed float64) {
	ms := float64(time.Since(t.start)) / float64(time.Millisecond) / float64(b.N)
	b.ReportMetric(ms, "ms")
	b.ReportMetric(ms/allowed, "of-allowed")
	b.ReportMetric(float64(cpuTime()-t.cpu)/float64(time.Millisecond)/float64(b.N), "cpu-ms")
	b.ReportMetric(0, "ns/op")
}
