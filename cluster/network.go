package cluster

import (
	"cmp"
	"net/netip"
	"slices"
)

// Network is a network of a host, by its prefix.
type Network struct {
	Prefix  netip.Prefix
	Primary bool      // of the gateway bridge
	Link    *HostLink // of another network; nil if the node's links are not known
}

// Networks returns the networks of a host, the longest prefix first; of equal prefixes, that of the
// gateway bridge first. Single addresses have no network.
func (n *Node) Networks(config *Config) []Network {
	var list []Network
	add := func(p netip.Prefix, primary bool, link *HostLink) {
		if p.IsValid() && !p.IsSingleIP() {
			list = append(list, Network{p.Masked(), primary, link})
		}
	}
	if config.ModeOf(n).Uplink {
		for _, p := range n.Gateway.Addresses {
			add(p, true, nil)
		}
	}
	for i := range n.Links {
		for _, p := range n.Links[i].Addresses {
			add(p, false, &n.Links[i])
		}
	}
	if n.Links == nil {
		for _, p := range n.HostAddresses {
			if !HostOnly(p.Addr()) {
				add(p, false, nil)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b Network) int { return cmp.Compare(b.Prefix.Bits(), a.Prefix.Bits()) })
	return list
}

// NetworkOf returns the network in list that an address belongs to.
func NetworkOf(list []Network, a netip.Addr) (Network, bool) {
	for _, n := range list {
		if n.Prefix.Contains(a) {
			return n, true
		}
	}
	return Network{}, false
}
