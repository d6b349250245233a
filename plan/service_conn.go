package plan

import (
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/datapath/conn"
	"hairpin/plan/admission"
)

// connections tells which translations of a Frontend's UDP packets may live: those to all endpoints that serve, wherever
// they are, and to the addresses between. Policies and hints choose for new connections only.
func (b *balancer) connections(x *front) {
	if x.Protocol != cluster.UDP {
		return
	}
	t := conn.Targets{Owner: x.Owner}
	for i := range x.Backends {
		e := &x.Backends[i]
		if !e.Ready && !e.Serving {
			continue
		}
		t.Live = append(t.Live, netip.AddrPortFrom(e.Addr, e.Port))
		if e.Addr == x.stack.Address.Addr() {
			t.Live = append(t.Live, netip.AddrPortFrom(x.stack.MasqHost, e.Port))
		}
	}
	t.Live = sortedPorts(t.Live)
	b.conns[netip.AddrPortFrom(x.ClusterIP, x.Port)] = t

	vips := x.External()
	if x.NodePort != 0 && b.Config.Gateway.NodePort {
		vips = append(vips, b.nodePorts(x.stack, x.Frontend)...)
		if b.loopbackPorts(x.Family) {
			vips = append(vips, netip.AddrPortFrom(words(x.Family).localhost, x.NodePort))
		}
	}
	if len(vips) == 0 {
		return
	}
	port := admission.ProxyPort(x.Frontend)
	all, own := netip.AddrPortFrom(x.stack.MasqAll, port), netip.AddrPortFrom(x.stack.MasqLocal, port)
	if x.NodePort != 0 || admission.NeedsProxyPort(x.Frontend) {
		b.conns[all], b.conns[own] = t, t
	}
	// Whatever the policies are now, and if it had no NodePort before.
	before := admission.AllocatedPort(x.Frontend)
	t.Steps = sortedPorts([]netip.AddrPort{
		netip.AddrPortFrom(x.ClusterIP, x.Port), all, own,
		netip.AddrPortFrom(x.stack.MasqAll, before), netip.AddrPortFrom(x.stack.MasqLocal, before),
	})
	for _, v := range vips {
		b.conns[v] = t
	}
}

func sortedPorts(list []netip.AddrPort) []netip.AddrPort {
	slices.SortFunc(list, netip.AddrPort.Compare)
	return slices.Compact(list)
}
