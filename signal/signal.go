// Package signal wakes goroutines: a Signal wakes one, a Broadcast all that wait. Neither carries a
// value; the receiver looks up the change.
package signal

import (
	"context"
	"sync"
)

// Signal wakes one receiver. Notifications that the receiver has not taken yet count as one, and
// Notify never blocks. New makes a Signal; copies of it are the same Signal.
type Signal struct{ c chan struct{} }

// New makes a Signal without a notification.
func New() Signal { return Signal{make(chan struct{}, 1)} }

// Notify wakes the receiver, now or when it next waits.
func (s Signal) Notify() {
	select {
	case s.c <- struct{}{}:
	default:
	}
}

// C returns the channel that has a value after Notify. It is always the same and never closed.
func (s Signal) C() <-chan struct{} { return s.c }

// Wait waits for a notification. It returns false if ctx ends first.
func (s Signal) Wait(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-s.c:
		return true
	}
}

// Broadcast wakes all receivers that wait. The zero value is ready to use.
type Broadcast struct {
	mu sync.Mutex
	c  chan struct{} // nil: no receiver waits
}

// Next returns a channel that the next Notify closes. A receiver calls it before it checks whether
// it must wait, so that it misses no change after the check.
func (b *Broadcast) Next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c == nil {
		b.c = make(chan struct{})
	}
	return b.c
}

// Notify wakes all receivers.
func (b *Broadcast) Notify() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c != nil {
		close(b.c)
		b.c = nil
	}
}
