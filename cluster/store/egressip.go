package store

import (
	"net/netip"
	"reflect"
	"slices"

	"hairpin/cluster"
)

// markClaimed records the addresses of EgressIPs at which Services are served, and which nodes
// announce their addresses by BGP. The guard has already removed those of younger Services.
func (s *Store) markClaimed(egressIPs []*cluster.EgressIP, frontends []*cluster.Frontend) []*cluster.EgressIP {
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
	list := egressIPs
	for i, e := range egressIPs {
		var claims []cluster.Claim
		for _, a := range e.Addresses {
			if o, ok := by[a]; ok {
				claims = append(claims, cluster.Claim{Address: a, By: o})
			}
		}
		if len(claims)+len(routed) == 0 {
			continue
		}
		if &list[0] == &egressIPs[0] {
			list = slices.Clone(egressIPs)
		}
		out := *e
		out.Claimed, out.Routed = claims, routed
		list[i] = &out
	}
	if !slices.EqualFunc(s.claimed, list,
		func(e, f *cluster.EgressIP) bool {
			return e == f || len(f.Claimed)+len(f.Routed) > 0 && reflect.DeepEqual(e, f)
		}) {
		s.claimed = list
	}
	return s.claimed
}
