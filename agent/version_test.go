package agent_test

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"hairpin/lab"
	"hairpin/targets"
)

// ends waits until the agent of a node has ended, and returns the last line of its log.
func ends(t *testing.T, n *lab.Node) string {
	t.Helper()
	eventually(t, 20*time.Second, "the agent ends", func() (bool, string) { return n.Pid(agent) == 0, "it runs" })
	text, err := os.ReadFile(n.LogFile(agent))
	if err != nil {
		t.Fatal(err)
	}
	log := lines(string(text))
	return log[len(log)-1]
}

// An old ovn-northd writes its version into the Northbound database, as here. (Debian 12's own does
// the same, with TestOldPackages.)
func TestOldOVNIsRefused(t *testing.T) {
	t.Parallel()
	_, n := alone(t, lab.OVSDB, lab.VSwitchd, lab.NB, lab.SB)
	giveManifests(t, n)
	kernelAtRest(t, n)
	before := sh(t, n, "ovn-nbctl set NB_Global . options:northd_internal_version=23.03.1-20.27.0-70.6; "+everything)
	start(t, n)
	last := ends(t, n)
	t.Log(last)
	if want := "hairpin: OVN 23.03.1 is running; 25.03 or newer is needed"; last != want {
		t.Errorf("instead of %q", want)
	}
	for _, l := range difference(lines(before), lines(sh(t, n, everything))) {
		t.Errorf("changed nevertheless: %s", l)
	}
}

// TestOldPackages runs the agent on the Open vSwitch and OVN of another image: HAIRPIN_OLD_IMAGE is
// its root, made by `debootstrap --variant=minbase
// --include=openvswitch-switch,ovn-central,ovn-host,iproute2,nftables,procps,ethtool bookworm DIR`.
func TestOldPackages(t *testing.T) {
	old := os.Getenv("HAIRPIN_OLD_IMAGE")
	if old == "" {
		t.Skip("HAIRPIN_OLD_IMAGE is not set")
	}
	l := lab.Start(t, lab.Config{Image: old})
	n := l.Add(t, lab.NodeConfig{
		Binds: map[string]string{"/usr/local/bin/hairpin": build(t)},
		Files: map[string]string{settings: "[kubernetes]\nmanifests = " + folder + "\n"},
	})
	giveManifests(t, n)
	start(t, n)
	last := ends(t, n)
	t.Log(last)
	if !strings.Contains(last, " is running; ") || !strings.Contains(last, "or newer is needed") {
		t.Error("that is no refusal")
	}
}

// An agent that is started before ovs-vswitchd waits for it.
func TestSwitchComesLate(t *testing.T) {
	t.Parallel()
	_, n := alone(t, lab.OVSDB, lab.VSwitchd, lab.NB, lab.SB, lab.Northd, lab.Controller)
	giveManifests(t, n)
	if err := n.Kill(t.Context(), lab.VSwitchd, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	start(t, n)
	eventually(t, 20*time.Second, "the agent says what it waits for", func() (bool, string) {
		r, err := reportOf(t.Context(), n)
		return err == nil && !r.Ready && r.Reason != "", r.Reason
	})
	if n.Pid(agent) == 0 {
		t.Fatal("the agent has ended")
	}
	t.Log(mustReport(t, n).Reason)
	if err := n.Start(t.Context(), lab.VSwitchd); err != nil {
		t.Fatal(err)
	}
	waitWell(t, n)
	eventually(t, 20*time.Second, "the agent tells the version of Open vSwitch", func() (bool, string) {
		r, err := reportOf(t.Context(), n)
		if err != nil || r.Switch == nil {
			return false, "none"
		}
		faults := targets.Faults(r.Switch.Version, r.Switch.Userspace, r.Switch.TSO)
		return strings.Contains(sh(t, n, "ovs-vswitchd --version"), " "+r.Switch.Version) &&
			slices.Equal(faults, r.Switch.Faults), r.Switch.Version
	})
	t.Logf("%+v", mustReport(t, n).Switch)
}

// slowNFT is a script in place of nft: its output stays open for longer than the agent waits, as on
// a machine that stalls.
const slowNFT = `#!/bin/sh
if [ -e /run/nft-is-slow ]; then sleep 3 & fi
exec /usr/sbin/nft "$@"
`

// wrapNFT installs a script in place of nft, which the script itself runs.
func wrapNFT(t *testing.T, n *lab.Node, script string) {
	t.Helper()
	noError(t, n.WriteFile("/usr/local/bin/nft", script))
	sh(t, n, "chmod +x /usr/local/bin/nft")
}

// An agent whose nft does not reply at the start reports that and retries.
func TestSlowNFT(t *testing.T) {
	t.Parallel()
	_, n := alone(t)
	wrapNFT(t, n, slowNFT)
	sh(t, n, "touch /run/nft-is-slow")
	giveManifests(t, n)
	start(t, n)
	eventually(t, 20*time.Second, "the agent says what it waits for", func() (bool, string) {
		if n.Pid(agent) == 0 {
			t.Fatalf("the agent has ended: %s", logOf(t, n))
		}
		r, err := reportOf(t.Context(), n)
		return err == nil && !r.Ready && strings.Contains(r.Reason, "nft --version"), r.Reason
	})
	t.Log(mustReport(t, n).Reason)
	if !strings.Contains(logOf(t, n), "nft --version") {
		t.Errorf("the log says nothing of it: %s", logOf(t, n))
	}
	sh(t, n, "rm /run/nft-is-slow")
	waitWell(t, n)
}
