package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Usage is what a process has used.
type Usage struct {
	CPU time.Duration // of the process and of children that it has waited for
	RSS int           // kB, now
}

// Used returns the usage of a daemon.
func (n *Node) Used(name string) (Usage, error) {
	u, err := usageIn(n.procDir(n.Pid(name)))
	if err != nil {
		return u, fmt.Errorf("%s: usage of %s: %w", n.name, name, err)
	}
	return u, nil
}

// Used returns the usage of the control plane.
func (s *APIServer) Used() (Usage, error) {
	u, err := usageIn("/proc/" + strconv.Itoa(s.record.PID))
	if err != nil {
		return u, fmt.Errorf("usage of the API server: %w", err)
	}
	return u, nil
}

// usageIn reads the directory of a process in /proc.
func usageIn(dir string) (u Usage, err error) {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return u, err
	}
	// The second field, a name in brackets, may hold spaces and brackets.
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	for _, ticks := range f[13:15] {
		n, err := strconv.Atoi(ticks)
		if err != nil {
			return u, err
		}
		u.CPU += time.Duration(n) * 10 * time.Millisecond // USER_HZ is 100 (proc(5))
	}
	// Of its own threads the scheduler counts nanoseconds, of one that has ended nothing: these daemons keep theirs.
	threads, err := filepath.Glob(filepath.Join(dir, "task/*/schedstat"))
	if err != nil {
		return u, err
	}
	for _, t := range threads {
		text, err := os.ReadFile(t)
		if err != nil {
			continue // it has ended
		}
		word, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return u, err
		}
		u.CPU += time.Duration(n)
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			if u.RSS, err = strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB")); err != nil {
				return u, err
			}
		}
	}
	return u, nil
}
