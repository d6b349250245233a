package plan

import (
	"hairpin/cluster"
	"hairpin/datapath/host"
)

// Bootstrap is the machine's own network on its gateway bridge, as it was found: what a node must have while the
// cluster is not known. All of it is borrowed.
func Bootstrap(g cluster.Gateway) host.State {
	s := host.State{
		Links:     map[string]host.Link{g.Bridge: {Name: g.Bridge}},
		Addresses: map[host.AddressKey]host.Address{},
		Routes:    map[host.RouteKey]host.Route{},
	}
	for _, p := range g.Addresses {
		k := host.AddressKey{Link: g.Bridge, Prefix: p}
		s.Addresses[k] = host.Address{AddressKey: k, Borrowed: true}
	}
	if !cluster.ModeNamed(g.Mode).Uplink { // the machine's routes are not by the bridge
		return s
	}
	for _, a := range g.NextHops {
		k := host.RouteKey{Table: mainTable, Prefix: everything(cluster.FamilyOf(a))}
		if _, twice := s.Routes[k]; twice {
			continue // as in borrowed
		}
		s.Routes[k] = host.Route{RouteKey: k, Link: g.Bridge, Via: a, Borrowed: true}
	}
	return s
}
