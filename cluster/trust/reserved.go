package trust

import (
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"

	"hairpin/cluster"
)

// Reserved knows the addresses of LoadBalancerPools that no Service can get.
type Reserved struct {
	guard *Guard
	// The reasons, by address. configured has the next hops of the configuration, and the API
	// server. reported has the addresses of nodes and of machines beside them, as nodes report
	// them. A report may be wrong, so a Service that has the address keeps it.
	configured, reported map[netip.Addr]string
	all                  []netip.Addr // of both, and of EgressIPs
}

// ReservedIn returns the reserved addresses of a cluster.
func ReservedIn(s *cluster.Snapshot) *Reserved {
	vetted := Vet(s.Nodes, "", &s.Config)
	var egressIPs []*cluster.EgressIP
	for _, e := range s.EgressIPs {
		if e.Service == nil {
			named := *e // without the allocated ones, which the allocator knows
			named.Addresses = e.Addresses[:len(e.Addresses)-len(e.Allocated)]
			egressIPs = append(egressIPs, &named)
		}
	}
	r := &Reserved{guard: NewGuard(0, &s.Config, vetted, egressIPs, nil), configured: map[netip.Addr]string{},
		reported: map[netip.Addr]string{}}
	var api []*cluster.Frontend
	for _, f := range s.Frontends {
		if f.Owner == KubernetesService {
			api = append(api, f)
		}
	}
	r.guard.ReserveAPI(api)
	for _, a := range s.Config.Gateway.NextHops {
		r.configured[a] = fmt.Sprintf("%s is the default gateway ([gateway] next-hop)", a)
	}
	for a := range r.guard.api {
		r.configured[a.Addr()] = fmt.Sprintf("%s is the API server's address", a.Addr())
	}
	for _, n := range s.Nodes {
		r.report(n, &s.Config)
	}
	for a, name := range vetted.Hosts.All() {
		r.reported[a] = fmt.Sprintf("%s is an address of node %s", a, name)
	}
	all := map[netip.Addr]bool{}
	for _, list := range []iter.Seq[netip.Addr]{
		maps.Keys(r.configured), maps.Keys(r.reported), maps.Keys(r.guard.egress),
	} {
		for a := range list {
			all[a] = true
		}
	}
	r.all = slices.Collect(maps.Keys(all))
	return r
}

// report adds the addresses that a node reports.
func (r *Reserved) report(n *cluster.Node, config *cluster.Config) {
	for _, x := range n.Networks(config) {
		if ends := cluster.RangeOf(x.Prefix); x.Prefix.Addr().Is4() && x.Prefix.Bits() < 31 {
			r.reported[ends.First] = fmt.Sprintf("%s is the address of the network %s", ends.First, x.Prefix)
			r.reported[ends.Last] = fmt.Sprintf("%s is the broadcast address of %s", ends.Last, x.Prefix)
		} else if x.Prefix.Addr().Is6() { // RFC 4291, 2.6.1
			r.reported[ends.First] = fmt.Sprintf("%s is the routers' anycast address of %s", ends.First, x.Prefix)
		}
	}
	hop := func(a netip.Addr) {
		if a.IsValid() {
			r.reported[a] = fmt.Sprintf("%s is a next hop of node %s", a, n.Name)
		}
	}
	for a := range n.Gateway.NextHopMACs {
		hop(a)
	}
	for i := range n.Links {
		for _, x := range n.Links[i].Routes {
			hop(x.Via)
		}
	}
	for _, a := range n.Gateway.NextHops {
		r.reported[a] = fmt.Sprintf("%s is the default gateway of node %s", a, n.Name)
	}
	for _, a := range n.Addresses {
		r.reported[a] = fmt.Sprintf("%s is an address of node %s", a, n.Name)
	}
}

// For returns why a Service that was created at a time cannot get an address; empty if it can. If
// the Service has the address already, reports of nodes do not count.
func (r *Reserved) For(a netip.Addr, created time.Time, has bool) string {
	if why := r.configured[a]; why != "" {
		return why
	}
	if why := r.reported[a]; why != "" && !has {
		return why
	}
	if e := r.guard.egress[a]; e != nil && !has {
		return fmt.Sprintf("%s is an address of %s", a, e.Owner)
	}
	return r.guard.external(a, 0, r.guard.loadBalancerIPs(), created)
}

// NodeWith returns the name of the node that has an address, or "".
func (r *Reserved) NodeWith(a netip.Addr) string { return r.guard.vetted.Hosts.At(a) }

// ForPort returns why a Service that was created at a time cannot have a port at an address of a
// node; empty if it can.
func (r *Reserved) ForPort(a netip.Addr, port uint16, created time.Time) string {
	return r.guard.external(a, port, r.guard.loadBalancerIPs(), created)
}

// In returns how many addresses of a range are reserved.
func (r *Reserved) In(x cluster.AddressRange) (n int64) {
	for _, a := range r.all {
		if x.Contains(a) {
			n++
		}
	}
	return n
}
