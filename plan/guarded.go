package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/nb"
)

// guarded is what loadBalancerSourceRanges restrict: one port of a load balancer's address. Other ports of that address
// belong to NodePorts, to other Services, to the node or to another machine.
type guarded struct {
	addr     netip.Addr
	protocol cluster.Protocol
	port     uint16
}

func (g guarded) compare(h guarded) int {
	return cmp.Or(cmp.Compare(g.protocol, h.protocol), cmp.Compare(g.port, h.port), g.addr.Compare(h.addr))
}

// guards reports whether only the Service's source ranges may use an address and port: those of a load balancer, but not
// external IPs, and NodePorts only where the number is that of the Service port.
func (x *front) guards(v netip.AddrPort) bool {
	return x.Restricted && v.Port() == x.Port && slices.Contains(x.LoadBalancerIPs, v.Addr()) &&
		!slices.Contains(x.ExternalIPs, v.Addr())
}

// guardedBy returns what some Frontends guard, sorted.
func guardedBy(list []*cluster.Frontend) []guarded {
	var out []guarded
	for _, f := range list {
		if !f.Restricted {
			continue
		}
		x := front{Frontend: f}
		for _, a := range f.LoadBalancerIPs {
			if x.guards(netip.AddrPortFrom(a, f.Port)) {
				out = append(out, guarded{a, f.Protocol, f.Port})
			}
		}
	}
	slices.SortFunc(out, guarded.compare)
	return slices.Compact(out)
}

// toGuarded routes pods to their host for guarded addresses, which have no load balancer on the node switch: the host
// checks the source. It adds an address set and a policy for each port.
func (z *zone) toGuarded(s *Stack) {
	if z.Node.Gateway.OpenFlow {
		return
	}
	list := slices.DeleteFunc(slices.Clone(z.Guarded), func(g guarded) bool { return cluster.FamilyOf(g.addr) != s.Family })
	for len(list) > 0 {
		first, n := list[0], 1
		for n < len(list) && list[n].protocol == first.protocol && list[n].port == first.port {
			n++
		}
		set := &nb.AddressSet{
			Name:  fmt.Sprintf("guarded_%s_%s_%d", words(s.Family).match, first.protocol, first.port),
			Owner: z.owner,
		}
		for _, g := range list[:n] {
			set.Addresses = append(set.Addresses, single(g.addr))
		}
		z.rows.Add(set)
		z.toHost(s, claims.PolicyServices, "$"+set.Name, fmt.Sprintf(" && %s.dst == %d", first.protocol, first.port))
		list = list[n:]
	}
}
