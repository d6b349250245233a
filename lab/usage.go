package lab

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Usage is the resource usage of a process.
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

// Spent returns the CPU time of all running processes of a node, including its pods and servers.
func (n *Node) Spent() (sum time.Duration, err error) {
	files, err := filepath.Glob(n.Path("/proc/[0-9]*/stat"))
	if err != nil {
		return 0, err
	}
	for _, name := range files {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		cpu, err := cpuOf(stat, 11, 13)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		sum += cpu
	}
	return sum, nil
}

// cpuOf reads user and system time of /proc/PID/stat, by the numbers of the fields after the name:
// 11 and 12 are the process's own, 13 and 14 those of children that it has waited for.
func cpuOf(stat []byte, from, to int) (cpu time.Duration, err error) {
	// The name, in brackets, may hold spaces and brackets.
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(f) < to {
		return 0, fmt.Errorf("%d fields", len(f))
	}
	for _, ticks := range f[from:to] {
		n, err := strconv.Atoi(ticks)
		if err != nil {
			return 0, err
		}
		cpu += time.Duration(n) * 10 * time.Millisecond // USER_HZ is 100 (proc(5))
	}
	return cpu, nil
}

// usageIn reads the directory of a process in /proc.
func usageIn(dir string) (u Usage, err error) {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return u, err
	}
	if u.CPU, err = cpuOf(stat, 13, 15); err != nil {
		return u, err
	}
	// schedstat has the nanoseconds of each running thread, but not of ended ones: these daemons
	// end no threads.
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
