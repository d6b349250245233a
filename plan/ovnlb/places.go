package ovnlb

import (
	"cmp"
	"net/netip"
	"slices"

	"hairpin/plan/stablehash"
)

// Open vSwitch assigns a client to a slot of a load balancer's list, not to an endpoint, and gives
// all slots the same number of clients. So with session affinity the list has many more slots than
// endpoints. Its length stays the same until there are more endpoints. (With 512 slots, the
// OpenFlow message of an IPv6 list would come near its limit of 64 kB.)
const (
	fewPlaces  = 128
	manyPlaces = 256
)

// affinitySlots assigns endpoints to slots by rendezvous hashing. Only clients of a removed
// endpoint, and those that a new endpoint gets, move. Each slot orders the endpoints by hash and
// takes the first, but every endpoint gets one slot before that. A list longer than the number of
// slots stays as it is.
func affinitySlots(list []netip.AddrPort) []netip.AddrPort {
	count := fewPlaces
	if len(list) > fewPlaces {
		count = manyPlaces
	}
	if len(list) < 2 || len(list) > count {
		return list
	}
	type claim struct {
		score uint64
		place int
		end   int // of list
	}
	claims := make([]claim, 0, len(list)*count)
	for end, a := range list {
		h := stablehash.AddrPort(a)
		for place := range count {
			claims = append(claims, claim{stablehash.Nth(h, place), place, end})
		}
	}
	slices.SortFunc(claims, func(a, b claim) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.place, b.place), list[a.end].Compare(list[b.end]))
	})
	out, seated := make([]netip.AddrPort, count), make([]bool, len(list))
	for _, c := range claims {
		if !out[c.place].IsValid() && !seated[c.end] {
			out[c.place], seated[c.end] = list[c.end], true
		}
	}
	for _, c := range claims {
		if !out[c.place].IsValid() {
			out[c.place] = list[c.end]
		}
	}
	return out
}
