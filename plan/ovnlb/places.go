package ovnlb

import (
	"cmp"
	"net/netip"
	"slices"

	"hairpin/plan/stablehash"
)

// Open vSwitch keeps a client with a place in a load balancer's list, not with an endpoint, and
// gives all places the same number of clients. So with session affinity the list has many more
// places than endpoints, and always the same number, until endpoints are more. (With 512 places,
// the OpenFlow message of an IPv6 list would come near to the 64 kB that it may have.)
const (
	fewPlaces  = 128
	manyPlaces = 256
)

// affinitySlots assigns endpoints to slots, so that the only clients that move are those of a
// removed endpoint, and those that get one that came: of each place, endpoints have an order by
// hash, and the first one has it (rendezvous hashing). But first every endpoint gets one place. A
// longer list than there are places stays as it is.
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
