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
	fewSlots  = 128
	manySlots = 256
)

// affinitySlots assigns endpoints to slots by rendezvous hashing. Only clients of a removed
// endpoint, and those that a new endpoint gets, move. Each slot orders the endpoints by hash and
// takes the first, but every endpoint gets one slot before that. A list longer than the number of
// slots stays as it is.
func affinitySlots(list []netip.AddrPort) []netip.AddrPort {
	count := fewSlots
	if len(list) > fewSlots {
		count = manySlots
	}
	if len(list) < 2 || len(list) > count {
		return list
	}
	type bid struct {
		score          uint64
		slot, endpoint int
	}
	bids := make([]bid, 0, len(list)*count)
	for i, a := range list {
		h := stablehash.AddrPort(a)
		for slot := range count {
			bids = append(bids, bid{stablehash.Nth(h, slot), slot, i})
		}
	}
	slices.SortFunc(bids, func(a, b bid) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.slot, b.slot),
			list[a.endpoint].Compare(list[b.endpoint]))
	})
	out, placed := make([]netip.AddrPort, count), make([]bool, len(list))
	for _, b := range bids {
		if !out[b.slot].IsValid() && !placed[b.endpoint] {
			out[b.slot], placed[b.endpoint] = list[b.endpoint], true
		}
	}
	for _, b := range bids {
		if !out[b.slot].IsValid() {
			out[b.slot] = list[b.endpoint]
		}
	}
	return out
}
