package service

import (
	"net/netip"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/nft"
	"hairpin/plan/admission"
)

// ProxyPortsIn returns the proxy ports that Services have on a node, from the targets in its nft
// maps of external addresses. It omits elements without an Owner: the name of the Service was too
// long for a comment of nft.
func ProxyPortsIn(tables nft.State, c *cluster.Config) admission.ProxyPorts {
	proxy := map[netip.Addr]bool{}
	for _, subnet := range c.Gateway.MasqueradeSubnets {
		for _, offset := range []int{claims.MasqLocal, claims.MasqAll} {
			if a, err := cluster.Nth(subnet, offset); err == nil {
				proxy[a] = true
			}
		}
	}
	ports := admission.ProxyPorts{}
	if tables[nft.Inet] == nil {
		return ports
	}
	for _, maps := range servicesOf {
		for _, m := range []*nft.Map{maps.externals, maps.localIPs, maps.spreadIPs, maps.stickyIPs} {
			found := tables[nft.Inet].Maps[m.Name]
			if found == nil {
				continue
			}
			for e, to := range found.Elements.All() {
				if proxy[to.Addr.Addr()] && to.Owner != (cluster.Owner{}) {
					ports[admission.ServicePort{
						Owner: to.Owner, Family: cluster.FamilyOf(e.Addr), Protocol: e.Protocol, Port: e.Port,
					}] = to.Addr.Port()
				}
			}
		}
	}
	return ports
}
