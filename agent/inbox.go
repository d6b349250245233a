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

// inbox collects events for the next round of the loop. Writers never wait; the loop takes all
// events at once.
type inbox struct {
	wake signal.Signal // notified when there are events

	mu     sync.Mutex
	taken  uint64 // number of calls of take
	events events
}

// events is what an inbox holds.
type events struct {
	number    uint64            // of the round that takes them
	snapshot  *cluster.Snapshot // newest; nil until the first
	untaken   bool              // no round has taken snapshot
	sourceErr error             // why snapshot is nil
	changed   bool              // an input of the plan changed: another Snapshot, another pod
	scan      *hostnet.Scan     // newest scan of the host
	reread    bool              // read all systems again
	claims    []wire.Claim      // to this node's egress addresses
	verdicts  []view.Verdict    // on claims
}

func newInbox() *inbox { return &inbox{wake: signal.New()} }

// enqueue changes the events and wakes the loop.
func (b *inbox) enqueue(change func(*events)) {
	b.mu.Lock()
	change(&b.events)
	b.mu.Unlock()
	b.wake.Notify()
}

// notify wakes the loop without an event, for example when time has passed or a worker has a
// result.
func (b *inbox) notify() { b.enqueue(func(*events) {}) }

// wakeRound wakes the loop. It returns the number of the round that takes all earlier events.
func (b *inbox) wakeRound() (round uint64) {
	b.enqueue(func(*events) { round = b.taken + 1 })
	return round
}

// follow enqueues an event for each value of c, until ctx ends.
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

// take empties the inbox; snapshot and sourceErr stay for the next round.
func (b *inbox) take() events {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.events
	b.taken++
	m.number = b.taken
	b.events = events{snapshot: m.snapshot, sourceErr: m.sourceErr}
	return m
}

// addSnapshot records the newest Snapshot. Its Received is that of the oldest one that no round
// has taken.
func (m *events) addSnapshot(s *cluster.Snapshot) {
	if m.untaken {
		s.Received = m.snapshot.Received
	}
	m.snapshot, m.untaken, m.changed = s, true, true
}

// addScan enqueues a scan of the host.
func (b *inbox) addScan(s *hostnet.Scan) {
	b.enqueue(func(m *events) {
		s.Moved = s.Moved || m.scan != nil && m.scan.Moved
		m.scan = s
	})
}
