package node

import (
	"math"
	"net/netip"
	"slices"

	"hairpin/cluster"
)

// HasExternalPatch reports whether the gateway bridge sends external clients' packets to
// claims.ServiceBridge: those from its uplink (HasExternalClients), or those that eBPF programs
// redirect at other links.
func (e *Env) HasExternalPatch() bool {
	return e.Engine.ServiceBridge && (!e.Mode.ClientsByHost || len(e.Redirect) > 0)
}

// HasExternalClients reports whether the gateway bridge sends external clients' packets to
// claims.ServiceBridge that arrive at its uplink.
func (e *Env) HasExternalClients() bool {
	return e.Engine.ServiceBridge && e.Mode.Uplink && !e.Mode.ClientsByHost
}

// NodePortAddresses returns the host's addresses with NodePorts.
func (e *Env) NodePortAddresses(s *Stack) []netip.Addr {
	list := append([]netip.Addr{s.Address.Addr()}, s.Secondary...)
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.DeleteFunc(list, func(a netip.Addr) bool { return !e.nodePortOn(a) })
}

func (e *Env) nodePortOn(a netip.Addr) bool {
	on := &e.Config.Gateway.NodePorts
	return on.All() || on.Primary && slices.Contains(e.Node.Addresses, a) || InRanges(on.Ranges, a)
}

// LoopbackPorts reports whether NodePorts are on the loopback address of a family.
func (e *Env) LoopbackPorts(f cluster.Family) bool {
	return e.Config.Gateway.NodePort && e.nodePortOn(Vocab(f).Localhost)
}

// PodConnectionLimit returns the maximum number of connections of a pods' conntrack zone, or 0 for
// no limit. The kernel keeps the connections of a limited zone in a list, whose cost is not known
// (docs/operations/sizing.md).
func (e *Env) PodConnectionLimit() int {
	if !e.Node.Gateway.Userspace {
		return 0
	}
	return e.Config.Conntrack.PodsMax
}

// ServiceHostMAC returns the MAC of claims.ServiceHost, the same on every node.
func (e *Env) ServiceHostMAC() cluster.MAC { return cluster.MACFor(e.Stacks[0].MasqHost) }

// ServiceHostMTU returns the MTU of claims.ServiceHost. The port takes packets of external clients
// to endpoints on hosts, as long as their links allow. The kernel datapath drops longer packets
// than the port's MTU without an ICMP error. Packets of the host have the MTU of its routes and, if
// it only forwards IPv6, that of a sysctl. The userspace datapath does not check the MTU, but its
// buffers have that length.
func (e *Env) ServiceHostMTU() int {
	if e.Node.Gateway.Userspace {
		return e.ClientMTU()
	}
	return math.MaxUint16
}

// ClientMTU returns the MTU of the host's route to clients of its endpoints: that of the links by
// which clients come. With the pods' MTU, which is smaller, the host would report "packet too big"
// to another host when it forwards that host's reply. The other host would then use the pods' MTU
// for all its packets to this host.
func (e *Env) ClientMTU() int {
	mtu := e.Node.Gateway.MTU
	for i := range e.Node.Links {
		if l := &e.Node.Links[i]; l.MTU != 0 && slices.Contains(e.Redirect, l.Name) {
			mtu = min(mtu, l.MTU)
		}
	}
	return max(mtu, e.Config.MTU)
}
