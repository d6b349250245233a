package gateway

import (
	"net/netip"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/host"
	"hairpin/datapath/nft"
	"hairpin/plan/node"
)

// encap is the path of tunnel packets on a node with the userspace datapath whose address is not on
// an Open vSwitch bridge: a bridge with a link to the host. Outgoing packets go from the bridge to
// the host, which routes them. The host redirects incoming packets to the bridge at ingress. The
// kernel datapath needs no such path: it uses the host's sockets and routes.
type encap struct {
	env          *node.Env
	end          netip.Addr   // address of the node's tunnels
	host, bridge netip.Prefix // addresses of the two ends of the link
}

// newEncap returns the addresses of encap, and reports whether the node needs it.
func newEncap(e *node.Env) (encap, bool) {
	x := encap{env: e, end: e.Node.Addresses[0]}
	if e.Mode.Uplink || !e.Node.Gateway.Userspace {
		return x, false
	}
	subnet := netip.MustParsePrefix(claims.EncapSubnet4)
	if x.end.Is6() {
		subnet = netip.MustParsePrefix(claims.EncapSubnet6)
	}
	first := subnet.Addr().Next()
	x.host, x.bridge = netip.PrefixFrom(first, subnet.Bits()), netip.PrefixFrom(first.Next(), subnet.Bits())
	return x, true
}

func (x *encap) hostMAC() cluster.MAC { return cluster.MACFor(x.host.Addr()) }

// links adds the pair of links between host and bridge, and their addresses.
func (x *encap) links(k *node.Kernel) {
	k.State.Links[claims.EncapBridge] = host.Link{Name: claims.EncapBridge, Owner: k.Owner}
	k.State.Links[claims.EncapHost] = host.Link{Name: claims.EncapHost, MAC: x.hostMAC(), Owner: k.Owner}
	k.State.Links[claims.EncapPort] = host.Link{Name: claims.EncapPort, Owner: k.Owner}
	k.Address(host.Address{AddressKey: host.AddressKey{Link: claims.EncapHost, Prefix: x.host}})
	k.Address(host.Address{AddressKey: host.AddressKey{Link: claims.EncapBridge, Prefix: x.bridge}})
	// Packets from the bridge have the node's own address as source.
	k.Sysctl("net/ipv4/conf/"+claims.EncapHost+"/accept_local", "1")
	k.Sysctl("net/ipv4/conf/"+claims.EncapHost+"/rp_filter", "2")
	k.Sysctl("net/ipv6/conf/"+claims.EncapPort+"/disable_ipv6", "1")
}

// chains redirects tunnel packets from the external network to the bridge, and makes the kernel
// ignore the bridge's port.
func (x *encap) chains(frames node.Chains) {
	frames.Ingress(claims.EncapPort, claims.EncapPort, node.HookGuard, frames.Rule(nft.Drop{}, node.CopiedFrame))
	device := x.env.Node.Gateway.Device
	if device == "" {
		return
	}
	frames.Table.Sets[setTunnelSources] = tunnelSources(x.env)
	frames.Ingress(node.ChainTunnels, device, node.HookTunnels, frames.Rule(nft.Forward{Device: claims.EncapHost},
		"tunnels belong to Open vSwitch", nft.InSet{Set: setTunnelSources},
		nft.AddrIn{Dst: true, Prefix: node.HostPrefix(x.end)}, nft.DstPort{Protocol: cluster.UDP, Port: node.Geneve}))
}
