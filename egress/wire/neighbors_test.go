package wire

import (
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/net/bpf"

	"hairpin/cluster"
)

// TestNeighborsExpected: packets to an address that moves to the node are examined, unless it is a
// load balancer's: its move lasts for minutes, and all of its clients' packets would be. They are
// examined on the node's present uplink.
func TestNeighborsExpected(t *testing.T) {
	n := NewNeighbors(slog.New(slog.NewTextHandler(io.Discard, nil)))
	moving := func(a, to string) *cluster.EgressIP {
		return &cluster.EgressIP{Moving: []cluster.Move{{Address: netip.MustParseAddr(a), From: "c", To: to}}}
	}
	announced := moving("172.18.0.55", "a")
	announced.Service = &cluster.EgressService{Announced: &cluster.Announcement{}}
	g := cluster.Gateway{Uplink: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("172.18.0.3/16")}}
	list := []*cluster.EgressIP{announced, moving("172.18.0.33", "a"), moving("172.18.0.34", "b"),
		moving("10.0.0.1", "a")}
	n.Expect(g, "a", list)
	if got := n.want.Load().addresses; !slices.Equal(got, []netip.Addr{netip.MustParseAddr("172.18.0.33")}) {
		t.Error(got)
	}
	g.Uplink = "eth1"
	n.Expect(g, "a", list)
	if got := n.want.Load().gateway.Uplink; got != "eth1" {
		t.Errorf("the uplink is another one, and %s is watched", got)
	}
}

// The filter passes packets to the addresses, and the source is parsed from these.
func TestNeighborsHeard(t *testing.T) {
	a, b := netip.MustParseAddr("172.18.0.33"), netip.MustParseAddr("fc00::33")
	vm, err := bpf.NewVM(toAddresses([]netip.Addr{a, b}))
	if err != nil {
		t.Fatal(err)
	}
	from4, from6 := netip.MustParseAddr("172.18.0.100"), netip.MustParseAddr("fc00::64")
	for _, c := range []struct {
		src, dst netip.Addr
		heard    bool
	}{
		{from4, a, true}, {from6, b, true}, {from4, netip.MustParseAddr("172.18.0.34"), false},
		{from6, netip.MustParseAddr("fc00::1:33"), false},
		{from6, netip.MustParseAddr("fc00::"), false}, {from4, from4, false},
	} {
		frame := make([]byte, 14, 60)
		src, dst := c.src.AsSlice(), c.dst.AsSlice()
		if c.src.Is4() {
			frame[12] = 8
			frame = append(frame, make([]byte, 12)...)
		} else {
			frame[12], frame[13] = 0x86, 0xdd
			frame = append(frame, make([]byte, 8)...)
		}
		frame = append(append(frame, src...), dst...)
		n, err := vm.Run(frame)
		if err != nil || n > 0 != c.heard {
			t.Errorf("%s to %s: %d bytes, %v", c.src, c.dst, n, err)
		}
		if got := sourceAddress(frame); got != c.src {
			t.Errorf("the source %s is read as %s", c.src, got)
		}
		for i := range frame {
			sourceAddress(frame[:i]) // must not panic
		}
	}
}
