package node

import (
	"fmt"
	"net/netip"
	"slices"

	"hairpin/cluster"
)

const fieldPath = "[gateway] nodeport-path"

// redirect finds the links at which the eBPF programs can redirect packets, and reports why nft
// serves the others.
func (c *Checker) redirect(e *Env) {
	if !e.Node.Gateway.Redirect {
		return
	}
	nodePort := func(a netip.Addr) bool { return e.Config.Gateway.NodePort && e.nodePortOn(a) }
	for i := range e.Node.Links {
		l := &e.Node.Links[i]
		subnets := slices.DeleteFunc(slices.Clone(l.Addresses), netip.Prefix.IsSingleIP)
		if len(subnets) == 0 {
			continue
		}
		reason := ""
		switch {
		case l.MAC == cluster.MAC{}:
			reason = "is no Ethernet link"
		case l.Table != 0:
			reason = "belongs to a VRF"
		case l.MTU != 0 && l.MTU < e.Config.MTU:
			reason = fmt.Sprintf("has MTU %d, below the pods' %d", l.MTU, e.Config.MTU)
		}
		if reason != "" {
			if slices.ContainsFunc(subnets, func(p netip.Prefix) bool { return nodePort(p.Addr()) }) {
				c.Problem(fieldPath, "nft serves NodePorts that arrive at %s, which %s", l.Name, reason)
			}
			continue
		}
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
	for i := range e.Stacks {
		s := &e.Stacks[i]
		slices.SortFunc(s.Redirect, netip.Addr.Compare)
		s.Redirect = slices.Compact(s.Redirect) // two links may have the same address
	}
}
