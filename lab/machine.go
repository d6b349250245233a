package lab

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A node with a disk (NodeConfig.Disk) is a machine on which a kubelet and a container runtime can
// run: it has control groups of its own, and mounts that pods may share.

const (
	cgroupMount  = "/sys/fs/cgroup"
	cgroupParent = "hairpin-lab" // of all labs, in every hierarchy
	// group of the node's own processes; v2: a group with children has no processes; v1 CPU: each
	// process would have the weight of a group
	cgroupInit = "init"
)

// cgroupShares is the CPU weight of all nodes together. One other process of the machine, such as a
// client of a test or an API server, has 1024.
const cgroupShares = 8 * 1024

// hierarchy is a mounted tree of control groups.
type hierarchy struct {
	path string // where it is mounted
	v2   bool
	data string // v1: the controllers, or "none,name=…", as mount(2) wants them
}

// controls reports whether a hierarchy of v1 has a controller.
func (h *hierarchy) controls(name string) bool {
	return slices.Contains(strings.Split(h.data, ","), name)
}

// share sets the CPU weight of a group.
func (h *hierarchy) share(dir string) error {
	file, value := "cpu.shares", cgroupShares
	if h.v2 {
		file, value = "cpu.weight", cgroupShares*100/1024 // 100 is the default there
		if _, err := os.Stat(filepath.Join(dir, file)); errors.Is(err, fs.ErrNotExist) {
			return nil // its controller is in a hierarchy of v1
		}
	} else if !h.controls("cpu") {
		return nil
	}
	return os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(value)), 0)
}

// cgroupOf returns the control group of a node.
func cgroupOf(lab, node string) string { return filepath.Join(cgroupParent, lab, node) }

// hierarchies returns those at /sys/fs/cgroup or below, from /proc/self/mountinfo (proc(5)).
func hierarchies() ([]hierarchy, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var list []hierarchy
	for lines := bufio.NewScanner(f); lines.Scan(); {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if len(left) < 5 || len(right) < 3 || !strings.HasPrefix(left[4], cgroupMount) {
			continue
		}
		h := hierarchy{path: left[4], v2: right[0] == "cgroup2"}
		if right[0] == "cgroup" {
			h.data = controllers(right[2])
		} else if !h.v2 {
			continue
		}
		if !slices.ContainsFunc(list, func(o hierarchy) bool { return o.path == h.path }) {
			list = append(list, h)
		}
	}
	if len(list) == 0 {
		return nil, errors.New("no control groups are mounted at " + cgroupMount)
	}
	return list, nil
}

// controllers extracts the controllers from the options of a mounted v1 hierarchy.
func controllers(options string) string {
	var words []string
	for _, o := range strings.Split(options, ",") {
		switch {
		case strings.HasPrefix(o, "name="):
			words = append(words, "none", o)
		case o == "rw" || o == "ro" || o == "xattr" || o == "clone_children" || strings.HasPrefix(o, "release_agent"):
		default:
			words = append(words, o)
		}
	}
	return strings.Join(words, ",")
}

// joinCgroups moves this process into new control groups, and the calling thread into a namespace
// of which they are the root. The thread must be the process's first, because others enter the
// namespace of that thread.
func joinCgroups(group string) ([]hierarchy, error) {
	list, err := hierarchies()
	if err != nil {
		return nil, err
	}
	for _, h := range list {
		dir := filepath.Join(h.path, group)
		if err := makeGroup(h, group); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return nil, fmt.Errorf("join control group: %w", err)
		}
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return nil, fmt.Errorf("make namespace of control groups: %w", err)
	}
	return list, nil
}

// makeGroup creates a group and its parents, which can hold processes and groups.
func makeGroup(h hierarchy, group string) error {
	dir := h.path
	for part := range strings.SplitSeq(group, "/") {
		parent := dir
		dir = filepath.Join(dir, part)
		if h.v2 {
			if err := delegate(parent); err != nil {
				return err
			}
		}
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if part == cgroupParent {
			if err := h.share(dir); err != nil {
				return err
			}
		}
		if h.controls("cpuset") { // a new group has no CPU, and can hold no process
			for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
				value, err := os.ReadFile(filepath.Join(parent, name))
				if err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(dir, name), value, 0); err != nil {
					return fmt.Errorf("set up control group: %w", err)
				}
			}
		}
	}
	return nil
}

// delegate gives the children of a v2 group all its controllers.
func delegate(dir string) error {
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, c := range strings.Fields(string(have)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0); err != nil {
			return fmt.Errorf("delegate controller %s: %w", c, err)
		}
	}
	return nil
}

// mountCgroups mounts only the node's own control groups.
func mountCgroups(root string, list []hierarchy) error {
	at := func(path string) string { return filepath.Join(root, path) }
	if list[0].path != cgroupMount {
		if err := mount("tmpfs", at(cgroupMount), "tmpfs", 0, "mode=755"); err != nil {
			return err
		}
	}
	for _, h := range list {
		if err := os.MkdirAll(at(h.path), 0o755); err != nil {
			return err
		}
		kind := "cgroup"
		if h.v2 {
			kind = "cgroup2"
		}
		if err := mount(kind, at(h.path), kind, 0, h.data); err != nil {
			return err
		}
		if h.path != cgroupMount && !h.controls("cpu") {
			continue
		}
		own := filepath.Join(at(h.path), cgroupInit)
		if err := os.Mkdir(own, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
		if h.v2 {
			if err := delegate(at(h.path)); err != nil {
				return err
			}
		}
	}
	return nil
}

// joinScript moves a shell in a node with a disk into the node's control groups: a process that
// enters a node from outside keeps its control groups.
const joinScript = `if [ -e /sys/fs/cgroup/cgroup.procs ]; then echo $$ >/sys/fs/cgroup/init/cgroup.procs; else ` +
	`for g in /sys/fs/cgroup/*; do [ ! -d $g/init ] || g=$g/init; echo $$ >$g/cgroup.procs; done; fi; `

// removeCgroups removes a group with all groups in it, in every hierarchy, and its parents that are
// then empty.
func removeCgroups(group string) error {
	list, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range list {
		if err := removeTree(filepath.Join(h.path, group)); err != nil {
			return fmt.Errorf("remove control groups: %w", err)
		}
		for up := filepath.Dir(group); up != "."; up = filepath.Dir(up) {
			if os.Remove(filepath.Join(h.path, up)) != nil {
				break // used by another node, or gone
			}
		}
	}
	return nil
}

// removeTree removes groups from the leaves up. A group is busy until its last process has been
// reaped.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
}

// guardSysctls mounts files over sysctls of the whole machine. They have the values that a kubelet
// requires, so that it does not change the machine's.
func guardSysctls(root string) error {
	dir := filepath.Join(root, "run", "lab", "sysctl")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for key, value := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		file := filepath.Join(dir, strings.ReplaceAll(key, "/", "."))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := mount(file, filepath.Join(root, "proc/sys", key), "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return nil
}
