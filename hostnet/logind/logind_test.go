package logind_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"hairpin/hostnet/logind"
	"hairpin/lab"
)

// TestWatch: a reboot waits while the function runs; without logind, the function is called once.
func TestWatch(t *testing.T) {
	dir, err := os.MkdirTemp("", "bus") // the path of a socket is limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	m := lab.StartLogind(t, socket)
	ctx, cancel := context.WithCancel(t.Context())
	calls, done := make(chan bool), make(chan struct{})
	go func() {
		defer close(done)
		logind.Watch(ctx, "unix:path="+socket, slog.New(slog.DiscardHandler), func(ctx context.Context, down bool) {
			select {
			case calls <- down: // the reader decides when the function returns
			case <-ctx.Done():
			}
		})
	}()
	defer func() { cancel(); <-done }()
	if <-calls {
		t.Fatal("the machine shuts down at the beginning")
	}
	m.AwaitLock()
	m.Reboot()
	if !m.Locked() {
		t.Error("the shutdown does not wait")
	}
	select {
	case u := <-m.Units:
		t.Errorf("%s was started before the function returned", u)
	default:
	}
	if !<-calls {
		t.Error("the function was not called for the shutdown")
	}
	if u := <-m.Units; u != "reboot.target" {
		t.Errorf("%s was started", u)
	}
}

// TestWithoutLogind: the function is called, so that an old announcement is removed.
func TestWithoutLogind(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	logind.Watch(ctx, "unix:path=/nonexistent", slog.New(slog.DiscardHandler), func(_ context.Context, down bool) {
		if n++; down {
			t.Error("it shuts down")
		}
		cancel()
	})
	if n != 1 {
		t.Errorf("called %d times", n)
	}
}
