package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"hairpin/cluster"
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
