package agent_test

import (
	"strings"
	"testing"
	"time"
)

// TestMachinesNetwork: addresses and routes on the gateway bridge are the machine's. What is
// removed stays removed. What is lost with the bridge's device is restored as it was, but not
// without an uplink.
func TestMachinesNetwork(t *testing.T) {
	m := newMachine(t)
	m.known(t, true)
	m.pod(t, "one", "zone", "ovs", agent)
	m.onBridge(t)
	waitServes(t, m.n)
	is := func(what, script string, holds func(out string) bool) {
		t.Helper()
		eventually(t, 20*time.Second, what, func() (bool, string) {
			out, err := m.n.Exec(t.Context(), "sh", "-c", script)
			return err == nil && holds(out), out
		})
	}
	const show = "ip -o addr show dev br-ex scope global; ip route show dev br-ex; ip -6 route show dev br-ex"
	lacks := func(list ...string) func(string) bool {
		return func(out string) bool {
			for _, x := range list {
				if strings.Contains(out, x) {
					return false
				}
			}
			return true
		}
	}
	// follows waits until the agent has scanned the machine.
	follows := func(address string) {
		t.Helper()
		is("the agent sees "+address, "ovs-vsctl get Bridge br-ex external_ids:k8s.ovn.org/l3-gateway-config",
			func(out string) bool {
				return strings.Contains(out, address)
			})
	}
	t.Run("removed", func(t *testing.T) {
		sh(t, m.n, `ip addr add 172.18.0.50/32 dev br-ex; ip addr add fc00:f853:ccd::50/128 dev br-ex nodad
			ip addr add 172.18.0.51/16 dev br-ex valid_lft 2 preferred_lft 2; ip route add 203.0.113.0/24 via 172.18.0.1`)
		follows("172.18.0.50/32")
		sh(t, m.n,
			`ip addr del 172.18.0.50/32 dev br-ex; ip addr del fc00:f853:ccd::50/128 dev br-ex; ip route del default; ip route del 203.0.113.0/24
			ip addr add 172.18.0.52/32 dev br-ex`)
		follows("172.18.0.52/32")
		is("nothing comes back", show, lacks("172.18.0.50", "::50", "172.18.0.51", "default via 172.18.0.1",
			"203.0.113.0"))
		waitServes(t, m.n)
	})
	t.Run("another address", func(t *testing.T) {
		sh(t, m.n,
			"ip -4 addr flush dev br-ex; ip addr add 172.19.0.3/16 dev br-ex; ip route add default via 172.19.0.1 "+
				"proto dhcp metric 100")
		follows("172.19.0.3/16")
		is("the old address is away", show, lacks("172.18.0"))
		sh(t, m.n,
			"ip -4 addr flush dev br-ex; ip addr add 172.18.0.3/16 dev br-ex; ip route add default via 172.18.0.1 "+
				"proto dhcp metric 100")
		follows("172.18.0.3/16")
	})
	t.Run("routes of the management port", func(t *testing.T) {
		sh(t, m.n, "ip route flush dev ovn-k8s-mp0; ip -6 route flush dev ovn-k8s-mp0")
		is("the routes are back", "ip route get 10.244.3.3; ip -6 route get fd00:10:244:3::3", func(out string) bool {
			return strings.Count(out, "dev ovn-k8s-mp0") == 2
		})
		waitServes(t, m.n)
	})
	t.Run("device made anew", func(t *testing.T) {
		if m.n.Datapath() != "netdev" {
			t.Skip("the kernel's datapath keeps its devices")
		}
		sh(t, m.n,
			`ip addr add 172.18.0.60/16 dev br-ex valid_lft 600 preferred_lft 500; ip -6 route add default via fe80::9 dev br-ex proto ra metric 77 expires 900
			sysctl -qw net.ipv6.conf.br-ex.accept_ra=2`)
		follows("172.18.0.60/16")
		before := sh(t, m.n, "cat /sys/class/net/br-ex/ifindex")
		restarts := mustReport(t, m.n).Restarts
		m.end(t, "one", "ovs")
		sh(t, m.n, "ip link del br-ex 2>/dev/null || true")
		m.pod(t, "two", "ovs")
		waitRestarted(t, m.n, restarts)
		waitServes(t, m.n)
		if now := sh(t, m.n, "cat /sys/class/net/br-ex/ifindex"); now == before {
			t.Fatal("the device is the same")
		}
		out := sh(t, m.n, show+"; sysctl net.ipv6.conf.br-ex.accept_ra")
		for _, want := range []string{"172.18.0.3/16", "172.18.0.60/16", "default via 172.18.0.1 proto dhcp metric 100",
			"via fe80::9 proto ra metric 77 expires",
			"fc00:f853:ccd::3/64", "default via fc00:f853:ccd::1", "accept_ra = 2"} {
			if !strings.Contains(out, want) {
				t.Errorf("%q is not back:\n%s", want, out)
			}
		}
		if !lacks("172.18.0.60/16 brd 172.18.255.255 scope global secondary br-ex\\       valid_lft forever")(out) {
			t.Errorf("an address does not end any more:\n%s", out)
		}
	})
	problem := func(what string) {
		t.Helper()
		is("the status says: "+what, "hairpin status && exit 1; hairpin status | grep '^problem'",
			func(out string) bool { return strings.Contains(out, what) })
	}
	t.Run("uplink", func(t *testing.T) {
		sh(t, m.n, "ip link set eth0 mtu 1450")
		problem("eth0 has an MTU of 1450, so full packets of pods (1400 bytes)")
		sh(t, m.n, "ip link set eth0 mtu 1500")
		waitWell(t, m.n)
	})
	t.Run("renamed", func(t *testing.T) { m.renamed(t, problem) })
}

// renamed renames the uplink, as a new kernel may do at a boot.
func (m *machine) renamed(t *testing.T, problem func(string)) {
	noError(t, m.n.Kill(t.Context(), "one-"+agent, 15))
	sh(t, m.n,
		`ip route flush dev br-ex; ip -6 route flush dev br-ex; ip addr flush dev br-ex; ip link set eth0 down; ip link set eth0 name ens3
		sysctl -qw net.ipv6.conf.ens3.disable_ipv6=0; ip link set ens3 up
		ip addr replace 172.18.0.3/16 dev ens3; ip -6 addr replace fc00:f853:ccd::3/64 dev ens3 nodad
		ip route add default via 172.18.0.1 dev ens3 proto dhcp metric 100; ip -6 route add default via fc00:f853:ccd::1 dev ens3 metric 100`)
	sh(t, m.n, "pkill -9 ovs-vswitchd; ip link del br-ex")
	m.pod(t, "three", agent)
	problem("bridge br-ex has no uplink: there is no device eth0")
	if out := sh(t, m.n,
		"ip -o addr show dev br-ex scope global; ip route show default; ip -6 route show default"); strings.Contains(out, "br-ex") ||
		strings.Count(out, "dev ens3") < 2 {
		t.Errorf("the machine has\n%s", out)
	}
	sh(t, m.n, "ovs-vsctl del-br br-ex")
	eventually(t, 20*time.Second, "the network is on the bridge", func() (bool, string) {
		out := sh(t, m.n, "ip route show default; ip -6 route show default; ip -o addr show dev ens3 scope global")
		return strings.Count(out, "dev br-ex") >= 2 && !strings.Contains(out, "ens3"), out
	})
	waitServes(t, m.n)
}
