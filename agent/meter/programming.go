package meter

import (
	"context"
	"sync"
	"time"

	"hairpin/cluster"
	"hairpin/retry"
	"hairpin/signal"
)

const (
	// programmingLimit is how long a node's flows may take before the wait for them starts again.
	programmingLimit = time.Minute
	// programmingMost is how many changes wait to be measured; more are not counted.
	programmingMost = 10000
)

// trigger is a change of a Service's endpoints, somewhere in the cluster.
type trigger struct {
	family cluster.Family
	at     time.Time
}

// Programming measures how long changes of endpoints take to reach this node's flows. Plan and
// Applied belong to the agent's loop.
type Programming struct {
	begin   time.Time // changes before this time belong to an earlier agent
	planned []trigger // in the plan, not yet on the node

	mu      sync.Mutex
	written []trigger // in OVN's database, not known to be in flows
	wake    signal.Signal
}

// NewProgramming returns a Programming that measures changes after now.
func NewProgramming(now time.Time) *Programming {
	return &Programming{begin: now, wake: signal.New()}
}

// Plan records the changes of the planned Frontends.
func (p *Programming) Plan(c cluster.Changes[cluster.Frontend]) {
	before := map[*cluster.Frontend]*cluster.Frontend{}
	for _, x := range c.Changed {
		before[x[1]] = x[0]
	}
	for i, f := range c.Added { // also the changed ones
		old := before[f]
		known := old != nil && old.Triggered.Equal(f.Triggered) ||
			i > 0 && sameTrigger(c.Added[i-1], f)
		if !known && f.Triggered.After(p.begin) && len(p.planned) < programmingMost {
			p.planned = append(p.planned, trigger{f.Family, f.Triggered})
		}
	}
}

// sameTrigger reports whether one change of a Service concerns both of its ports f and g.
func sameTrigger(f, g *cluster.Frontend) bool {
	return f.Owner == g.Owner && f.Family == g.Family && f.Triggered.Equal(g.Triggered)
}

// Applied records that everything planned is in the systems.
func (p *Programming) Applied() {
	if len(p.planned) == 0 {
		return
	}
	p.mu.Lock()
	if len(p.written) < programmingMost {
		p.written = append(p.written, p.planned...)
	}
	p.mu.Unlock()
	p.planned = nil
	p.wake.Notify()
}

// Run measures until ctx ends. sync returns when everything in OVN's database is in flows; one call
// serves all changes that exist when it begins.
func (p *Programming) Run(ctx context.Context, sync func(context.Context) error,
	measured func(cluster.Family, time.Duration)) {
	for p.wake.Wait(ctx) {
		for ctx.Err() == nil {
			p.mu.Lock()
			list := p.written
			p.written = nil
			p.mu.Unlock()
			if len(list) == 0 {
				break
			}
			limited, cancel := context.WithTimeout(ctx, programmingLimit)
			err := sync(limited)
			cancel()
			if err != nil {
				p.mu.Lock()
				p.written = append(list, p.written...)
				p.mu.Unlock()
				retry.Sleep(ctx, retry.Last)
				continue
			}
			now := time.Now()
			for _, t := range list {
				measured(t.family, max(0, now.Sub(t.at)))
			}
		}
	}
}
