package install

import (
	"bytes"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hairpin/config"
)

// TestCleanupLeavesOthersFiles checks that a folder of a flag keeps every file that Hairpin did not
// make.
func TestCleanupLeavesOthersFiles(t *testing.T) {
	root := t.TempDir()
	dir := func(name string) string { return filepath.Join(root, name) }
	put := func(names ...string) {
		for _, name := range names {
			if err := os.MkdirAll(filepath.Dir(dir(name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(dir(name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	others := []string{
		"run/dbus/system.pid", "run/sshd.pid", "run/notes.mgmt", "run/docker.sock", "ovn/other.db",
		"lib/docker/data", "lib/openvswitch/keys/a", "lib/important",
	}
	put(others...)
	put("run/ovsdb-server.pid", "run/ovs-vswitchd.17.ctl", "run/hairpin.lock.next", "ovn/ovnnb_db.ctl",
		"ovn/ovn-controller.9.ctl",
		"lib/openvswitch/conf.db", "lib/openvswitch/.conf.db.~lock~", "lib/ovn/ovnsb_db.db")
	for _, name := range []string{"run/db.sock", "run/br-ex.mgmt"} { // as killed daemons leave them
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir(name)})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	c := config.DefaultConfig()
	c.Process.OVSRunDir, c.Process.OVNRunDir = dir("run"), dir("ovn")
	var out bytes.Buffer
	k := &cleanup{config: c, out: &out}
	k.files(CleanupOptions{StateDir: dir("lib")})
	if len(k.errs) > 0 {
		t.Error(k.errs)
	}
	var left []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			left = append(left, strings.TrimPrefix(path, root+"/"))
		}
		return err
	})
	slices.Sort(others)
	slices.Sort(left)
	if err != nil || !slices.Equal(left, others) {
		t.Errorf("left are %q, not %q: %v", left, others, err)
	}
	if _, err := os.Stat(dir("lib/ovn")); err == nil {
		t.Error("an empty folder of databases stays")
	}
	if want := "left in " + dir("ovn") + ", as not made by Hairpin: other.db"; !strings.Contains(out.String(), want) {
		t.Errorf("no %q in\n%s", want, out.String())
	}
}
