package wire

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"hairpin/cluster"
)

// TestClaims: the package parses its own announcements, and the filter passes nothing else.
func TestClaims(t *testing.T) {
	vm, err := bpf.NewVM(neighborFilter())
	if err != nil {
		t.Fatal(err)
	}
	mac := cluster.MAC{2, 0, 0, 0, 0, 7}
	for _, a := range []netip.Addr{netip.MustParseAddr("172.18.0.33"), netip.MustParseAddr("fc00::33")} {
		frame := announcement(mac, a)
		if n, err := vm.Run(frame); err != nil || n == 0 {
			t.Errorf("%s: the filter drops it: %v", a, err)
		}
		if c, ok := parseClaim(frame); !ok || c.Address != a || c.MAC != mac || c.Solicited {
			t.Errorf("%s: %+v", a, c)
		}
		if c, ok := parseClaim(replyFor(mac, a)); !ok || c.Address != a || c.MAC != mac || !c.Solicited {
			t.Errorf("%s: a reply is %+v", a, c)
		}
		for short := range frame {
			parseClaim(frame[:short]) // must not panic
		}
	}
	asks := solicitation(mac, netip.MustParseAddr("fc00::1"), netip.MustParseAddr("fc00::33"))
	if n, err := vm.Run(asks); err != nil || n != 0 {
		t.Errorf("a solicitation passes: %v", err)
	}
	if n, err := vm.Run(ethernet(cluster.MAC{1, 2, 3, 4, 5, 6}, mac, 0x0800)); err != nil || n != 0 {
		t.Errorf("IPv4 passes: %v", err)
	}
}

// replyFor returns what a machine with an address sends to another one that requests its MAC.
func replyFor(mac cluster.MAC, a netip.Addr) []byte {
	to := cluster.MAC{2, 0, 0, 0, 0, 8}
	if a.Is4() {
		return arp(reply, to, mac, a, to, netip.MustParseAddr("172.18.0.8"))
	}
	return neighborMessage(to, mac, a, netip.MustParseAddr("fc00::8"), advertisement, override|solicited, a)
}

// FuzzClaim: any frame of a neighbor is a claim of an address of the frame's family, or none.
func FuzzClaim(f *testing.F) {
	mac := cluster.MAC{2, 1, 2, 3, 4, 5}
	for _, a := range []string{"172.18.0.33", "fc00::33"} {
		f.Add(announcement(mac, netip.MustParseAddr(a)))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, frame []byte) {
		c, ok := parseClaim(frame)
		if !ok {
			return
		}
		arp := binary.BigEndian.Uint16(frame[12:]) == unix.ETH_P_ARP
		if !c.Address.IsValid() || c.Address.Is4() != arp {
			t.Errorf("%x: %+v", frame, c)
		}
	})
}
