package plan

import (
	"net/netip"
	"slices"
	"testing"
)

// An endpoint that goes moves few of the others to another place: Open vSwitch keeps a client with a place in the list.
func TestSteadyPlaces(t *testing.T) {
	var list []netip.AddrPort
	for i := range 40 {
		list = append(list, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 3}), 80))
	}
	before := steady(list)
	if got := slices.Clone(before); !slices.Equal(sortedPorts(got), list) {
		t.Fatalf("other endpoints: %v", got)
	}
	moved := 0
	for gone := range list {
		after := steady(slices.Delete(slices.Clone(list), gone, gone+1))
		for i, a := range after {
			if a != before[i] {
				moved++
			}
		}
	}
	// In the order of addresses it would be half of them.
	if average := float64(moved) / float64(len(list)); average > 6 {
		t.Errorf("one of %d endpoints goes, and %.1f places change", len(list), average)
	} else {
		t.Logf("%.1f places change", average)
	}
}
