package install

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hairpin/targets"
)

// Patterns of the names of files of Open vSwitch, OVN and the containers' scripts. A folder that a
// flag names may also have files of other programs.
var (
	switchFiles = []string{"db.sock", "ovsdb-server.*", "ovs-vswitchd.*", "hairpin.*"}
	bridgeFiles = []string{"*.mgmt", "*.snoop"} // sockets, by the names of bridges
	ovnFiles    = []string{"ovnnb_db.*", "ovnsb_db.*", "ovn-northd.*", "ovn-controller.*", "hairpin.*"}
	databases   = map[string][]string{ // by the subfolder of --state-dir
		"openvswitch": {"conf.db*", ".conf.db*", "system-id.conf"},
		"ovn":         {"ovnnb_db.db*", ".ovnnb_db.db*", "ovnsb_db.db*", ".ovnsb_db.db*"},
	}
)

// files removes databases and sockets, except those of running daemons.
func (k *cleanup) files(o CleanupOptions) {
	if o.StateDir != "" {
		for name, patterns := range databases {
			k.removeFiles(filepath.Join(o.StateDir, name), patterns, nil)
		}
		_ = os.Remove(o.StateDir) // it stays if it has other files
	}
	for dir, patterns := range map[string][]string{k.config.Process.OVSRunDir: switchFiles,
		k.config.Process.OVNRunDir: ovnFiles} {
		if !locked(filepath.Join(dir, "hairpin.lock")) && !serves(dir) {
			k.removeFiles(dir, patterns, bridgeFiles)
		}
	}
}

// removeFiles removes the files of a folder that match patterns, sockets that match sockets, and
// then the folder. A folder with other files stays.
func (k *cleanup) removeFiles(dir string, patterns, sockets []string) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	var left []string
	for _, e := range entries {
		switch name := e.Name(); {
		case !e.IsDir() && matches(name, patterns), e.Type()&fs.ModeSocket != 0 && matches(name, sockets):
			err = errors.Join(err, os.Remove(filepath.Join(dir, name)))
		default:
			left = append(left, name)
		}
	}
	if len(left) > 0 {
		k.print("left in %s, as not made by Hairpin: %s", dir, strings.Join(left, ", "))
	} else if err == nil {
		_ = os.Remove(dir) // it may be a mount
	}
	k.report("files in "+dir, err)
}

func matches(name string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, _ := filepath.Match(p, name) // the patterns are valid
		return ok
	})
}

// serves reports whether a daemon listens on a socket in a folder.
func serves(dir string) bool {
	sockets, _ := filepath.Glob(filepath.Join(dir, "*.sock")) // the pattern is valid
	for _, s := range sockets {
		if c, err := net.Dial("unix", s); err == nil {
			_ = c.Close()
			return true
		}
	}
	return false
}

// locked reports whether a process holds a lock.
func locked(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return targets.Flock(f, unix.LOCK_EX|unix.LOCK_NB) != nil
}
