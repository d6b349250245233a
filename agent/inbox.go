package agent

import (
	"context"
	"sync"

	"hairpin/cluster"
	"hairpin/egress/view"
	"hairpin/egress/wire"
	"hairpin/hostnet"
	"hairpin/signal"
)

// inbox gathers the reasons for another round of the agent. Writers never wait; the agent takes
// everything at once.
type inbox struct {
	wake signal.Signal // there is something

	mu     sync.Mutex
	taken  uint64 // how many times
	events events
}

// events is what an inbox holds.
type events struct {
	number    uint64            // of the round that takes it
	snapshot  *cluster.Snapshot // newest; nil until the first
	sourceErr error             // why there is none
	news      bool              // there is something new to plan: another Snapshot, another pod
	seen      *hostnet.Sight    // newest look at the host
	reread    bool              // read all systems again
	claims    []wire.Claim      // of this node's egress addresses
	verdicts  []view.Verdict    // on them
}

func newInbox() *inbox { return &inbox{wake: signal.New()} }

// enqueue changes the content and wakes the agent.
func (b *inbox) enqueue(change func(*events)) {
	b.mu.Lock()
	change(&b.events)
	b.mu.Unlock()
	b.wake.Notify()
}

// notify wakes the agent without a reason that could be named: time has passed, a goroutine has
// found something out.
func (b *inbox) notify() { b.enqueue(func(*events) {}) }

// nudge wakes the agent, and gives the number of the round that takes all that came before.
func (b *inbox) nudge() (round uint64) {
	b.enqueue(func(*events) { round = b.taken + 1 })
	return round
}

// follow puts a reason whenever c has a value, until ctx ends.
func follow[T any](ctx context.Context, b *inbox, c <-chan T, change func(*events, T)) {
	for {
		select {
		case <-ctx.Done():
			return
		case v, ok := <-c:
			if !ok {
				return
			}
			b.enqueue(func(m *events) { change(m, v) })
		}
	}
}

// take empties the inbox; what is known of the cluster stays for the next time.
func (b *inbox) take() events {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.events
	b.taken++
	m.number = b.taken
	b.events = events{snapshot: m.snapshot, sourceErr: m.sourceErr}
	return m
}

// found takes a look at the host.
func (b *inbox) found(s *hostnet.Sight) {
	b.enqueue(func(m *events) {
		s.Moved = s.Moved || m.seen != nil && m.seen.Moved
		m.seen = s
	})
}
