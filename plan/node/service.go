package node

import (
	"math"
	"net/netip"
	"slices"

	"hairpin/cluster"
)

// HasExternalPatch reports whether the gateway bridge sends external clients' packets to
// claims.ServiceBridge.
func (e *Env) HasExternalPatch() bool {
	return e.Engine.ServiceBridge && (!e.Mode.ClientsByHost || len(e.Redirect) > 0)
}

// HasExternalClients reports whether the gateway bridge sends external clients' packets from its
// uplink to claims.ServiceBridge.
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

// HostMAC returns the MAC of claims.ServiceHost, the same on every node.
func (e *Env) HostMAC() cluster.MAC { return cluster.MACFor(e.Stacks[0].MasqHost) }

// HostMTU returns the MTU of claims.ServiceHost. The port takes packets of external clients to
// endpoints on hosts, as long as their links allow. The kernel datapath drops longer packets than
// the port's MTU without an ICMP error. Packets of the host have the MTU of its routes and, if it
// only forwards IPv6, that of a sysctl. The userspace datapath does not check the MTU, but its
// buffers have that length.
func (e *Env) HostMTU() int {
	if e.Node.Gateway.Userspace {
		return e.ClientMTU()
	}
	return math.MaxUint16
}

// ClientMTU returns the MTU of the host's route to clients of its endpoints: that of the clients'
// links. With the pods' MTU, the host would report that to other hosts whose replies it forwards.
// They would use it for all their packets to this host.
func (e *Env) ClientMTU() int {
	mtu := e.Node.Gateway.MTU
	for i := range e.Node.Links {
		if l := &e.Node.Links[i]; l.MTU != 0 && slices.Contains(e.Redirect, l.Name) {
			mtu = min(mtu, l.MTU)
		}
	}
	return max(mtu, e.Config.MTU)
}
