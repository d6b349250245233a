package service

import (
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/datapath/conn"
	"hairpin/plan/admission"
	"hairpin/plan/node"
)

// connections lists the valid translations of a Frontend's UDP packets: to all serving endpoints,
// on any node, and to the intermediate addresses. Policies and hints apply only to new connections.
func (p *hostPlanner) connections(x *Front) {
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
		if e.Addr == x.Stack.Address.Addr() {
			t.Live = append(t.Live, netip.AddrPortFrom(x.Stack.MasqHost, e.Port))
		}
	}
	t.Live = sortedPorts(t.Live)
	p.conns[netip.AddrPortFrom(x.ClusterIP, x.Port)] = t

	vips := ExternalAddresses(p.Env, x.Stack, x.Frontend)
	if x.NodePort != 0 && p.LoopbackPorts(x.Family) {
		vips = append(vips, netip.AddrPortFrom(node.Vocab(x.Family).Localhost, x.NodePort))
	}
	if len(vips) == 0 {
		return
	}
	port := x.ProxyPort()
	all, own := netip.AddrPortFrom(x.Stack.MasqAll, port), netip.AddrPortFrom(x.Stack.MasqLocal, port)
	if x.NodePort != 0 || admission.NeedsProxyPort(x.Frontend.Frontend) {
		p.conns[all], p.conns[own] = t, t
	}
	// A connection may be older than the Service's policies and NodePort, so all proxy addresses
	// are valid, also with the allocated port.
	allocated := x.AllocatedPort()
	t.Steps = sortedPorts([]netip.AddrPort{
		netip.AddrPortFrom(x.ClusterIP, x.Port), all, own,
		netip.AddrPortFrom(x.Stack.MasqAll, allocated), netip.AddrPortFrom(x.Stack.MasqLocal, allocated),
	})
	for _, v := range vips {
		p.conns[v] = t
	}
}

func sortedPorts(list []netip.AddrPort) []netip.AddrPort {
	slices.SortFunc(list, netip.AddrPort.Compare)
	return slices.Compact(list)
}
