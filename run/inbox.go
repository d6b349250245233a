package run

import (
	"context"
	"sync"

	"hairpin/cluster"
)

// inbox gathers the reasons for another round of the agent. Writers never wait; the agent takes everything at once.
type inbox struct {
	wake chan struct{} // has a value when there is something

	mu       sync.Mutex
	snapshot *cluster.Snapshot // newest; nil until the first
	host     bool              // something of the host may have changed: look again
	reread   bool              // read all systems again
	asks     []ask
}

// ask is a question that only the agent's own goroutine can answer.
type ask struct {
	do   func(context.Context, *agent)
	done chan struct{}
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1), host: true} }

// put changes the content and wakes the agent.
func (b *inbox) put(change func(*inbox)) {
	b.mu.Lock()
	change(b)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// follow puts a reason whenever c has a value, until ctx ends.
func follow[T any](ctx context.Context, b *inbox, c <-chan T, change func(*inbox, T)) {
	for {
		select {
		case <-ctx.Done():
			return
		case v, ok := <-c:
			if !ok {
				return
			}
			b.put(func(b *inbox) { change(b, v) })
		}
	}
}

// take empties the inbox; the snapshot stays for the next time.
func (b *inbox) take() (s *cluster.Snapshot, host, reread bool, asks []ask) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, host, reread, asks = b.snapshot, b.host, b.reread, b.asks
	b.host, b.reread, b.asks = false, false, nil
	return s, host, reread, asks
}

// ask runs do on the agent's goroutine and waits for it.
func (b *inbox) ask(ctx context.Context, do func(context.Context, *agent)) error {
	q := ask{do, make(chan struct{})}
	b.put(func(b *inbox) { b.asks = append(b.asks, q) })
	select {
	case <-q.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
