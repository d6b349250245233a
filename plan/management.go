package plan

import (
	"net/netip"

	"hairpin/cluster"
)

// ManagementAddress is the host's address in a node's part of the pod network; invalid where the part has no room for it.
func ManagementAddress(podCIDR netip.Prefix) netip.Addr {
	a, err := cluster.Nth(podCIDR, managementPlace)
	if err != nil {
		return netip.Addr{}
	}
	return a
}
