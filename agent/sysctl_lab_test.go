package agent_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestSysctls: route_localnet is on only with the rules that block other machines from 127.0.0.1. A
// node with a bridge of the administrator has its own sysctls after cleanup.
func TestSysctls(t *testing.T) {
	t.Parallel()
	_, n := alone(t)
	sysctls := func() []string {
		return lines(sh(t, n,
			"sysctl net.ipv4.ip_forward net.ipv4.conf net.ipv6.conf net.netfilter.nf_conntrack_tcp_be_liberal "+
				"2>/dev/null | grep -v 'stable_secret\\|ovs-\\|ovn-\\|mtu =\\|br-int'"))
	}
	kernelAtRest(t, n)
	before := sysctls()
	localnet := func(what, want string) {
		t.Helper()
		eventually(t, 20*time.Second, what, func() (bool, string) {
			got := strings.TrimSpace(sh(t, n, "sysctl -n net.ipv4.conf.svc-host.route_localnet"))
			return got == want, got
		})
	}
	configure := func(gateway string) {
		t.Helper()
		noError(t, n.WriteFile(settings, fmt.Sprintf("[kubernetes]\nmanifests = %s\n[gateway]\n%s\n", folder, gateway)))
	}
	giveManifests(t, n)
	start(t, n)
	waitWell(t, n)
	localnet("NodePorts on loopback addresses", "1")
	configure("nodeport-addresses = primary")
	restartAgent(t, n)
	localnet("NodePorts on the primary address only", "0")
	configure("")
	restartAgent(t, n)
	localnet("on loopback addresses again", "1")
	noError(t, n.Kill(t.Context(), agent, 15))
	out, err := n.Exec(t.Context(), "hairpin", "cleanup", "--config-file", settings, "--bin-dir", "/var/empty")
	t.Log(out)
	noError(t, err)
	if got := difference(before, sysctls()); len(got) > 0 {
		t.Errorf("sysctls that are not as they were:\n%s", strings.Join(got, "\n"))
	}
}
