package run

import (
	"context"
	"sync"

	"hairpin/cluster"
)

// inbox gathers the reasons for another round of the agent. Writers never wait; the agent takes everything at once.
type inbox struct {
	wake chan struct{} // has a value when there is something

	mu   sync.Mutex
	mail mail
}

// mail is what an inbox holds.
type mail struct {
	snapshot  *cluster.Snapshot // newest; nil until the first
	sourceErr error             // why there is none
	news      bool              // there is something new to plan: another Snapshot, another pod
	seen      *sight            // newest look at the host
	reread    bool              // read all systems again
	asks      []ask
	claims    []claim   // of this node's egress addresses
	verdicts  []verdict // on them
}

// ask is a question that only the agent's own goroutine can answer.
type ask struct {
	do   func(context.Context, *agent)
	done chan struct{}
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

// put changes the content and wakes the agent.
func (b *inbox) put(change func(*mail)) {
	b.mu.Lock()
	change(&b.mail)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// poke wakes the agent without a reason that could be named: time has passed, a goroutine has found something out.
func (b *inbox) poke() { b.put(func(*mail) {}) }

// follow puts a reason whenever c has a value, until ctx ends.
func follow[T any](ctx context.Context, b *inbox, c <-chan T, change func(*mail, T)) {
	for {
		select {
		case <-ctx.Done():
			return
		case v, ok := <-c:
			if !ok {
				return
			}
			b.put(func(m *mail) { change(m, v) })
		}
	}
}

// take empties the inbox; what is known of the cluster stays for the next time.
func (b *inbox) take() mail {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.mail
	b.mail = mail{snapshot: m.snapshot, sourceErr: m.sourceErr}
	return m
}

// ask runs do on the agent's goroutine and waits for it.
func (b *inbox) ask(ctx context.Context, do func(context.Context, *agent)) error {
	q := ask{do, make(chan struct{})}
	b.put(func(m *mail) { m.asks = append(m.asks, q) })
	select {
	case <-q.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
