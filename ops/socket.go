package ops

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// ListenUnix makes a unix socket of the agent, or of a controller. It replaces what a former one
// left in one step: of several that start at once, as controllers on one host may, none fails, and
// the last one is asked.
func ListenUnix(dir, name string) (net.Listener, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	path := filepath.Join(dir, name)
	own := path + rand.Text()[:8]
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: own})
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	l.SetUnlinkOnClose(false) // what has its name by then may be another one's
	if err := errors.Join(os.Chmod(own, 0o600), os.Rename(own, path)); err != nil {
		return nil, errors.Join(fmt.Errorf("socket: %w", err), l.Close(), ignoreGone(os.Remove(own)))
	}
	return l, nil
}

// ignoreGone takes it that a file is gone already.
func ignoreGone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
