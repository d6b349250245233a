package hostnet

import (
	"net/netip"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/apply/inside"
	"hairpin/apply/inside/insidetest"
	"hairpin/cluster"
	"hairpin/cluster/annotation"
	"hairpin/hostnet/restore"
	"hairpin/ovsdb"
)

// lostNetwork is a network namespace with the device of a gateway bridge, and a Scanner's state of
// it.
type lostNetwork struct {
	t  *testing.T
	ns string
	n  bridgeNetwork
}

const (
	lostDevice = "ip link add br-ex address 02:42:ac:12:00:03 type veth peer name wire\nip link set wire up\nip " +
		"link set br-ex up\n"
	lostHas = "172.18.0.3/16 172.18.0.9/32 fc00:f853:ccd::3/64"
)

func newLostNetwork(t *testing.T) *lostNetwork {
	l := &lostNetwork{t: t, ns: insidetest.NetNS(t)}
	l.sh(lostDevice + `ip addr add 172.18.0.3/16 dev br-ex; ip addr add 172.18.0.9/32 dev br-ex
		ip addr add fc00:f853:ccd::3/64 dev br-ex nodad; ip route add default via 172.18.0.1 dev br-ex`)
	if l.scan() {
		t.Fatal("a device that is up has lost something")
	}
	return l
}

func (l *lostNetwork) sh(script string) (out string) {
	l.t.Helper()
	l.in(func() error {
		b, err := exec.Command("sh", "-ec", script).CombinedOutput()
		out = string(b)
		return err
	})
	return out
}

func (l *lostNetwork) in(do func() error) {
	l.t.Helper()
	if err := inside.Do(l.ns, do); err != nil {
		l.t.Fatal(err)
	}
}

// scan compares the device with the Record, as a Scanner does, and reports whether something is not
// restored.
func (l *lostNetwork) scan() (lost bool) {
	l.t.Helper()
	l.in(func() error {
		link, err := netlink.LinkByName("br-ex")
		if err == nil {
			lost, err = l.n.update(link, true, nil)
			l.n.set(l.n.record, lost)
		}
		return err
	})
	return lost
}

// has lists the addresses of the device that are not link-local, and checks that it has the default
// route.
func (l *lostNetwork) has() string {
	l.t.Helper()
	if out := l.sh("ip route show default"); !strings.Contains(out, "via 172.18.0.1") {
		l.t.Errorf("default route: %q", out)
	}
	list := strings.Fields(l.sh("ip -br addr show dev br-ex"))[2:]
	return strings.Join(slices.DeleteFunc(list, func(a string) bool { return strings.HasPrefix(a, "fe80") }), " ")
}

// TestSetDown: what the kernel removes from a device that is set down is restored. IPv4 addresses
// stay, so those that are missing afterwards were removed by an administrator.
func TestSetDown(t *testing.T) {
	const without = "172.18.0.3/16 fc00:f853:ccd::3/64"
	for name, c := range map[string]struct {
		steps []string // with a scan after each
		want  string
	}{
		"nothing removed": {[]string{"ip link set br-ex down", "ip link set br-ex up"}, lostHas},
		"removed while down": {[]string{"ip link set br-ex down", "ip addr del 172.18.0.9/32 dev br-ex",
			"ip link set br-ex up"}, without},
		"removed before the scan": {[]string{"ip link set br-ex down",
			"ip link set br-ex up; ip addr del 172.18.0.9/32 dev br-ex"}, without},
		"removed, then made again": {[]string{"ip link set br-ex down", "ip addr del 172.18.0.9/32 dev br-ex",
			"ip link del br-ex\n" + lostDevice}, without},
		"down, then made again": {[]string{"ip link set br-ex down", "ip link del br-ex\n" + lostDevice}, lostHas},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLostNetwork(t)
			for i, step := range c.steps {
				l.sh(step)
				if lost := l.scan(); lost != (i < len(c.steps)-1) {
					t.Errorf("%s: lost is %t", step, lost)
				}
			}
			if got := l.has(); got != c.want {
				t.Errorf("the device has %s, not %s", got, c.want)
			}
		})
	}
}

