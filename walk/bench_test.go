package walk

import (
	"syscall"
	"testing"
	"time"
)

// processorTime returns the CPU time of this process: on a busy machine, elapsed time means little.
func processorTime(b *testing.B) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkWalk follows the longest path of the documents, host to Service to the same host and
// back, in a prepared World. The goal is a million walks a minute.
func BenchmarkWalk(b *testing.B) {
	w := New(byHand(2))
	start := processorTime(b)
	for b.Loop() {
		if tr, err := w.Walk(inHost(1), tcp("10.96.0.21:80")); err != nil || !tr.Verdict.Answered {
			b.Fatal(err, tr)
		}
	}
	b.ReportMetric(float64(b.N)/(processorTime(b)-start).Minutes(), "walks/cpu-min")
}

// BenchmarkFirst is the first walk in a World.
func BenchmarkFirst(b *testing.B) {
	world := byHand(3)
	for b.Loop() {
		if tr, err := Walk(world, inHost(1), tcp("10.96.0.12:80")); err != nil || !tr.Verdict.Answered {
			b.Fatal(err, tr)
		}
	}
}

// BenchmarkPrint renders a trace.
func BenchmarkPrint(b *testing.B) {
	tr, err := New(byHand(2)).Walk(inHost(1), tcp("10.96.0.21:80"))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		_ = tr.String()
	}
}
