package gateway

import (
	"hairpin/cluster"
	"hairpin/datapath/host"
)

// Bootstrap returns the host state that a node needs while the cluster is not known: its gateway
// bridge and, in mode detached, the bridge's addresses. Everything else there is the machine's own.
func Bootstrap(g cluster.Gateway) host.State {
	s := host.State{
		Links:     map[string]host.Link{g.Bridge: {Name: g.Bridge}},
		Addresses: map[host.AddressKey]host.Address{},
	}
	if cluster.ModeNamed(g.Mode).Uplink {
		return s
	}
	for _, p := range g.Addresses {
		k := host.AddressKey{Link: g.Bridge, Prefix: p}
		s.Addresses[k] = host.Address{AddressKey: k}
	}
	return s
}
