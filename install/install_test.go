package install_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"hairpin/install"
)

// TestInstall checks that runtimes of old and new versions of the specification find the plugins in
// the configuration. A second installation changes nothing, and uninstalling keeps what existed
// before.
func TestInstall(t *testing.T) {
	host := t.TempDir()
	to := install.Installation{
		BinDir: filepath.Join(host, "opt/cni/bin"), ConfDir: filepath.Join(host, "etc/cni/net.d"),
		ConfFile: "05-hairpin.conflist",
		Portmap:  "/bin/sh", // the test needs only a file
	}
	var log bytes.Buffer
	put := func() {
		t.Helper()
		if err := install.Install(to, slog.New(slog.NewTextHandler(&log, nil))); err != nil {
			t.Fatal(err)
		}
	}
	types := func() (out []string) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(to.ConfDir, to.ConfFile))
		if err != nil {
			t.Fatal(err)
		}
		var list struct {
			Name        string
			CNIVersions []string
			Plugins     []struct {
				Type         string
				Capabilities map[string]bool
			}
		}
		if err := json.Unmarshal(text, &list); err != nil {
			t.Fatal(err)
		}
		out = append([]string{list.Name}, list.CNIVersions...)
		for _, p := range list.Plugins {
			if p.Capabilities["portMappings"] != (to.Portmap != "") {
				t.Errorf("plugin %s has capabilities %v", p.Type, p.Capabilities)
			}
			info, err := os.Stat(filepath.Join(to.BinDir, p.Type))
			if err != nil || info.Mode().Perm() != 0o755 {
				t.Errorf("plugin %s: %v, %v", p.Type, info, err)
			}
			out = append(out, p.Type)
		}
		return out
	}
	put()
	put()
	if diff := cmp.Diff([]string{"hairpin", "1.0.0", "1.1.0", "hairpin", "hairpin-portmap"}, types()); diff != "" {
		t.Error(diff)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(to.BinDir, "hairpin")); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the plugin is not the program: %v", err)
	}
	if strings.Contains(log.String(), "WARN") {
		t.Errorf("it warns: %s", log.String())
	}

	// Another network plugin exists, which comes first.
	foreign := filepath.Join(to.ConfDir, "00-other.conf")
	if err := os.WriteFile(foreign, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	put()
	if !strings.Contains(log.String(), foreign) {
		t.Errorf("it does not warn: %s", log.String())
	}
	for range 2 {
		if err := install.Uninstall(to); err != nil {
			t.Error(err)
		}
	}
	for dir, want := range map[string]int{to.BinDir: 0, to.ConfDir: 1} {
		if left, err := os.ReadDir(dir); err != nil || len(left) != want {
			t.Errorf("%s has %v, %v", dir, left, err)
		}
	}
	to.Portmap = ""
	if err := os.Remove(foreign); err != nil {
		t.Fatal(err)
	}
	put()
	if diff := cmp.Diff([]string{"hairpin", "1.0.0", "1.1.0", "hairpin"}, types()); diff != "" {
		t.Error(diff)
	}
}
