package uplink_test

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"hairpin/hostnet/uplink"
	"hairpin/lab"
)

// foreign returns a machine after configure-ovs.sh has moved its network to br-ex, with the
// additions of OVN-Kubernetes.
func foreign(t *testing.T) (*lab.Lab, *lab.Node) {
	t.Helper()
	l, n := plain(t)
	sh(t, n, `ip addr del 172.18.0.44/16 dev eth0; ethtool -K eth0 tx off gro off`)
	all(t, n, uplink.AdoptStep, func(string) {})
	sh(t, n,
		`ovs-vsctl remove Bridge br-ex external_ids hairpin-uplink -- remove Bridge br-ex external_ids hairpin-uplink-had -- set Port eth0 external_ids:mine=1
		ip addr change 10.9.9.1/24 dev br-ex label br-ex:x valid_lft 4000 preferred_lft 3000
		ip addr add 169.254.0.2/17 dev br-ex; ip addr add fd69::2/125 dev br-ex nodad
		ip route add 10.96.0.0/16 via 169.254.0.4 dev br-ex mtu 1400; ip route add 169.254.0.1 dev br-ex src 172.18.0.3`)
	return l, n
}

// giveBack finds a foreign bridge, and returns its network.
func giveBack(t *testing.T, n *lab.Node, patience time.Duration) (did, commands []string, err error) {
	t.Helper()
	db := open(t, n)
	defer db.Close()
	err = n.Do(func() error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		f, err := uplink.FindForeign(db, config())
		if err != nil || f == nil {
			t.Fatalf("found %v, %v", f, err)
		}
		commands = f.Commands()
		did, err = f.GiveBack(ctx)
		return err
	})
	return did, commands, err
}

// TestForeign: the device gets the network of another program's bridge back, under traffic.
func TestForeign(t *testing.T) {
	l, n := foreign(t)
	flow, end := streams(t, l, n)
	flow("before")
	did, commands, err := giveBack(t, n, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	flow(strings.Join(did, "\n"))
	noneFailed(t, "given back", end())
	for _, c := range commands {
		if !strings.Contains(strings.Join(did, "; ")+"; ", c+"; ") {
			t.Errorf("it had announced %q", c)
		}
	}
	if left := sh(t, n, "ovs-vsctl list-br; ip -o link show type openvswitch; ip -o link show type tun"); left != "" {
		t.Error(left)
	}
	onDevice := sh(t, n,
		"ip -o addr show dev eth0; ip route show table all dev eth0; ip -6 route show table all dev eth0")
	for _, words := range []string{"172.18.0.3/16", "eth0:x", "fc00:f853:ccd::33/64",
		"198.51.100.0/24 table 77 proto static", "203.0.113.0/24 via 172.18.0.1 metric 50 mtu 1400",
		"default via 172.18.0.1 proto dhcp src 172.18.0.3 metric 200", "192.0.2.8 via 192.0.2.9 onlink",
		"default via fc00:f853:ccd::1 metric 300"} {
		if !strings.Contains(onDevice, words) {
			t.Errorf("eth0 has no %q:\n%s", words, onDevice)
		}
	}
	for _, words := range []string{"169.254.", "fd69::", "10.96.", "tentative"} {
		if strings.Contains(onDevice, words) {
			t.Errorf("eth0 has %q:\n%s", words, onDevice)
		}
	}
}

// TestForeignUndone: if a step fails, or a gateway does not reply, the bridge has the machine's
// network as before, and its connections continue.
func TestForeignUndone(t *testing.T) {
	l, n := foreign(t)
	what := `for i in $(seq 50); do ip addr | grep -q tentative || break; sleep 0.1; done
		ip -o addr show scope global | sed 's/valid_lft.*//' | sort; ip route show table all | grep -v cache | sort; ip -6 route show table all | grep -v expires | sort
		ovs-vsctl list-ports br-ex; ovs-vsctl get Bridge br-ex external_ids; ovs-vsctl get Port eth0 external_ids
		sysctl net.ipv4.conf.br-ex.rp_filter net.ipv6.conf.eth0.disable_ipv6`
	before := sh(t, n, what)
	flow, end := streams(t, l, n)
	flow("before")

	sh(t, n,
		"nft add table arp strict; nft 'add chain arp strict in { type filter hook input priority 0; }'; nft add "+
			"rule arp strict in iifname eth0 drop")
	did, _, err := giveBack(t, n, time.Minute)
	if err == nil || !strings.Contains(err.Error(),
		"gateway 172.18.0.1 replied on br-ex, and does not reply on eth0; everything was undone") {
		t.Errorf("error %v, after %q", err, did)
	}
	flow(strings.Join(did, "\n"))
	// the kernel removes a gateway's entry after three seconds without a reply: a slow machine
	// loses a packet
	for i, r := range end() {
		t.Logf("undone, way %d: %d of %d new connections failed; %d of %d open ones broke, longest silence %.0f ms", i,
			r.Failed, r.Opened, r.Broken, r.Long, r.LongGapMs)
	}
	sh(t, n, "nft delete table arp strict")
	if after := sh(t, n, what); after != before {
		t.Errorf("not as it was:\n%s", lab.Difference(before, after))
	}

	if err := n.Signal(lab.VSwitchd, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	did, _, err = giveBack(t, n, 3*time.Second)
	if err == nil || len(did) > 0 {
		t.Errorf("with an ovs-vswitchd that hangs: %v, after %q", err, did)
	}
	if err := n.Signal(lab.VSwitchd, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if after := sh(t, n, what); after != before {
		t.Errorf("not as it was:\n%s", lab.Difference(before, after))
	}
}

// TestForeignRefused: a bridge with configuration that would be lost, or not be found again, is not
// changed.
func TestForeignRefused(t *testing.T) {
	_, n := foreign(t)
	sh(t, n, "ip link add vm0 type veth peer name vm1")
	before := network(t, n)
	for _, c := range []struct{ do, undo, words string }{
		{"add-port br-ex vm0", "del-port br-ex vm0", "several devices"},
		{"add-port br-ex vlan7 -- set Interface vlan7 type=internal", "del-port br-ex vlan7",
			"another port vlan7, of type internal"},
		{"set Port br-ex tag=5", "clear Port br-ex tag", "in VLAN 5"},
	} {
		sh(t, n, "ovs-vsctl "+c.do)
		if did, _, err := giveBack(t, n, time.Minute); err == nil || !strings.Contains(err.Error(), c.words) ||
			len(did) > 0 {
			t.Errorf("%s: %v, after %q", c.do, err, did)
		}
		sh(t, n, "ovs-vsctl "+c.undo)
	}
	if after := network(t, n); after != before {
		t.Errorf("not as it was:\n%s", lab.Difference(before, after))
	}
}
