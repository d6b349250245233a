package meter

import (
	"context"
	"io"
	"slices"
	"testing"
	"time"

	"hairpin/cluster"
)

// TestProgramming: which changes of endpoints are measured, and when.
func TestProgramming(t *testing.T) {
	begin := time.Now()
	p := NewProgramming(begin)
	front := func(name, port string, after time.Duration) *cluster.Frontend {
		return &cluster.Frontend{Owner: cluster.Owner{Kind: "Service", Name: name}, PortName: port,
			Family: cluster.IPv4, Triggered: begin.Add(after)}
	}
	old, a, b := front("a", "", -time.Second), front("b", "x", time.Second), front("b", "y", time.Second)
	var last []*cluster.Frontend
	for _, c := range []struct {
		name string
		now  []*cluster.Frontend
		want []time.Duration
	}{
		{"older than the agent", []*cluster.Frontend{old}, nil},
		{"one change, two ports", []*cluster.Frontend{old, a, b}, []time.Duration{time.Second}},
		{"nothing new", []*cluster.Frontend{old, a, b}, nil},
		{"same time, other fact", []*cluster.Frontend{old, new(*a), b}, nil},
		{"changed", []*cluster.Frontend{front("a", "", 2*time.Second), a, b}, []time.Duration{2 * time.Second}},
		{"gone", []*cluster.Frontend{a}, nil},
		{"and others come", []*cluster.Frontend{a, front("c", "", 3*time.Second), front("d", "", 4*time.Second)},
			[]time.Duration{3 * time.Second, 4 * time.Second}},
		{"all gone", nil, nil},
	} {
		p.Plan(cluster.Compare(last, c.now, (*cluster.Frontend).Compare))
		last = c.now
		var got []time.Duration
		for _, x := range p.planned {
			got = append(got, x.at.Sub(begin))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, not %v", c.name, got, c.want)
		}
		p.planned = nil
	}

	// A failed wait is repeated; then everything written so far is measured.
	ctx, cancel := context.WithCancel(t.Context())
	tries, measured := 0, make(chan cluster.Family, 2)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Run(ctx, func(context.Context) error {
			if tries++; tries == 1 {
				return io.ErrUnexpectedEOF
			}
			return nil
		}, func(f cluster.Family, _ time.Duration) { measured <- f })
	}()
	p.Plan(cluster.Changes[cluster.Frontend]{Added: []*cluster.Frontend{front("e", "", time.Second)}})
	p.Applied()
	if f := <-measured; f != cluster.IPv4 || tries != 2 {
		t.Errorf("%s after %d tries", f, tries)
	}
	cancel()
	<-done
}