// TestRestoredRecordStays: notifications do not change a Record that is being restored.
func TestRestoredRecordStays(t *testing.T) {
	l := newLostNetwork(t)
	r, _ := l.n.copyRecord(true)
	before := r.String()
	for _, e := range r.Addresses {
		m := syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.RTM_DELADDR}, Data: e.Message}
		l.n.notified(m, "br-ex", nil)
	}
	for _, e := range r.Routes {
		m := syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.RTM_DELROUTE}, Data: e.Message}
		l.n.notified(m, "br-ex", nil)
	}
	if len(l.n.record.Addresses)+len(l.n.record.Routes) > 0 || r.String() != before {
		t.Errorf("the Record is %s, its copy %s", l.n.record, r)
	}
}

// TestNotificationsLost: after notifications were lost, the state of the device is read, and routes
// and IPv6 addresses that it lost meanwhile are restored.
func TestNotificationsLost(t *testing.T) {
	l := newLostNetwork(t)
	scanner, _ := detachedScanner(t)
	lost := scanner.notices().Lost
	if lost == nil {
		t.Fatal("nothing is called")
	}
	for _, c := range []struct {
		script string
		down   bool
	}{{"true", false}, {"ip link set br-ex down", true}, {"ip link set br-ex up", false}, {"ip link del br-ex", true}} {
		scanner.network.wasDown = false
		l.sh(c.script)
		l.in(func() error { lost(); return nil })
		if n := &scanner.network; !n.wasDown || n.isDown != c.down {
			t.Errorf("%s: it is down %t, was down %t", c.script, n.isDown, n.wasDown)
		}
	}
}

// TestLinkLocalIsNotPublished: the planner of the own node knows a link-local address of the host;
// other nodes do not see it.
func TestLinkLocalIsNotPublished(t *testing.T) {
	f := Found{addresses: []netip.Prefix{netip.MustParsePrefix("169.254.20.10/32"),
		netip.MustParsePrefix("172.18.0.3/16")}}
	if got := annotations(f)[annotation.HostCIDRs]; got != `["172.18.0.3/16"]` {
		t.Error(got)
	}
	if !isPublished(&cluster.Node{HostAddresses: f.addresses[1:], Links: []cluster.HostLink{}}, f) {
		t.Error("it is published again and again")
	}
	l := NewLocal("a", false)
	s := l.Apply(&cluster.Snapshot{Nodes: []*cluster.Node{{Name: "a", HostAddresses: f.addresses[1:]}}}, f, nil)
	if got := s.Node("a").HostAddresses; !slices.Equal(got, f.addresses) {
		t.Errorf("the own node has %v", got)
	}
}

// TestLostOfOneFamily: all addresses, next hops and networks that the device has lost are planned
// until they are restored, and not only the first of each family. A family that the device has
// again is what it is now.
func TestLostOfOneFamily(t *testing.T) {
	prefixes := func(texts ...string) (list []netip.Prefix) {
		for _, text := range texts {
			list = append(list, netip.MustParsePrefix(text))
		}
		return list
	}
	hops := []netip.Addr{netip.MustParseAddr("172.18.0.1"), netip.MustParseAddr("172.18.0.2")}
	old := cluster.Gateway{Bridge: "br-ex", OnLink: prefixes("10.9.0.0/24", "192.168.5.0/24", "fd01::/64")}
	bridge := &ovsdb.Bridge{ExternalIDs: map[string]string{keyGateway: annotation.FormatGateway(old)}}
	lost := restore.Minimal("boot", prefixes("172.18.0.3/16", "172.18.0.9/32", "fd00::3/64"), hops)
	g := withLost(cluster.Gateway{Addresses: prefixes("fd00::4/64"), OnLink: prefixes("fd02::/64")}, bridge, &lost)
	want := cluster.Gateway{Addresses: prefixes("172.18.0.3/16", "172.18.0.9/32", "fd00::4/64"), NextHops: hops,
		OnLink: prefixes("10.9.0.0/24", "192.168.5.0/24", "fd02::/64")}
	if !reflect.DeepEqual(g, want) {
		t.Errorf("it is %+v\nnot %+v", g, want)
	}
}
