package lab

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// rootConfig describes a node's file system: an overlay of the image whose changes live in memory.
type rootConfig struct {
	Image string            // read-only lower layer
	Stage string            // an empty directory to build on; outside, it stays empty
	Log   string            // directory of the machine that becomes /var/log
	Binds map[string]string // target in the node → source on the machine, read-only
	Files map[string]string // path in the node → content
}

// enterRoot builds the file system and makes it the root of this process. The process must be the first of its
// process namespace and in a mount namespace of its own. Nothing of it is seen outside, and it goes with the process.
func enterRoot(cfg rootConfig) error {
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := mount("tmpfs", cfg.Stage, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	root := filepath.Join(cfg.Stage, "root")
	upper, work := filepath.Join(cfg.Stage, "upper"), filepath.Join(cfg.Stage, "work")
	for _, d := range []string{root, upper, work} {
		if err := os.Mkdir(d, 0o755); err != nil {
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
	if err := os.Chdir(root); err != nil {
		return err
	}
	// The old root is put over the new one and taken off again: no directory for it is needed (pivot_root(2)).
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave old root: %w", err)
	}
	return os.Chdir("/")
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
	for _, d := range []string{
		"run/openvswitch", "run/ovn", "run/netns", "run/lock", "run/lab", "etc/openvswitch", "etc/hairpin",
		"var/lib/ovn", "var/lib/openvswitch", "var/log/openvswitch", "var/log/ovn", "opt/cni/bin", "etc/cni/net.d",
	} {
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

// bind shows a file or directory of the machine in the node, read-only.
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
