package agent_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/probe"
)

// network prints the complete network configuration of a machine, and Hairpin's files.
func (m *machine) network(t *testing.T) string {
	t.Helper()
	return sh(t, m.n,
		`ip -d link | grep -v '^ .*link/'; ip addr | grep -v valid_lft; ip rule; ip -6 rule; ip route show table all | sort; ip -6 route show table all | sort
		ip neigh show nud permanent; nft list ruleset; sysctl net.ipv4.ip_forward net.ipv4.conf net.ipv6.conf; ethtool -k eth0
		ls -d /etc/cni/net.d/* /opt/cni/bin/* /etc/openvswitch/* /var/lib/ovn/* /run/openvswitch /run/ovn 2>/dev/null || true`)
}

// TestCleanup: a former node with pods is the machine that it was before, and its connections
// continue.
func TestCleanup(t *testing.T) {
	m := newMachine(t)
	sh(t, m.n, "for i in $(seq 50); do ip addr | grep -q tentative || exit 0; sleep 0.1; done; exit 1")
	sh(t, m.n, "mv /etc/cni/net.d/10-hairpin.conflist /etc/cni/net.d/05-hairpin.conflist")
	before := m.network(t)
	m.known(t, true)
	m.pod(t, "one", "zone", "ovs", agent)
	waitWell(t, m.n)
	if _, err := m.n.AddPod(t.Context(), lab.PodConfig{Namespace: "default", Name: "web-1", UID: "u1"}); err != nil {
		t.Fatal(err)
	}
	waitWell(t, m.n)
	clean := []string{"hairpin", "cleanup", "--config-file", settings, "--state-dir", "/var/lib/hairpin", "--bin-dir",
		"/var/empty"}

	// It waits for the agent.
	soon, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	if _, err := m.n.Exec(soon, clean...); err == nil {
		t.Error("it cleaned a node that an agent works on")
	}
	m.end(t, "one", agent)
	m.end(t, "one", "zone")
	o := underAt(t, gentle, m.ways(t, false), func(f traffic) {
		out, err := m.n.Exec(t.Context(), clean...)
		t.Log(out)
		if err != nil {
			t.Error(err)
		}
		f.flows(more)
	})
	t.Logf("cleaned: %s", o)
	o.allWell(t)
	if out := sh(t, m.n,
		"ovs-vsctl list-br; ovs-vsctl get Open_vSwitch . external_ids; ovs-vsctl get Open_vSwitch . other_config"); strings.Contains(out, "br-") || strings.Contains(out, "ovn") || strings.Contains(out, "restore") {
		t.Errorf("Open vSwitch has\n%s", out)
	}
	out, err := m.n.Exec(t.Context(), clean...) // again
	if err != nil {
		t.Errorf("again: %v\n%s", err, out)
	}
	m.end(t, "one", "ovs")
	// in the container they are the folder of the databases
	sh(t, m.n, "rm -rf /etc/openvswitch/* /etc/openvswitch/.*~ /var/lib/ovn/*")
	out, err = m.n.Exec(t.Context(), clean...) // without daemons
	t.Log(out)
	if err != nil {
		t.Errorf("without daemons: %v", err)
	}
	sh(t, m.n,
		"ip netns del $(ip netns | cut -d' ' -f1); test ! -e /etc/cni/net.d/05-hairpin.conflist; touch "+
			"/etc/cni/net.d/05-hairpin.conflist")
	if after := m.network(t); after != before {
		t.Errorf("not as it was:\n%s", lab.Difference(before, after))
	}
}

// TestCleanupOthersBridge: a bridge of the administrator stays, and forwards as before. The bridge
// of pods' ports is removed.
func TestCleanupOthersBridge(t *testing.T) {
	t.Parallel()
	l := startDemoIn(t, cluster.ModeShared, "[default]", "service-engine = "+cluster.EngineOpenFlow)
	n := l.Node("node-a")
	waitWell(t, n)
	if err := n.Kill(t.Context(), agent, 15); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{lab.Controller, lab.Northd} {
		if err := n.Kill(t.Context(), d, 15); err != nil {
			t.Fatal(err)
		}
	}
	out, err := n.Exec(t.Context(), "hairpin", "cleanup", "--config-file", settings, "--bin-dir", "/var/empty")
	t.Log(out)
	if err != nil {
		t.Error(err)
	}
	if left := sh(t, n,
		"ovs-vsctl list-br; ovs-vsctl list-ports br-ex; ovs-ofctl dump-flows br-ex | grep -c 0xdeff105 || true; nft "+
			"list ruleset; ip route show proto 85; ip link | grep -o 'hairpin[0-9a-f]*' || true"); left != "br-ex\neth0\n0\n" {
		t.Errorf("left:\n%s", left)
	}
	for _, p := range n.Addresses() {
		if a := lab.Get(t.Context(), l.Host("client"),
			probe.Request{Protocol: "tcp", To: netip.AddrPortFrom(p.Addr(), 8081),
				Timeout: 5 * time.Second}); a.Error != "" {
			t.Errorf("the machine cannot be reached at %s: %s", p, a.Error)
		}
	}
}
