package node

import (
	"net/netip"
	"slices"

	"hairpin/cluster"
)

const fieldPath = "[gateway] nodeport-path"

// redirect finds the links whose packets the programs can redirect, and reports why nft serves the
// others.
func (c *Checker) redirect(e *Env) {
	if !e.Node.Gateway.Redirect {
		return
	}
	nodePort := func(a netip.Addr) bool { return e.Config.Gateway.NodePort && e.nodePortOn(a) }
	for i := range e.Node.Links {
		l := &e.Node.Links[i]
		nodePorts := slices.ContainsFunc(l.Addresses,
			func(p netip.Prefix) bool { return !p.IsSingleIP() && nodePort(p.Addr()) })
		fit := l.MAC != cluster.MAC{} && l.Table == 0 && (l.MTU == 0 || l.MTU >= e.Config.MTU)
		switch {
		case !slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return !p.IsSingleIP() }) || !fit &&
			!nodePorts:
		case l.MAC == cluster.MAC{}:
			c.Problem(fieldPath, "nft serves NodePorts that arrive at %s, which is no Ethernet link", l.Name)
		case l.Table != 0:
			c.Problem(fieldPath, "nft serves NodePorts that arrive at %s, which belongs to a VRF", l.Name)
		case l.MTU != 0 && l.MTU < e.Config.MTU:
			c.Problem(fieldPath, "nft serves NodePorts that arrive at %s, whose MTU %d is below the pods' %d", l.Name,
				l.MTU, e.Config.MTU)
		default:
			e.Redirect = append(e.Redirect, l.Name)
			for i := range e.Stacks {
				s := &e.Stacks[i]
				for _, p := range l.Addresses {
					if a := p.Addr(); slices.Contains(s.Secondary, a) && nodePort(a) {
						s.Redirect = append(s.Redirect, a)
					}
				}
			}
		}
	}
	for i := range e.Stacks {
		s := &e.Stacks[i]
		slices.SortFunc(s.Redirect, netip.Addr.Compare)
		s.Redirect = slices.Compact(s.Redirect) // two links may have the same address
	}
}
