package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"hairpin/lab"
)

// usage is what a process has used.
type usage struct {
	cpu time.Duration // of the process and of children that it has waited for
	rss int           // kB, now
}

// used returns the usage of a daemon of a node.
func used(n *lab.Node, name string) (usage, error) {
	dir := n.Path(fmt.Sprintf("/proc/%d", n.Pid(name)))
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return usage{}, fmt.Errorf("usage of %s: %w", name, err)
	}
	var u usage
	// The second field, a name in brackets, may hold spaces and brackets.
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	for _, ticks := range f[11:15] {
		n, err := strconv.Atoi(ticks)
		if err != nil {
			return usage{}, fmt.Errorf("usage of %s: %w", name, err)
		}
		u.cpu += time.Duration(n) * 10 * time.Millisecond // USER_HZ is 100 (proc(5))
	}
	status, err := os.ReadFile(dir + "/status")
	if err != nil {
		return usage{}, fmt.Errorf("usage of %s: %w", name, err)
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			if u.rss, err = strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB")); err != nil {
				return usage{}, fmt.Errorf("usage of %s: %w", name, err)
			}
		}
	}
	return u, nil
}

// usedBy returns the usage of every daemon of a side.
func usedBy(s *side) (map[string]usage, error) {
	m := map[string]usage{}
	for _, name := range s.all {
		u, err := used(s.node, name)
		if err != nil {
			return nil, err
		}
		m[name] = u
	}
	return m, nil
}

func sum(m map[string]usage) (total usage) {
	for _, u := range m {
		total.cpu += u.cpu
		total.rss += u.rss
	}
	return total
}
