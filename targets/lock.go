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

// StandBy waits until no other agent works on this node, and keeps others waiting from then on.
// Until it returns, its caller must not touch the node. The lock is the process's: it is free the
// moment the process ends, however that happens, and a program that it starts does not inherit it.
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
	got := make(chan error, 1)
	go func() { got <- Flock(f, unix.LOCK_EX) }()
	select {
	case err := <-got:
		if err != nil {
			release()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		log.Info("the other agent has ended: taking over")
		return release, nil
	case <-ctx.Done():
		go func() { // nothing ends a flock but the lock; the process is about to end anyway
			<-got
			release()
		}()
		return nil, ctx.Err()
	}
}

func Flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); err != unix.EINTR {
			return err
		}
	}
}
