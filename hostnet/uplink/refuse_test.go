package uplink_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"hairpin/hostnet/uplink"
	"hairpin/lab"
)

// refused returns the error of a first step.
func refused(t *testing.T, n *lab.Node, c uplink.Config) string {
	t.Helper()
	db := open(t, n)
	defer db.Close()
	var did []string
	err := n.Do(func() (err error) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		did, err = uplink.Adopt(ctx, db, c)
		return err
	})
	if err == nil || len(did) > 0 {
		t.Errorf("it was not refused: %v %v", did, err)
		return ""
	}
	return err.Error()
}

// TestRefused: a device that cannot be the uplink is not changed, and the error says why.
func TestRefused(t *testing.T) {
	_, n := plain(t)
	before := network(t, n)
	named := func(device string) uplink.Config {
		c := config()
		c.Device = device
		return c
	}
	for _, c := range []struct {
		do, undo string
		config   uplink.Config
		words    string
	}{
		{"", "", named("eth7"), "there is no device eth7"},
		{"ip link add lan type bridge; ip link add slave type veth peer name other; ip link set slave master lan",
			"ip link del lan; ip link del slave",
			named("slave"), "device slave cannot be added to a bridge: it belongs to lan, a bridge"},
		{"ip tuntap add t0 mode tun", "ip link del t0", named("t0"), "it is no Ethernet device"},
		{"", "", named("lo"), "it is no Ethernet device"},
		{"ip link add br-ex type bridge", "ip link del br-ex", config(),
			"the machine has a device br-ex, a bridge, which is not Open vSwitch's"},
		{"ip route save >/tmp/4; ip -6 route save >/tmp/6; ip route flush root 0/0 exact 0/0; ip -6 route flush default",
			"ip route flush table main; ip -6 route flush table main; ip route restore </tmp/4; ip -6 " +
				"route restore </tmp/6", config(), "there is no default route"},
	} {
		sh(t, n, c.do)
		if text := refused(t, n, c.config); !strings.Contains(text, c.words) {
			t.Errorf("%s\nerror %q, want one with %q", c.do, text, c.words)
		}
		if out := sh(t, n, "ovs-vsctl list-br"); out != "" {
			t.Errorf("%s\nOpen vSwitch has bridges %s", c.do, out)
		}
		sh(t, n, c.undo)
	}
	if after := network(t, n); after != before {
		t.Errorf("not as it was:\n%s", lab.Difference(before, after))
	}
}

// TestOthersBridge: a bridge of the administrator is not changed, in either direction.
func TestOthersBridge(t *testing.T) {
	_, n := plain(t)
	sh(t, n, "ovs-vsctl add-br br-ex -- set Bridge br-ex datapath_type=netdev; ip link set br-ex up")
	before := network(t, n)
	for _, do := range []stepper{uplink.AdoptStep, uplink.GiveBackStep} {
		if count := all(t, n, do, func(what string) { t.Error(what) }); count > 0 {
			t.Errorf("%d steps", count)
		}
	}
	if after := network(t, n); after != before {
		t.Errorf("not as it was:\n%s", lab.Difference(before, after))
	}
}

// TestSettingsLost: a device is adopted and given back even if its settings cannot be read.
func TestSettingsLost(t *testing.T) {
	_, n := plain(t)
	// the end of a lifetime is lost; the rest is the default
	sh(t, n, "ip addr del 172.18.0.44/16 dev eth0; ethtool -K eth0 tx on gro on")
	before := network(t, n)
	all(t, n, uplink.AdoptStep, func(string) {})
	for _, lose := range []string{"set Bridge br-ex external_ids:hairpin-uplink-had=nonsense",
		"remove Bridge br-ex external_ids hairpin-uplink-had",
		`set Bridge br-ex external_ids:hairpin-uplink-had='"{\"sysctls\": [1]}"'`} {
		sh(t, n, "ovs-vsctl "+lose)
		if count := all(t, n, uplink.AdoptStep, func(what string) { t.Log(what) }); count != 1 {
			t.Errorf("%s: %d steps", lose, count)
		}
	}
	sh(t, n, "ovs-vsctl set Bridge br-ex external_ids:hairpin-uplink-had=nonsense")
	all(t, n, uplink.GiveBackStep, func(what string) { t.Log(what) })
	if after := network(t, n); after != before {
		t.Errorf("not as it was:\n%s", lab.Difference(before, after))
	}
}

// TestLater: addresses and routes that a DHCP client adds to the device later move too, and those
// of a device that was made again. Other devices keep theirs, and nothing happens without a reason.
func TestLater(t *testing.T) {
	_, n := plain(t)
	sh(t, n,
		"ip link add lan5 type veth peer name far5; ip link set far5 up; ip link set lan5 up; ip addr add "+
			"10.5.0.1/24 dev lan5; ip route add 10.6.0.0/16 via 10.5.0.2")
	all(t, n, uplink.AdoptStep, func(string) {})
	if what := step(t, n, uplink.AdoptStep); what != "" {
		t.Errorf("not done: %s", what)
	}
	sh(t, n,
		"ip addr add 172.18.0.99/16 dev eth0 valid_lft 3600 preferred_lft 3600; ip route add default via 172.18.0.1 "+
			"dev eth0 metric 1024 proto dhcp src 172.18.0.99")
	all(t, n, uplink.AdoptStep, func(what string) { t.Log(what) })
	sh(t, n,
		`ip -o addr show dev br-ex | grep 172.18.0.99/16; ip route show default | grep 'dev br-ex .*src 172.18.0.99'
		test -z "$(ip -o addr show dev eth0 scope global)"; ip -o addr show dev lan5 | grep 10.5.0.1; ip route show 10.6.0.0/16 | grep lan5`)
}

// TestNamed: another device than the default route's can be named, and the others keep theirs.
func TestNamed(t *testing.T) {
	_, n := plain(t)
	sh(t, n,
		"ip link add lan7 type veth peer name far7; ip link set far7 up; ip link set lan7 up; ip addr add "+
			"10.7.0.1/24 dev lan7")
	before := network(t, n) + sh(t, n, "ethtool -k lan7")
	db := open(t, n)
	defer db.Close()
	c := config()
	c.Device = "lan7"
	err := n.Do(func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for ctx.Err() == nil {
			if _, err := uplink.Adopt(ctx, db, c); err == nil {
				break
			}
		}
		if _, err := n.Exec(ctx, "sh", "-ec",
			"ip -o addr show dev br-ex | grep -q 10.7.0.1/24; ip -o addr show dev eth0 | grep -q 172.18.0.3/16"); err != nil {
			return err
		}
		_, err := uplink.GiveBack(ctx, db, c)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if after := network(t, n) + sh(t, n, "ethtool -k lan7"); after != before {
		t.Errorf("not as it was:\n%s", lab.Difference(before, after))
	}
}
