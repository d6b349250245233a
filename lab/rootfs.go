package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// rootConfig describes a node's file system: an overlay of the image, with changes in memory.
type rootConfig struct {
	Image string            // read-only lower layer
	Stage string            // an empty directory to mount on; outside the node, it stays empty
	Log   string            // directory of the machine that becomes /var/log
	Binds map[string]string // target in the node → source on the machine, read-only
	Files map[string]string // path in the node → content
	// Disk is a directory of the machine that keeps the changes; empty: memory keeps them. With a
	// disk, the node is a machine that runs containers (see machine.go), in the control group
	// Group.
	Disk  string `json:",omitempty"`
	Group string `json:",omitempty"`
}

// diskDirs returns a node's directories on its disk, not in the overlay: a container runtime makes
// overlays of its own in them, and an overlay cannot be the upper layer of another.
func diskDirs() []string { return []string{"var/lib/containerd", "var/lib/kubelet"} }

// enterRoot builds the file system and makes it the root of this process. The process must be the
// first of its process namespace and in a mount namespace of its own. The file system is not
// visible outside, and disappears with the process.
func enterRoot(cfg rootConfig) error {
	var groups []hierarchy
	if cfg.Disk != "" {
		var err error
		if groups, err = joinCgroups(cfg.Group); err != nil {
			return err
		}
	}
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := mount("tmpfs", cfg.Stage, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	changes := cfg.Stage
	if cfg.Disk != "" {
		changes = cfg.Disk
	}
	root := filepath.Join(cfg.Stage, "root")
	upper, work := filepath.Join(changes, "upper"), filepath.Join(changes, "work")
	for _, d := range []string{root, upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	layers := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", cfg.Image, upper, work)
	if err := mount("overlay", root, "overlay", 0, layers); err != nil {
		return err
	}
	if err := fillRoot(root, cfg); err != nil {
		return err
	}
	if cfg.Disk != "" {
		if err := fillMachine(root, cfg.Disk, groups); err != nil {
			return err
		}
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	// The old root is mounted over the new one and unmounted again, so it needs no directory
	// (pivot_root(2)).
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave old root: %w", err)
	}
	if cfg.Disk != "" { // as with systemd: mounts that a pod makes in a volume propagate to others
		if err := mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
			return err
		}
	}
	return os.Chdir("/")
}

// fillMachine adds what only a node with a disk has: directories, sysctl files, control groups.
func fillMachine(root, disk string, groups []hierarchy) error {
	for _, d := range diskDirs() {
		source, target := filepath.Join(disk, filepath.Base(d)), filepath.Join(root, d)
		if err := errors.Join(os.MkdirAll(source, 0o711), os.MkdirAll(target, 0o711)); err != nil {
			return err
		}
		if err := mount(source, target, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "usr/lib/modules"), 0o755); err != nil {
		return err
	}
	if err := guardSysctls(root); err != nil {
		return err
	}
	return mountCgroups(root, groups)
}

func fillRoot(root string, cfg rootConfig) error {
	at := func(p string) string { return filepath.Join(root, p) }
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
		data                 string
	}{
		{"proc", "proc", "proc", 0, ""},
		{"sysfs", "sys", "sysfs", 0, ""},
		{"/dev", "dev", "", unix.MS_BIND | unix.MS_REC, ""},
		{"tmpfs", "dev/shm", "tmpfs", 0, ""},
		{"tmpfs", "run", "tmpfs", 0, "mode=755"},
		{cfg.Log, "var/log", "", unix.MS_BIND, ""},
	} {
		if err := mount(m.source, at(m.target), m.kind, m.flags, m.data); err != nil {
			return err
		}
	}
	dirs := []string{"run/netns", "run/lock", "run/lab", "opt/cni/bin", "etc/cni/net.d"}
	if cfg.Disk == "" {
		dirs = append(dirs, "run/openvswitch", "run/ovn", "etc/openvswitch", "etc/hairpin", "var/lib/ovn",
			"var/lib/openvswitch",
			"var/log/openvswitch", "var/log/ovn")
	}
	for _, d := range dirs {
		if err := os.MkdirAll(at(d), 0o755); err != nil {
			return err
		}
	}
	for path, content := range cfg.Files {
		if err := os.MkdirAll(filepath.Dir(at(path)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(at(path), []byte(content), 0o644); err != nil {
			return err
		}
	}
	for target, source := range cfg.Binds {
		if err := bind(source, at(target)); err != nil {
			return err
		}
	}
	return nil
}

// bind mounts a file or directory of the machine in the node, read-only.
func bind(source, target string) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(target, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(target), 0o755); err == nil {
		err = os.WriteFile(target, nil, 0o755)
	}
	if err != nil {
		return err
	}
	if err := mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

func mount(source, target, kind string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mount %s %s on %s: %w", kind, source, target, err)
	}
	return nil
}
