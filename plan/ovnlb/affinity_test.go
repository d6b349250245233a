package ovnlb

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
)

// A removed endpoint moves only its own clients, and an added one only its share of the others',
// whatever was added and removed before. Every endpoint has some clients.
func TestPlaces(t *testing.T) {
	var all []netip.AddrPort
	for i := range 100 {
		all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i * 7), byte(i + 3)}), 8080))
	}
	for _, n := range []int{2, 3, 5, 10, 20, 40, 100} {
		list := all[:n]
		before := affinitySlots(list)
		shares := map[netip.AddrPort]int{}
		for _, a := range before {
			shares[a]++
		}
		if len(shares) != n {
			t.Errorf("%d of %d endpoints have places", len(shares), n)
		}
		moved, total := 0, 0
		for gone := range list {
			after := affinitySlots(slices.Delete(slices.Clone(list), gone, gone+1))
			if len(after) == 1 {
				continue // a list of one has one slot
			}
			for i, a := range before {
				if a != list[gone] {
					total++
					if after[i] != a {
						moved++
					}
				}
			}
		}
		if moved*50 > total {
			t.Errorf("one of %d endpoints goes, and %d of %d places of others change", n, moved, total)
		}
		counts := slices.Collect(maps.Values(shares))
		t.Logf("%d endpoints have %d to %d of %d places; of %d places of others %d move when one goes", n,
			slices.Min(counts), slices.Max(counts), len(before), total, moved)
	}
	reversed := slices.Clone(all)
	slices.Reverse(reversed)
	if !slices.Equal(affinitySlots(all), affinitySlots(reversed)) {
		t.Error("the order of endpoints matters")
	}
	var many []netip.AddrPort
	for i := range 300 {
		many = append(many, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 3}), 80))
	}
	if got := affinitySlots(many); !slices.Equal(got, many) {
		t.Error("more endpoints than places do not stay as they are")
	}
}
