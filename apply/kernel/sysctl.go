package kernel

import (
	"context"
	"maps"
	"syscall"
	"time"

	"hairpin/apply/inside"
	"hairpin/datapath/host"
)

// sysctlInterval is the time between two reads of the wanted sysctls. The kernel announces changes
// of only a few of them; a read is one system call.
const sysctlInterval = time.Second

// watchSysctls signals when a wanted sysctl differs from the previous read, until ctx ends.
func (t *Target) watchSysctls(ctx context.Context) {
	tick := time.NewTicker(sysctlInterval)
	defer tick.Stop()
	var last map[string]string
	files := openSysctls{}
	defer files.closeOthers(nil)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		want := t.config.Wanted().Sysctls
		if len(want) == 0 {
			continue
		}
		now := make(map[string]string, len(want))
		files.closeOthers(want)
		err := inside.Do(t.config.NetNS, func() error {
			for path := range want {
				if value, ok := files.read(path); ok { // otherwise its link was removed, which a notification signals
					now[path] = value
				}
			}
			return nil
		})
		if err != nil {
			continue // the namespace is gone
		}
		if last != nil && !maps.Equal(now, last) {
			t.notice.Notify()
		}
		last = now
	}
}

// openSysctls holds file descriptors of sysctls by path. They stay open: to open a file costs more
// than to read it.
type openSysctls map[string]int

// read reads a sysctl. If its link was recreated, so was the file, and reading the old one fails.
func (s openSysctls) read(path string) (value string, ok bool) {
	var buf [256]byte
	for range 2 {
		fd, open := s[path]
		if !open {
			var err error
			if fd, err = syscall.Open(sysctlFile(path), syscall.O_RDONLY|syscall.O_CLOEXEC, 0); err != nil {
				return "", false
			}
			s[path] = fd
		}
		if n, err := syscall.Pread(fd, buf[:], 0); err == nil {
			return string(buf[:n]), true
		}
		_ = syscall.Close(fd)
		delete(s, path)
	}
	return "", false
}

// closeOthers closes the descriptors of sysctls that are not wanted.
func (s openSysctls) closeOthers(want map[string]host.Sysctl) {
	for path, fd := range s {
		if _, wanted := want[path]; !wanted {
			_ = syscall.Close(fd)
			delete(s, path)
		}
	}
}
