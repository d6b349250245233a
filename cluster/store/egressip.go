package store

import (
	"net/netip"
	"reflect"
	"slices"

	"hairpin/cluster"
)

// withClaimedAndRouted sets Claimed and Routed of EgressIPs. All Services that are served at an
// address of an EgressIP are older: the guard has removed the address from younger ones.
func (s *Store) withClaimedAndRouted(egressIPs []*cluster.EgressIP, frontends []*cluster.Frontend) []*cluster.EgressIP {
	by := map[netip.Addr]cluster.Owner{}
	var routed []cluster.Selector
	for _, a := range s.advertisements.all() {
		if a.EgressIP && !a.Rejected {
			routed = append(routed, a.Nodes)
		}
	}
	if len(egressIPs) > 0 {
		for _, f := range frontends {
			for _, a := range f.ExternalIPs {
				by[a] = f.Owner
			}
			for _, a := range f.LoadBalancerIPs {
				by[a] = f.Owner
			}
		}
	}
	var list []*cluster.EgressIP
	for _, e := range egressIPs {
		var claims []cluster.Claim
		for _, a := range e.Addresses {
			if o, ok := by[a]; ok {
				claims = append(claims, cluster.Claim{Address: a, By: o})
			}
		}
		if len(claims)+len(routed) > 0 {
			out := *e
			out.Claimed, out.Routed = claims, routed
			e = keepPointer(s.lastMarked, &out)
		}
		list = append(list, e)
	}
	if !slices.Equal(s.lastMarked, list) {
		s.lastMarked = list
	}
	return s.lastMarked
}

// keepPointer returns the element of a sorted list that is deeply equal to e; if there is none, e.
func keepPointer(last []*cluster.EgressIP, e *cluster.EgressIP) *cluster.EgressIP {
	i, found := slices.BinarySearchFunc(last, e, (*cluster.EgressIP).Compare)
	if found && reflect.DeepEqual(last[i], e) {
		return last[i]
	}
	return e
}
