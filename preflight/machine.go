package preflight

import (
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"hairpin/config"
)

// machine is the machine to check: its intended configuration, and the root of its files.
type machine struct {
	config.Config
	root string
}

// at returns the path by which this process reaches a file of the machine. It resolves symbolic
// links within the machine's root.
func (m *machine) at(path string) (string, error) {
	if m.root == "/" {
		_, err := os.Stat(path)
		return path, err
	}
	root, err := unix.Open(m.root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: m.root, Err: err}
	}
	defer func() { _ = unix.Close(root) }()
	file, err := unix.Openat2(root, path,
		&unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(file) }()
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", file))
}

func (m *machine) read(path string) ([]byte, error) {
	path, err := m.at(path)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

func (m *machine) list(path string) ([]fs.DirEntry, error) {
	path, err := m.at(path)
	if err != nil {
		return nil, err
	}
	return os.ReadDir(path)
}
