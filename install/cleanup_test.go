package install

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"hairpin/claims"
	"hairpin/config"
)

// TestCleanupWithoutOpenVSwitch: the bridges of the userspace datapath end with Open vSwitch. The
// cleanup of such a node removes what is left in the kernel, and does not claim to have done so
// without doing it. It runs in a process of its own, with a network namespace of its own.
func TestCleanupWithoutOpenVSwitch(t *testing.T) {
	const variable = "HAIRPIN_TEST_NETNS"
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a network namespace")
	}
	t.Parallel() // most of its time it waits for the database
	if os.Getenv(variable) == "" {
		c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		c.Env = append(os.Environ(), variable+"=1")
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	sh := func(script string) string {
		t.Helper()
		out, err := exec.Command("sh", "-ec", script).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	const state = "ip rule; ip route; ip -o link | cut -d: -f2; nft list ruleset"
	sh("ip link add eth0 type veth peer name far; ip link set eth0 up; ip address add 172.18.0.3/16 dev eth0")
	before := sh(state)
	sh(fmt.Sprintf("ip rule add pref %d lookup 100; ip route add 192.0.2.0/24 dev eth0 proto %d; nft add table inet %s",
		claims.RulePriorityFirst, claims.RouteProtocol, claims.NFTTable))
	root := t.TempDir()
	c := config.DefaultConfig()
	c.Process.RunDir, c.Process.OVSRunDir, c.Process.OVNRunDir = root+"/run", root+"/ovs", root+"/ovn"
	var out bytes.Buffer
	options := CleanupOptions{Installation: Installation{BinDir: root, ConfDir: root, ConfFile: "05-hairpin.conflist"}}
	if err := Cleanup(t.Context(), c, options, &out, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if after := sh(state); after != before {
		t.Errorf("left is\n%s\nnot\n%s\nit said\n%s", after, before, &out)
	}
	if strings.Count(out.String(), "removed: sysctls") != 1 {
		t.Errorf("it said\n%s", &out)
	}
}
