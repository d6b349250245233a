package vswitch

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"hairpin/retry"
)

// WatchStarts calls wake when a daemon of Open vSwitch creates a file: its pid file, or the socket
// of a bridge. It waits for a missing folder, and continues with a folder that replaces it.
func WatchStarts(ctx context.Context, wake func(), dir string, log *slog.Logger) {
	var lastErr retry.LastError
	for p := (retry.Backoff{}); ctx.Err() == nil; {
		err := watchFolder(ctx, wake, dir, p.Done)
		if ctx.Err() == nil {
			lastErr.Warn(log, "restarts of Open vSwitch may be noticed late", err)
		}
		wake()
		p.Sleep(ctx)
	}
}

// watchFolder watches a folder until the folder is removed or replaced, or ctx ends. It calls begun
// when the watch begins.
func watchFolder(ctx context.Context, wake func(), dir string, begun func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	defer func() { _ = w.Close() }()
	watched, err := os.Stat(dir)
	if err == nil {
		err = w.Add(dir)
	}
	if err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	begun()
	wake() // for files made before the watch
	// A mount over the folder causes no event.
	check := time.NewTicker(retry.Last)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-w.Events:
			if ext := filepath.Ext(e.Name); e.Has(fsnotify.Create) && (ext == ".pid" || ext == ".mgmt") {
				wake()
			}
			if e.Name == dir && e.Has(fsnotify.Remove|fsnotify.Rename) {
				// A folder made in its place may have the same inode number.
				return fmt.Errorf("watch %s: it was removed or renamed", dir)
			}
			continue
		case <-w.Errors: // events were lost
			wake()
			continue
		case <-check.C:
		}
		if now, err := os.Stat(dir); err != nil {
			return fmt.Errorf("watch %s: %w", dir, err)
		} else if !os.SameFile(watched, now) {
			return fmt.Errorf("watch %s: it is another folder by now", dir)
		}
	}
}
