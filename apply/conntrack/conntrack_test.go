package conntrack

import (
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/apply/inside"
	"hairpin/apply/inside/insidetest"
	"hairpin/datapath/conn"
)

// The kernel's own conntrack: of all zones, only entries to the endpoint that is gone end.
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
				Forward: netlink.IPTuple{Protocol: protocol, SrcIP: net.IPv4(10, 244, 1, 9), SrcPort: client, DstIP: vip.Addr().AsSlice(), DstPort: vip.Port()},
				Reverse: netlink.IPTuple{Protocol: protocol, SrcIP: to.Addr().AsSlice(), SrcPort: to.Port(), DstIP: net.IPv4(10, 244, 1, 9), DstPort: client},
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
		if live := have[vip].Live; !reflect.DeepEqual(live, []netip.AddrPort{a, b}) {
			t.Errorf("found %v", live)
		}
		want := conn.State{vip: {Live: []netip.AddrPort{b}}, at("10.96.1.10:80"): {Live: []netip.AddrPort{a}}}
		if err := target.Apply(t.Context(), conn.Diff(want, have)); err != nil {
			return err
		}
		left, err := list(unix.AF_INET)
		if err != nil {
			return err
		}
		if len(left) != 3 {
			t.Errorf("%d entries are left, want 3", len(left))
		}
		for _, f := range left {
			if p, ok := pairOf(f); ok && p.To == a {
				t.Errorf("an entry to %s is left", a)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
