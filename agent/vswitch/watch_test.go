package vswitch

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"hairpin/signal"
)

// TestWatchSwitch: a folder that is made later, or that is replaced, is watched.
func TestWatchSwitch(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "openvswitch")
	changed := signal.New()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		WatchStarts(ctx, changed.Notify, dir, slog.New(slog.DiscardHandler))
	}()
	defer func() { cancel(); <-ended }()
	// noticed makes files until one wakes the agent at once; a folder is checked once a second.
	noticed := func(what string) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
			name := filepath.Join(dir, "ovs-vswitchd.pid")
			if err := os.WriteFile(name, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			for quiet := false; !quiet; { // earlier notifications
				select {
				case <-changed.C():
				case <-time.After(100 * time.Millisecond):
					quiet = true
				}
			}
			if err := os.Rename(name, name+".old"); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			select {
			case <-changed.C():
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
		t.Fatalf("%s: not noticed", what)
	}
	make := func() {
		t.Helper()
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	make()
	noticed("a folder that comes later")
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	make()
	noticed("another folder in its place")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	make()
	noticed("a folder that was deleted and made again")
}
