package view

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// A node may miss both the status that assigns its address to another node and the announcements of
// that node: while ovs-vswitchd was stopped, for example. It continues to answer for the address
// when it is back. A node may also have taken an address over from a node that was not dead. So
// agents solicit the addresses that they carry, as hosts do to detect duplicates (RFC 5227), if
// probes show that such a time may have been. A reply of another machine is a claim (OnClaim).
const (
	solicitEvery = time.Second
	solicitFor   = 10 * time.Second // after the last probe without a reply
	maxSolicited = 32               // at once
	// abandonTime is how long after its last claim another node has given up an address: four
	// requests and their replies were not all lost.
	abandonTime = 4 * solicitEvery
)

// Solicit returns the addresses to solicit now, and when to call it again; 0 if not before probes
// fail. Addresses that this node released are among them: the other node may abandon them.
func (v *View) Solicit(now time.Time) (list []netip.Addr, again time.Duration) {
	if v.out == nil {
		return nil, 0
	}
	for a := range v.released {
		list = append(list, a)
	}
	if v.prober.Off() || now.Sub(v.prober.Disturbed()) < solicitFor {
		for _, e := range v.out.EgressIPs {
			for _, a := range e.Assigned {
				if e.CarriedBy(v.node, a.Address) {
					list = append(list, a.Address)
				}
			}
		}
	}
	if len(list) == 0 {
		return nil, 0
	}
	if wait := v.nextSolicit.Sub(now); wait > 0 {
		return nil, wait
	}
	v.nextSolicit = now.Add(solicitEvery)
	slices.SortFunc(list, netip.Addr.Compare)
	list = slices.Compact(list)
	if n := len(list); n > maxSolicited {
		i, found := slices.BinarySearchFunc(list, v.lastSolicited, netip.Addr.Compare)
		if found {
			i++
		}
		list = slices.Concat(list[i:], list[:i])[:maxSolicited]
	}
	v.lastSolicited = list[len(list)-1]
	return list, solicitEvery
}

// Released returns the addresses that this node released because another node claims them.
func (v *View) Released() []netip.Addr { return slices.Collect(maps.Keys(v.released)) }
