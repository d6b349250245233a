package plan_test

import (
	"fmt"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/plan"
)

func BenchmarkNode10k(b *testing.B) {
	for _, c := range []struct {
		name     string
		families []cluster.Family
	}{{"IPv4", []cluster.Family{cluster.IPv4}}, {"dual", []cluster.Family{cluster.IPv4, cluster.IPv6}}} {
		b.Run(c.name, func(b *testing.B) {
			s := large(100, 10000, c.families...)
			start := time.Now()
			for range b.N {
				state, problems := plan.Node(s, "node-000")
				if len(state.NB) < 10000 || len(problems) != 0 {
					b.Fatalf("%d rows, problems %v", len(state.NB), problems)
				}
			}
			report(b, start, 200)
		})
	}
}

func BenchmarkOneSliceChanged10k(b *testing.B) {
	for _, c := range []struct {
		name     string
		families []cluster.Family
	}{{"IPv4", []cluster.Family{cluster.IPv4}}, {"dual", []cluster.Family{cluster.IPv4, cluster.IPv6}}} {
		b.Run(c.name, func(b *testing.B) {
			s := large(100, 10000, c.families...)
			p := plan.NewPlanner()
			p.Node(s, "node-000")
			next := make([]*cluster.Snapshot, b.N)
			for i := range next { // what the Store does is not measured here
				next[i] = change(s, 10+i%9000, fmt.Sprintf("10.244.7.%d:8080", 3+i%200))
				s = next[i]
			}
			b.ResetTimer()
			start := time.Now()
			for _, s := range next {
				if _, problems := p.Node(s, "node-000"); len(problems) != 0 {
					b.Fatal(problems)
				}
			}
			report(b, start, 5)
		})
	}
}

// report tells the time of one round in milliseconds, and its part of what issue 2 allows.
func report(b *testing.B, start time.Time, allowed float64) {
	ms := float64(time.Since(start)) / float64(time.Millisecond) / float64(b.N)
	b.ReportMetric(ms, "ms")
	b.ReportMetric(ms/allowed, "of-allowed")
}
