package service

import (
	"net/netip"
	"slices"

	"hairpin/plan/admission"
	"hairpin/plan/node"
)

// RestrictsSources reports whether only the Service's source ranges may use an address and port.
// That holds for load balancer addresses, but not for external IPs, and for NodePorts only where
// the number is that of the Service port.
func (x *Front) RestrictsSources(v netip.AddrPort) bool {
	return x.Restricted && v.Port() == x.Port && slices.Contains(x.LoadBalancerIPs, v.Addr()) &&
		!slices.Contains(x.ExternalIPs, v.Addr())
}

// RestrictedPorts returns the restricted addresses and ports of some Frontends, sorted.
func RestrictedPorts(list []*admission.Frontend) []node.RestrictedPort {
	var out []node.RestrictedPort
	for _, f := range list {
		if !f.Restricted {
			continue
		}
		x := Front{Frontend: f}
		for _, a := range f.LoadBalancerIPs {
			if x.RestrictsSources(netip.AddrPortFrom(a, f.Port)) {
				out = append(out, node.RestrictedPort{Addr: a, Protocol: f.Protocol, Port: f.Port})
			}
		}
	}
	slices.SortFunc(out, node.RestrictedPort.Compare)
	return slices.Compact(out)
}
