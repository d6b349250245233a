package conntrack

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/apply/inside"
	"hairpin/apply/inside/insidetest"
	"hairpin/datapath/conn"
)

// listed returns all entries of a family.
func listed(family netlink.InetFamily) (out []entry, err error) {
	err = each(family, func(e *entry) error { out = append(out, *e); return nil })
	return out, err
}

// TestKernel checks that in the kernel's conntrack, of all zones, only entries to the removed
// endpoint are deleted.
func TestKernel(t *testing.T) {
	ns := insidetest.NetNS(t)
	at := netip.MustParseAddrPort
	vip, a, b := at("10.96.0.10:53"), at("10.244.1.3:53"), at("10.244.2.3:53")
	target := New(Config{})
	if err := inside.Do(ns, func() error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		add := func(protocol uint8, client uint16, to netip.AddrPort, zone uint16) error {
			return netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, &netlink.ConntrackFlow{
				FamilyType: unix.AF_INET, TimeOut: 100, Zone: zone,
				Forward: netlink.IPTuple{Protocol: protocol, SrcIP: net.IPv4(10, 244, 1, 9), SrcPort: client,
					DstIP: vip.Addr().AsSlice(), DstPort: vip.Port()},
				Reverse: netlink.IPTuple{Protocol: protocol, SrcIP: to.Addr().AsSlice(), SrcPort: to.Port(),
					DstIP: net.IPv4(10, 244, 1, 9), DstPort: client},
			})
		}
		for i, e := range []struct {
			to   netip.AddrPort
			zone uint16
		}{{a, 0}, {a, 5}, {b, 0}, {b, 5}, {vip, 0}} {
			if err := add(unix.IPPROTO_UDP, uint16(1000+i), e.to, e.zone); err != nil {
				return fmt.Errorf("entry %d: %w", i, err)
			}
		}
		have, err := target.Read(t.Context())
		if err != nil {
			return err
		}
		if live := have.UDP[vip].Live; !reflect.DeepEqual(live, []netip.AddrPort{a, b}) {
			t.Errorf("found %v", live)
		}
		want := conn.State{UDP: map[netip.AddrPort]conn.Targets{vip: {Live: []netip.AddrPort{b}},
			at("10.96.1.10:80"): {Live: []netip.AddrPort{a}}}}
		if err := target.Apply(t.Context(), conn.Diff(want, have)); err != nil {
			return err
		}
		left, err := listed(unix.AF_INET)
		if err != nil {
			return err
		}
		if len(left) != 3 {
			t.Errorf("%d entries are left, want 3", len(left))
		}
		for _, f := range left {
			if p, ok := pairOf(&f); ok && p.To == a {
				t.Errorf("an entry to %s is left", a)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestStrays checks that UDP connections to a range that leave with a wrong source address are
// deleted, also if a reply began them. Those to other ranges and TCP connections stay.
func TestStrays(t *testing.T) {
	ns := insidetest.NetNS(t)
	node, management, service, other := "172.18.0.3", "10.244.1.2", "10.96.0.10", "10.97.0.10"
	if err := inside.Do(ns, func() error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		add := func(protocol uint8, client uint16, forward, reverse [2]string) error { // ports depend on addresses
			tuple := func(ends [2]string) netlink.IPTuple {
				t := netlink.IPTuple{Protocol: protocol, SrcIP: net.ParseIP(ends[0]).To4(), SrcPort: client,
					DstIP: net.ParseIP(ends[1]).To4(), DstPort: 53}
				if strings.HasPrefix(ends[0], "10.9") {
					t.SrcPort, t.DstPort = t.DstPort, t.SrcPort
				}
				return t
			}
			f := &netlink.ConntrackFlow{FamilyType: unix.AF_INET, TimeOut: 100, Forward: tuple(forward),
				Reverse: tuple(reverse)}
			if protocol == unix.IPPROTO_TCP {
				f.ProtoInfo = &netlink.ProtoInfoTCP{State: 8} // TIME_WAIT
			}
			return netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, f)
		}
		for i, e := range []struct {
			protocol         uint8
			forward, reverse [2]string
		}{
			{unix.IPPROTO_UDP, [2]string{node, service}, [2]string{service, node}},
			{unix.IPPROTO_UDP, [2]string{node, service}, [2]string{service, management}},
			{unix.IPPROTO_UDP, [2]string{node, other}, [2]string{other, node}},
			{unix.IPPROTO_TCP, [2]string{node, service}, [2]string{service, node}},
			{unix.IPPROTO_UDP, [2]string{service, node}, [2]string{node, service}},
			{unix.IPPROTO_UDP, [2]string{other, node}, [2]string{node, other}},
		} {
			if err := add(e.protocol, uint16(1000+i), e.forward, e.reverse); err != nil {
				return fmt.Errorf("entry %d: %w", i, err)
			}
		}
		late := make(chan error, 1)
		want := conn.Delta{WrongSource: map[netip.Prefix]netip.Addr{
			netip.MustParsePrefix("10.96.0.0/16"): netip.MustParseAddr(management),
		}}
		go func() { // a reply in flight
			late <- inside.Do(ns, func() error {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				for {
					left, err := listed(unix.AF_INET)
					if err != nil {
						return err
					}
					if !slices.ContainsFunc(left, func(e entry) bool { return e.forward.src.Port() == 1000 }) {
						return add(unix.IPPROTO_UDP, 1000, [2]string{service, node}, [2]string{node, service})
					}
				}
			})
		}()
		if err := errors.Join(New(Config{}).Apply(t.Context(), want), <-late); err != nil {
			return err
		}
		left, err := listed(unix.AF_INET)
		if err != nil {
			return err
		}
		var ports []uint16
		for _, e := range left {
			ports = append(ports, max(e.forward.src.Port(), e.forward.dst.Port()))
		}
		slices.Sort(ports)
		if !slices.Equal(ports, []uint16{1001, 1002, 1003, 1005}) {
			t.Errorf("left: %v", ports)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestEgress checks that entries translated to an egress address are deleted when another node has
// the address. Others stay: those of other addresses, connections of the address itself, and those
// in Open vSwitch's zones.
func TestEgress(t *testing.T) {
	ns := insidetest.NetNS(t)
	target := New(Config{})
	here, gone, gone6 := netip.MustParseAddr("10.10.10.33"), netip.MustParseAddr("10.10.10.34"),
		netip.MustParseAddr("fd10::34")
	if err := inside.Do(ns, func() error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for i, e := range []struct {
			pod, server string
			as          netip.Addr
		}{
			{"10.244.1.3", "10.10.10.100", gone}, {"10.244.1.3", "10.10.10.100", here},
			{"10.10.10.34", "10.10.10.100", gone},
			{"fd00:10:244:1::3", "fd10::64", gone6},
		} {
			family, port := inet(e.as), uint16(1000+i)
			pod, server := netip.MustParseAddr(e.pod).AsSlice(), netip.MustParseAddr(e.server).AsSlice()
			if err := netlink.ConntrackCreate(netlink.ConntrackTable, family, &netlink.ConntrackFlow{
				FamilyType: uint8(family), TimeOut: 100, ProtoInfo: &netlink.ProtoInfoTCP{State: 8}, // TIME_WAIT
				Forward: netlink.IPTuple{Protocol: unix.IPPROTO_TCP, SrcIP: pod, SrcPort: port, DstIP: server,
					DstPort: 80},
				Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_TCP, SrcIP: server, SrcPort: 80, DstIP: e.as.AsSlice(),
					DstPort: port},
			}); err != nil {
				return fmt.Errorf("entry %d: %w", i, err)
			}
		}
		have, err := target.Read(t.Context())
		if err != nil {
			return err
		}
		elsewhere := conn.Egress{Elsewhere: true}
		want := conn.State{Egress: map[netip.Addr]conn.Egress{here: {}, gone: elsewhere, gone6: elsewhere}}
		d := conn.Diff(want, have)
		if !reflect.DeepEqual(d, conn.Delta{LeftEgress: []netip.Addr{gone, gone6}}) {
			t.Errorf("to do: %+v", d)
		}
		if err := target.Apply(t.Context(), d); err != nil {
			return err
		}
		if have, err = target.Read(t.Context()); err != nil {
			return err
		}
		if !reflect.DeepEqual(have, conn.State{Egress: map[netip.Addr]conn.Egress{here: {}}}) {
			t.Errorf("left: %+v", have)
		}
		four, err4 := listed(unix.AF_INET)
		six, err6 := listed(unix.AF_INET6)
		if len(four) != 2 || len(six) != 0 {
			t.Errorf("%d and %d entries are left, want 2 and none", len(four), len(six))
		}
		for _, f := range four {
			f.zone = 7 // package netlink cannot make such an entry
			if a, ok := sourceOf(&f); ok {
				t.Errorf("%s in a zone of Open vSwitch counts", a)
			}
			if a, ok := seenAs(&f); !ok || a != f.forward.src.Addr() {
				t.Errorf("in a zone of Open vSwitch, what begins with %s is seen as %s, %t", f.forward.src, a, ok)
			}
		}
		return errors.Join(err4, err6)
	}); err != nil {
		t.Fatal(err)
	}
}
