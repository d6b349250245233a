package ops

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// ListenUnix listens on a unix socket of the agent, or of a controller. It replaces the socket of a
// former process atomically. If several processes start at once, such as controllers on one host,
// none fails and the last one receives the requests.
func ListenUnix(dir, name string) (net.Listener, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	path := filepath.Join(dir, name)
	temporary := path + rand.Text()[:8]
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: temporary})
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	l.SetUnlinkOnClose(false) // at that time it may be the socket of another process
	if err := errors.Join(os.Chmod(temporary, 0o600), os.Rename(temporary, path)); err != nil {
		return nil, errors.Join(fmt.Errorf("socket: %w", err), l.Close(), ignoreNotExist(os.Remove(temporary)))
	}
	return l, nil
}

// ignoreNotExist ignores the error of a file that does not exist.
func ignoreNotExist(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
