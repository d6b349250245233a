package restore_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/apply/inside"
	"hairpin/apply/inside/insidetest"
	"hairpin/hostnet/restore"
)

// machine is a network namespace with a device like that of the gateway bridge.
type machine struct {
	t  *testing.T
	ns string
}

const device = "ip link add br-ex address 02:42:ac:12:00:03 type veth peer name wire\nip link set wire up\n"

func newMachine(t *testing.T) machine {
	m := machine{t, insidetest.NetNS(t)}
	m.sh(device + "ip link set br-ex up")
	return m
}

func (m machine) sh(script string) (out string) {
	m.t.Helper()
	err := inside.Do(m.ns, func() error {
		b, err := exec.Command("sh", "-ec", script).CombinedOutput()
		out = string(b)
		return err
	})
	if err != nil {
		m.t.Fatalf("%s: %v: %s", script, err, out)
	}
	return out
}

// with calls do in the namespace, with the device.
func (m machine) with(do func(netlink.Link) error) {
	m.t.Helper()
	err := inside.Do(m.ns, func() error {
		l, err := netlink.LinkByName("br-ex")
		if err == nil {
			err = do(l)
		}
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

// record returns the Record, as the next process reads it.
func (m machine) record() (r restore.Record) {
	m.t.Helper()
	m.with(func(l netlink.Link) error {
		now, err := restore.Read(l, []netip.Prefix{netip.MustParsePrefix("169.254.169.0/29"),
			netip.MustParsePrefix("fd69::/125")})
		if err == nil {
			r, err = restore.Parse(now.String())
		}
		return err
	})
	return r
}

// network prints the device's network, without the seconds of lifetimes.
func (m machine) network() string {
	out := m.sh(`ip -d addr show dev br-ex | grep -v 'fe80\|link\|mtu' ; for t in main 77; do
		ip -d -4 route show table $t; ip -d -6 route show table $t; done 2>&1 | grep -v 'fe80::/64\|FIB table' || true`)
	return regexp.MustCompile(`([1-9][0-9]+)sec`).ReplaceAllStringFunc(out, func(s string) string {
		var n int
		_, _ = fmt.Sscanf(s, "%dsec", &n)
		return fmt.Sprintf("%dsec", (n+50)/100*100)
	})
}

// rich is a network with all kinds of addresses and routes.
const rich = `ip addr add 172.18.0.3/16 brd + dev br-ex; ip addr add 172.18.0.33/16 dev br-ex valid_lft 5000 preferred_lft 3000
ip addr add 10.9.9.1/24 dev br-ex label br-ex:x; ip addr add 192.0.2.7/32 dev br-ex noprefixroute; ip addr add 172.18.0.50/32 dev br-ex
ip addr add 10.8.8.1 peer 10.8.8.2 dev br-ex; ip addr add 10.7.7.7/24 dev br-ex scope link
ip addr add fc00:f853:ccd::3/64 dev br-ex nodad; ip addr add fc00:f853:ccd::33/64 dev br-ex nodad valid_lft 5000 preferred_lft 0
ip addr add fc00:f853:ccd::34/64 dev br-ex nodad noprefixroute
ip route add default via 172.18.0.1 dev br-ex proto dhcp metric 100 src 172.18.0.33
ip route add default via 172.18.0.9 dev br-ex proto static metric 200
ip route add 203.0.113.0/24 via 172.18.0.1 dev br-ex metric 50 mtu 1400 advmss 1200 proto static
ip route add 198.51.100.0/24 dev br-ex table 77 proto static; ip route add 192.0.2.8/32 via 192.0.2.9 dev br-ex onlink
ip route add 198.51.101.0/24 nexthop via 172.18.0.1 dev br-ex weight 3 nexthop via 172.18.0.2 dev br-ex onlink
ip -6 route add default via fe80::1 dev br-ex proto ra metric 1024 expires 1800 pref high
ip -6 route add default via fc00:f853:ccd::1 dev br-ex metric 2048
ip -6 route add 2001:db8::/32 metric 77 nexthop via fc00:f853:ccd::1 dev br-ex nexthop via fc00:f853:ccd::2 dev br-ex
sysctl -qw net.ipv6.conf.br-ex.accept_ra=2
ip addr add 169.254.169.2/29 dev br-ex; ip route add 10.96.0.0/16 via 169.254.169.4 dev br-ex; ip route add 10.97.0.0/16 dev br-ex proto 85
`

// TestDeviceMadeAnew: a device that is made again gets the network of the old one, with all
// attributes, and nothing of Hairpin's.
func TestDeviceMadeAnew(t *testing.T) {
	m := newMachine(t)
	m.sh(rich)
	before := m.network()
	r := m.record()
	m.sh("ip link del br-ex\nip link add other type veth peer name others\n" + device)
	m.with(func(l netlink.Link) error {
		if d := restore.DeviceOf(l); d == r.Device || !d.SameMachine(r.Device) {
			t.Errorf("the device was %+v and is %+v", r.Device, d)
		}
		did, err := r.Restore(l)
		t.Log(strings.Join(did, "\n"))
		return err
	})
	ours := regexp.MustCompile(`(?m)^.*(169\.254\.169|10\.9[67]\.0).*\n(       valid_lft.*\n)?`)
	want := strings.Replace(ours.ReplaceAllString(before, ""), "proto ra scope global metric 1024",
		"proto ra scope global metric 1025", 1)
	if now := m.network(); now != want {
		t.Errorf("the network should be\n%sand is\n%s", want, now)
	}
	if got := strings.TrimSpace(m.sh("sysctl -n net.ipv6.conf.br-ex.accept_ra")); got != "2" {
		t.Errorf("accept_ra is %s", got)
	}
	again := m.record()
	r.Device = again.Device
	if len(r.Addresses) != 10 || len(again.Addresses) != 10 || !again.SameLifetimes(&r, 2) {
		t.Errorf("recorded were\n%s\nand then\n%s", r.String(), again.String())
	}
	m.with(func(l netlink.Link) error {
		if did, err := again.Restore(l); err != nil || len(did) > 0 {
			t.Errorf("restored again: %q, %v", did, err)
		}
		return nil
	})
	if hops := fmt.Sprint(r.NextHops()); hops != "[]" { // of another device
		t.Error(hops)
	}
	if hops := fmt.Sprint(again.NextHops()); hops != "[172.18.0.1 fe80::1]" {
		t.Errorf("next hops %s", hops)
	}
}

// advertise sends a router advertisement of fe80::1 to the device, with a prefix for addresses.
func (m machine) advertise(lifetime uint16, prefix string) {
	m.t.Helper()
	err := inside.Do(m.ns, func() error {
		wire, err := net.InterfaceByName("wire")
		if err != nil {
			return err
		}
		s, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(s) }()
		b := binary.BigEndian.AppendUint16([]byte{134, 0, 0, 0, 64, 0}, lifetime)
		b = append(b, make([]byte, 8)...)           // reachable time and retransmission timer
		b = append(b, 3, 4, 64, 0xc0)               // prefix information: on link, autonomous
		b = binary.BigEndian.AppendUint32(b, 86400) // valid
		b = binary.BigEndian.AppendUint32(b, 3600)  // preferred
		b = append(b, 0, 0, 0, 0)
		b = append(b, netip.MustParseAddr(prefix).AsSlice()...)
		from := &unix.SockaddrInet6{Addr: netip.MustParseAddr("fe80::1").As16(), ZoneId: uint32(wire.Index)}
		to := &unix.SockaddrInet6{Addr: netip.MustParseAddr("ff02::1").As16(), ZoneId: uint32(wire.Index)}
		return errors.Join(unix.SetsockoptInt(s, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255),
			unix.Bind(s, from), unix.Sendto(s, b, 0, to))
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

// advertiseUntil sends advertisements until a command prints the expected text: a new device takes
// a moment to receive them.
func (m machine) advertiseUntil(lifetime uint16, prefix, script string, ok func(out string) bool) {
	m.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		m.advertise(lifetime, prefix)
		out := m.sh(script)
		if ok(out) {
			return
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("%s: %s", script, out)
		}
	}
}

// TestRouterAdvertisements: the kernel accepts advertisements of a router after its default route
// was restored: it adds its own route and addresses, and removes the route when the router resigns.
func TestRouterAdvertisements(t *testing.T) {
	m := newMachine(t)
	const router, routes = "ip addr add fe80::1/64 dev wire nodad\n", "ip -6 route show default"
	own := func(out string) bool { return strings.Contains(out, "via fe80::1 dev br-ex proto ra metric 1024") }
	copied := func(out string) bool {
		return strings.Contains(out, "via fe80::1 dev br-ex proto ra metric 1025 expires")
	}
	m.sh(router)
	m.advertiseUntil(1800, "2001:db8:1::", routes, own)
	for i := range 2 { // devices that are lost
		r := m.record()
		m.sh("ip link del br-ex\n" + device + router)
		m.with(func(l netlink.Link) error { _, err := r.Restore(l); return err })
		if out := m.sh(routes); own(out) || !copied(out) || strings.Count(out, "via") != 1 {
			t.Fatalf("restored: %s", out)
		}
		next := fmt.Sprintf("2001:db8:%d:", 2+i)
		m.advertiseUntil(1800, next+":", routes, func(out string) bool { return own(out) && copied(out) })
		m.advertiseUntil(1800, next+":", "ip -6 addr show dev br-ex",
			func(out string) bool { return strings.Contains(out, next) })
	}
	m.advertiseUntil(0, "2001:db8:3::", routes, func(out string) bool { return !own(out) })
}

// TestRouterAdvertisementsOff: where the kernel ignores advertisements, a default route that a
// program adds from one keeps its metric.
func TestRouterAdvertisementsOff(t *testing.T) {
	m := newMachine(t)
	m.sh("sysctl -qw net.ipv6.conf.br-ex.accept_ra=0\nip -6 route add default via fe80::1 dev br-ex proto ra " +
		"metric 1024 expires 1800")
	r := m.record()
	m.sh("ip link del br-ex\n" + device)
	m.with(func(l netlink.Link) error { _, err := r.Restore(l); return err })
	if out := m.sh("ip -6 route show default"); !strings.Contains(out, "metric 1024") {
		t.Error(out)
	}
}

// TestNotRestored: an expired address or route is not restored, nor is an address that another link
// has now.
func TestNotRestored(t *testing.T) {
	m := newMachine(t)
	m.sh(`ip addr add 172.18.0.3/16 dev br-ex; ip addr add 172.18.0.33/16 dev br-ex valid_lft 1 preferred_lft 1
		ip addr add 172.18.0.44/32 dev br-ex; ip -6 route add default via fe80::1 dev br-ex proto ra expires 1`)
	r := m.record()
	if len(r.Addresses) != 3 || len(r.Routes) != 1 {
		t.Fatal(r.String())
	}
	m.sh("ip link del br-ex\nip link add ens3 type veth peer name other\nip addr add 172.18.0.44/16 dev ens3\n" +
		device)
	for deadline := time.Now().Add(10 * time.Second); len(r.Prefixes()) > 2 ||
		len(r.NextHops()) > 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("lifetimes do not end")
		}
	}
	m.with(func(l netlink.Link) error { _, err := r.Restore(l); return err })
	if out := m.sh("ip -br -4 addr show dev br-ex"); !strings.Contains(out, "172.18.0.3/16") ||
		strings.Contains(out, "172.18.0.33") || strings.Contains(out, "172.18.0.44") {
		t.Error(out)
	}
	if out := m.sh("ip -6 route show default"); out != "" {
		t.Error(out)
	}
}

// TestNote: what is removed while the device is up is not restored, and what is added is.
func TestNote(t *testing.T) {
	m := newMachine(t)
	m.sh(rich)
	r := m.record()
	note := func(kind uint16, e restore.Entry) {
		r.Update(syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: kind}, Data: e.Message}, nil)
	}
	address, route := r.Addresses[2], r.Routes[3]
	before := len(r.Addresses) + len(r.Routes)
	note(unix.RTM_DELADDR, address)
	note(unix.RTM_DELROUTE, route)
	if now := len(r.Addresses) + len(r.Routes); now != before-2 {
		t.Errorf("of %d are left %d", before, now)
	}
	for range 2 {
		note(unix.RTM_NEWADDR, address)
		note(unix.RTM_NEWROUTE, route)
	}
	if now := len(r.Addresses) + len(r.Routes); now != before {
		t.Errorf("of %d there are %d again", before, now)
	}
	r.Index++ // of another device
	note(unix.RTM_DELADDR, address)
	if now := len(r.Addresses) + len(r.Routes); now != before {
		t.Errorf("of %d there are %d", before, now)
	}
}

// FuzzParse: whatever the row of a bridge has, nothing panics.
func FuzzParse(f *testing.F) {
	f.Add("")
	f.Add(`{"addresses":[{"message":"AhgA/gEAAAA="}],"routes":[{"message":"AgAAAP4DAAEAAAAA"}]}`)
	cut := []byte{5, 0, unix.RTA_GATEWAY, 0, 9} // an attribute without its padding
	address := append([]byte{unix.AF_INET, 24, 0, 0, 1, 0, 0, 0}, cut...)
	route := append([]byte{unix.AF_INET, 0, 0, 0, unix.RT_TABLE_MAIN, 0, 0, unix.RTN_UNICAST, 0, 0, 0, 0,
		17, 0, unix.RTA_MULTIPATH, 0, 13, 0, 0, 0, 1, 0, 0, 0}, cut...)
	text, err := json.Marshal(restore.Record{Addresses: []restore.Entry{{Message: address}},
		Routes: []restore.Entry{{Message: route}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	f.Fuzz(func(t *testing.T, text string) {
		r, err := restore.Parse(text)
		if err != nil {
			return
		}
		_, _ = r.Prefixes(), r.NextHops()
		_ = r.SameExceptLifetimes(&r)
	})
}
