package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/apply"
	"hairpin/apply/inside"
	"hairpin/apply/inside/insidetest"
	"hairpin/datapath/conn"
)

// A listing of Open vSwitch 3.5: only translated connections over UDP count.
const listing = `udp,orig=(src=10.244.1.4,dst=10.96.1.10,sport=40000,dport=80),reply=(src=10.244.3.3,dst=10.244.1.4,sport=8080,dport=40000),zone=7,mark=2
udp,orig=(src=fd69::2,dst=fd00:10:96::110,sport=40001,dport=80),reply=(src=fd00:10:244:3::3,dst=fd69::2,sport=8080,dport=40001),zone=12,mark=10
udp,orig=(src=10.244.1.4,dst=10.244.3.3,sport=40000,dport=8080),reply=(src=10.244.3.3,dst=10.244.1.4,sport=8080,dport=40000),zone=7
udp,orig=(src=169.254.169.2,dst=10.244.3.3,sport=1,dport=8080),reply=(src=10.244.3.3,dst=100.64.0.2,sport=8080,dport=1)
tcp,orig=(src=10.244.1.4,dst=10.96.1.10,sport=40000,dport=80),reply=(src=10.244.3.3,dst=10.244.1.4,sport=8080,dport=40000),zone=7,protoinfo=(state=ESTABLISHED)
icmp,orig=(src=10.244.1.4,dst=10.244.1.3,id=1,type=8,code=0),reply=(src=10.244.1.3,dst=10.244.1.4,id=1,type=0,code=0)
`

func TestReadDump(t *testing.T) {
	list := readDump(listing)
	var words [][]string
	for i := range list {
		words = append(words, list[i].words())
	}
	want := [][]string{
		{"zone=7", "ct_nw_src=10.244.1.4,ct_nw_dst=10.96.1.10,ct_nw_proto=17,ct_tp_src=40000,ct_tp_dst=80"},
		{"zone=12", "ct_ipv6_src=fd69::2,ct_ipv6_dst=fd00:10:96::110,ct_nw_proto=17,ct_tp_src=40001,ct_tp_dst=80"},
	}
	if !reflect.DeepEqual(words, want) {
		t.Errorf("entries %q\nwant %q", words, want)
	}
}

// The kernel's own conntrack: of all zones, only entries to the endpoint that is gone end.
func TestKernel(t *testing.T) {
	ns := insidetest.NetNS(t)
	at := netip.MustParseAddrPort
	vip, a, b := at("10.96.0.10:53"), at("10.244.1.3:53"), at("10.244.2.3:53")
	var ended [][]string
	target := New(Config{
		Own:  func(context.Context) (bool, error) { return true, nil },
		List: func(context.Context) (string, error) { return listing, nil },
		End:  func(_ context.Context, entry ...string) error { ended = append(ended, entry); return nil },
	})
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
		if !errors.Is(err, apply.ErrUnread) {
			return fmt.Errorf("what Open vSwitch has was not left alone: %w", err)
		}
		if live := have[vip].Live; !reflect.DeepEqual(live, []netip.AddrPort{a, b}) {
			t.Errorf("found %v", live)
		}
		have[at("10.96.1.10:80")] = conn.Targets{Live: []netip.AddrPort{at("10.244.3.3:8080")}} // wanted before
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
	if want := [][]string{readDump(listing)[0].words()}; !reflect.DeepEqual(ended, want) {
		t.Errorf("ended in the switch: %q, want %q", ended, want)
	}
}
