package targets

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"hairpin/config"
)

// agentLock is the file, in the run directory, that the agent of the node has locked (flock(2)).
const agentLock = "agent.lock"

// StandBy waits until no other agent works on this node, and makes later agents wait. The caller
// must not touch the node until StandBy returns. The process holds the lock: the kernel releases it
// whenever the process ends, and child processes do not inherit it.
func StandBy(ctx context.Context, c config.Config, log *slog.Logger) (release func(), err error) {
	if err := os.MkdirAll(c.Process.RunDir, 0o755); err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	path := filepath.Join(c.Process.RunDir, agentLock)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	release = func() { _ = f.Close() }
	if Flock(f, unix.LOCK_EX|unix.LOCK_NB) == nil {
		return release, nil
	}
	log.Info("another agent works on this node: standing by", "lock", path)
	locked := make(chan error, 1)
	go func() { locked <- Flock(f, unix.LOCK_EX) }()
	select {
	case err := <-locked:
		if err != nil {
			release()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		log.Info("the other agent has ended: taking over")
		return release, nil
	case <-ctx.Done():
		go func() { // flock(2) cannot be cancelled; the process is about to end anyway
			<-locked
			release()
		}()
		return nil, ctx.Err()
	}
}

// Flock locks or unlocks a file by flock(2).
func Flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); err != unix.EINTR {
			return err
		}
	}
}
