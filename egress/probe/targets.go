package probe

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/plan/node"
)

// witnesses is the number of other nodes that are probed, to detect isolation.
const witnesses = 8

// Targets returns the nodes to probe, and their addresses: the mandatory ones and some witnesses.
// On a node it uses the management port, so that replies use the path of pods' packets, as in
// OVN-Kubernetes; elsewhere the Node's InternalIP.
func Targets(s *cluster.Snapshot, mandatory func(*cluster.Node) bool) map[string]netip.Addr {
	_, err := netlink.LinkByName(claims.ManagementPort)
	onNode, own, list := err == nil, ownAddresses(), map[string]netip.Addr{}
	add := func(n *cluster.Node) (added bool) {
		a := probeAddress(n, onNode)
		if !a.IsValid() || own[a] {
			return false
		}
		list[n.Name] = a
		return true
	}
	left := witnesses
	for _, n := range s.Nodes {
		if mandatory(n) {
			add(n)
		} else if left > 0 && n.Egress.Ready && add(n) {
			left--
		}
	}
	return list
}

// probeAddress returns the address at which a prober probes a node; invalid if there is none.
func probeAddress(n *cluster.Node, onNode bool) netip.Addr {
	if onNode && n.ID != 0 && len(n.PodCIDRs) > 0 {
		return node.ManagementAddress(n.PodCIDRs[0])
	}
	if len(n.Addresses) > 0 {
		return n.Addresses[0]
	}
	return netip.Addr{}
}

// ownAddresses returns the addresses of this machine, which need not probe itself.
func ownAddresses() map[netip.Addr]bool {
	own := map[netip.Addr]bool{}
	list, err := net.InterfaceAddrs()
	if err != nil {
		return own
	}
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			if x, ok := netip.AddrFromSlice(n.IP); ok {
				own[x.Unmap()] = true
			}
		}
	}
	return own
}
