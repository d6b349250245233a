package cluster

import (
	"cmp"
	"net/netip"
	"slices"
)

// Network is a network to which a host is connected.
type Network struct {
	Prefix  netip.Prefix
	Primary bool      // the gateway bridge is connected to it
	Link    *HostLink // else the link that is; nil if the node's links are not known
}

// Networks returns the networks of a host, the longest prefix first; of equal prefixes, that of the
// gateway bridge first. An address with full prefix length has no network.
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

// NetworkOf returns the first network in list that contains an address.
func NetworkOf(list []Network, a netip.Addr) (Network, bool) {
	for _, n := range list {
		if n.Prefix.Contains(a) {
			return n, true
		}
	}
	return Network{}, false
}
