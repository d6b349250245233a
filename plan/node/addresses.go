package node

import (
	"net/netip"
	"slices"

	"hairpin/cluster"
)

// SortedPrefixes sorts host addresses and removes duplicates.
func SortedPrefixes(list []netip.Prefix) []netip.Prefix {
	slices.SortFunc(list, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return slices.Compact(list)
}

// NodeAddresses returns the accepted addresses of all nodes in a family, and all of this node's.
func (e *Env) NodeAddresses(s *Stack) []netip.Prefix {
	var nodes []netip.Prefix
	add := func(a netip.Addr) {
		if cluster.FamilyOf(a) == s.Family && (a.IsGlobalUnicast() || cluster.HostOnly(a)) {
			nodes = append(nodes, HostPrefix(a))
		}
	}
	for a := range e.Vetted.Hosts.All() {
		add(a)
	}
	for _, p := range e.Node.HostAddresses {
		add(p.Addr())
	}
	return SortedPrefixes(nodes)
}

// OwnAddresses returns the addresses of the planned node's host in a family, that of the management
// port included.
func (e *Env) OwnAddresses(s *Stack) []netip.Addr {
	own := []netip.Addr{s.Management.Addr(), s.Node, s.Address.Addr()}
	for _, p := range e.Node.HostAddresses {
		if cluster.FamilyOf(p.Addr()) == s.Family {
			own = append(own, p.Addr())
		}
	}
	slices.SortFunc(own, netip.Addr.Compare)
	return slices.Compact(own)
}
