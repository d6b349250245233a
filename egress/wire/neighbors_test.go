package wire

import (
	"net/netip"
	"testing"

	"golang.org/x/net/bpf"
)

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
		if got := sourceIn(frame); got != c.src {
			t.Errorf("the source %s is read as %s", c.src, got)
		}
		for i := range frame {
			sourceIn(frame[:i]) // must not panic
		}
	}
}
