package kernel

import (
	"os/exec"
	"strings"
	"testing"

	"hairpin/apply/inside"
	"hairpin/apply/inside/insidetest"
)

// TestOpenSysctls checks that an open descriptor returns the newest value, also for a new link.
func TestOpenSysctls(t *testing.T) {
	ns := insidetest.NetNS(t)
	files := openSysctls{}
	defer files.closeOthers(nil)
	const path = "net/ipv4/conf/again/arp_ignore"
	for _, step := range []struct{ script, want string }{
		{"true", ""},
		{"ip link add again type veth peer name other", "0"},
		{"sysctl -qw net.ipv4.conf.again.arp_ignore=1", "1"},
		{"ip link del again && ip link add again type veth peer name other", "0"},
		{"sysctl -qw net.ipv4.conf.again.arp_ignore=2", "2"},
		{"ip link del again", ""},
	} {
		err := inside.Do(ns, func() error {
			if out, err := exec.Command("sh", "-c", step.script).CombinedOutput(); err != nil {
				t.Errorf("%s: %v %s", step.script, err, out)
			}
			if got, _ := files.read(path); strings.TrimSpace(got) != step.want {
				t.Errorf("after %s: %q, want %q", step.script, got, step.want)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
