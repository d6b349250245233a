package service

import (
	"net/netip"
	"slices"

	"hairpin/plan/admission"
	"hairpin/plan/node"
)

// RestrictsSources reports whether only the Service's source ranges may use an address and port.
// They restrict the Service port at load balancer addresses, except those in spec.externalIPs.
func (x *Front) RestrictsSources(v netip.AddrPort) bool {
	return v.Port() == x.Port && restrictsSources(x.Frontend, v.Addr())
}

func restrictsSources(f *admission.Frontend, a netip.Addr) bool {
	return f.Restricted && slices.Contains(f.LoadBalancerIPs, a) && !slices.Contains(f.ExternalIPs, a)
}

// RestrictedPorts returns the restricted addresses and ports of some Frontends, sorted.
func RestrictedPorts(list []*admission.Frontend) []node.RestrictedPort {
	var out []node.RestrictedPort
	for _, f := range list {
		for _, a := range f.LoadBalancerIPs {
			if restrictsSources(f, a) {
				out = append(out, node.RestrictedPort{Addr: a, Protocol: f.Protocol, Port: f.Port})
			}
		}
	}
	slices.SortFunc(out, node.RestrictedPort.Compare)
	return slices.Compact(out)
}
