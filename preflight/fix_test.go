package preflight_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"hairpin/lab"
	"hairpin/preflight"
)

const profileDir = "/etc/NetworkManager/system-connections/"

// configured returns a machine whose device configure-ovs.sh has put into br-ex, with the profiles
// that it writes.
func configured(t *testing.T) *lab.Node {
	t.Helper()
	_, n := machine(t)
	for _, d := range []string{lab.OVSDB, lab.VSwitchd} {
		if err := n.Start(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		if d == lab.OVSDB {
			sh(t, n, "ovs-vsctl --no-wait init")
		}
	}
	sh(t, n, `mac=$(cat /sys/class/net/eth0/address)
ovs-vsctl add-br br-ex -- set Bridge br-ex datapath_type=`+n.Datapath()+` other_config:hwaddr=$mac external_ids:NM.connection.uuid=1 -- add-port br-ex eth0
ethtool -K eth0 tx off gro off; sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1
ip link set br-ex up; ip addr flush dev eth0; ip addr add 172.18.0.3/16 dev br-ex; ip addr add fc00:f853:ccd::3/64 dev br-ex nodad
ip addr add 10.44.0.0/32 dev br-ex
ip route add default via 172.18.0.1 dev br-ex metric 48; ip -6 route add default via fc00:f853:ccd::1 dev br-ex metric 48
mkdir -p `+profileDir)
	for name, text := range map[string]string{
		"br-ex":          "[connection]\nid=br-ex\ntype=ovs-bridge\ninterface-name=br-ex\n",
		"ovs-port-br-ex": "[connection]\nid=ovs-port-br-ex\ntype=ovs-port\n",
		"ovs-if-br-ex":   "[connection]\nid=ovs-if-br-ex\ntype=ovs-interface\n[ipv4]\nmethod=manual\naddress1=172.18.0.3/16,172.18.0.1\n",
		"ovs-port-phys0": "[connection]\nid=ovs-port-phys0\ntype=ovs-port\n",
		"ovs-if-phys0":   "[connection]\nid=ovs-if-phys0\ntype=802-3-ethernet\ninterface-name=eth0\n",
		"Wired":          "[connection]\nid=Wired\ntype=802-3-ethernet\ninterface-name=eth0\n[ipv4]\nmethod=auto\n",
	} {
		if err := n.WriteFile(profileDir+name+".nmconnection", text); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// fix runs the command with --fix, and returns its output and exit code.
func fix(t *testing.T, n *lab.Node, flags string) (text, code string) {
	t.Helper()
	out, err := n.Exec(t.Context(), "sh", "-c", "hairpin preflight --gateway-mode detached --fix "+flags+
		" 2>&1; echo code $?")
	if err != nil {
		t.Fatal(err)
	}
	text, code, _ = strings.Cut(out, "code ")
	return text, strings.TrimSpace(code)
}

// TestFix checks --fix in mode detached: the device gets the network of the bridge of
// configure-ovs.sh, and the profiles are removed. It does so only if nothing would undo it, and the
// machine has its addresses after a boot.
func TestFix(t *testing.T) {
	n := configured(t)
	state := func() string {
		t.Helper()
		out, err := n.Exec(t.Context(), "sh", "-ec",
			"ip -o addr show scope global | sed 's/valid_lft.*//'; ip route; ip -6 route; ovs-vsctl list-br; find "+
				"/etc/NetworkManager -type f | sort")
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	before := state()
	refused := func(words string) {
		t.Helper()
		text, _ := fix(t, n, "")
		if !strings.Contains(text, words) {
			t.Errorf("no %q in\n%s", words, text)
		}
		if after := state(); after != before {
			t.Errorf("changed, although %q:\n%s", words, lab.Difference(before, after))
		}
	}
	refused("no profile of eth0 has the ipv4 addresses that " + profileDir + "ovs-if-br-ex.nmconnection has")
	sh(t, n, "sed -i s/method=auto/method=manual/ "+profileDir+"Wired.nmconnection")

	sh(t, n, "cp /bin/sleep /tmp/NetworkManager; /tmp/NetworkManager 1000 >/dev/null 2>&1 & echo $! > /tmp/nm.pid")
	if err := n.WaitFor(t.Context(), 30*time.Second, func(string) bool { return true }, "sh", "-c",
		"grep -q NetworkManager /proc/$(cat /tmp/nm.pid)/comm"); err != nil {
		t.Fatal(err)
	}
	refused("first `systemctl stop NetworkManager`")
	sh(t, n, "kill $(cat /tmp/nm.pid)")
	if err := n.WaitFor(t.Context(), 30*time.Second, func(string) bool { return true }, "sh", "-c",
		"! grep -qs NetworkManager /proc/$(cat /tmp/nm.pid)/comm"); err != nil {
		t.Fatal(err)
	}

	announced, _ := look(t, n, "--gateway-mode detached")
	commands := slices.Concat(announced["bridge br-ex with eth0"].Fix, announced["NetworkManager"].Fix)
	if len(commands) < 8 {
		t.Errorf("announced: %q", commands)
	}
	text, code := fix(t, n, "")
	for _, c := range commands {
		if !strings.Contains(text, c) {
			t.Errorf("announced, and not done: %s", c)
		}
	}
	t.Logf("exit code %s\n%s", code, text)
	if code != "1" { // the machine's own Open vSwitch runs
		t.Errorf("exit code %s", code)
	}
	sh(t, n,
		`test -z "$(ovs-vsctl list-br)"; ip -o addr show dev eth0 | grep 172.18.0.3/16; ip route | grep 'default via 172.18.0.1 dev eth0.*metric 48'
test "$(ls `+profileDir+`)" = Wired.nmconnection; test $(ls /etc/NetworkManager/hairpin-former | wc -l) = 5`)
	found, _ := look(t, n, "--gateway-mode detached")
	for object, f := range found {
		if f.Severity != preflight.Info && object != "Open vSwitch" {
			t.Errorf("still found: %+v", f)
		}
	}
	sh(t, n,
		`ip -o addr show dev lo | grep 10.44.0.0/32; ip -o addr show dev lo | grep fd00:10:44::/128; test -z "$(hairpin advertise --gateway-mode detached)"
ip addr del 10.44.0.0/32 dev lo; ovs-vsctl add-br br-ex -- set Bridge br-ex datapath_type=`+n.Datapath()+`
test "$(hairpin advertise --gateway-mode detached)" = "# ip address replace 10.44.0.0/32 dev br-ex"; ip -o addr show dev br-ex | grep 10.44.0.0/32
ovs-vsctl del-br br-ex; test "$(hairpin advertise --gateway-mode detached)" = "# ip address replace 10.44.0.0/32 dev lo"`)
	if text, code = fix(t, n, "-o json"); code != "1" ||
		!strings.HasPrefix(text, "nothing that --fix can repair\n[") {
		t.Errorf("again: exit code %s\n%s", code, text)
	}
}
