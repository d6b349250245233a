package signal_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"hairpin/signal"
)

// TestSignal: notifications before the receiver waits count as one, and Wait ends with its context.
func TestSignal(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := signal.New()
	s.Notify()
	s.Notify()
	if !s.Wait(ctx) {
		t.Error("the notification is lost")
	}
	select {
	case <-s.C():
		t.Error("two notifications count twice")
	default:
	}
	cancel()
	if s.Wait(ctx) {
		t.Error("Wait returns true without a notification")
	}
}

// TestBroadcast: Notify wakes all receivers that called Next before, and none that calls it later.
func TestBroadcast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b signal.Broadcast
		b.Notify() // without a receiver
		var woken atomic.Int64
		for range 3 {
			c := b.Next()
			go func() { <-c; woken.Add(1) }()
		}
		synctest.Wait()
		if woken.Load() != 0 {
			t.Fatalf("%d receivers are woken before Notify", woken.Load())
		}
		b.Notify()
		synctest.Wait()
		if woken.Load() != 3 {
			t.Errorf("%d of 3 receivers are woken", woken.Load())
		}
		select {
		case <-b.Next():
			t.Error("a receiver is woken by an earlier Notify")
		default:
		}
	})
}
