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

// Targets returns the nodes to probe, and their addresses. On a node it uses the management port,
// so that replies use the path of pods' packets, as in OVN-Kubernetes; elsewhere the Node's
// InternalIP.
func Targets(s *cluster.Snapshot, mandatory func(*cluster.Node) bool) map[string]netip.Addr {
	_, err := netlink.LinkByName(claims.ManagementPort)
	overlay, own := err == nil, ownAddresses()
	list, more := map[string]netip.Addr{}, witnesses
	for _, required := range []bool{true, false} {
		for _, n := range s.Nodes {
			a := probeAddress(n, overlay)
			if mandatory(n) != required || !a.IsValid() || own[a] || !required && (more == 0 || !n.Egress.Ready) {
				continue
			}
			list[n.Name] = a
			if !required {
				more--
			}
		}
	}
	return list
}

func probeAddress(n *cluster.Node, overlay bool) netip.Addr {
	if overlay && n.ID != 0 && len(n.PodCIDRs) > 0 {
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
