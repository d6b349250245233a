package service

import (
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/plan/node"
)

// chooseEndpoints selects the endpoints of a Frontend that get new connections on one node: those
// of the whole cluster and, under a policy Local, those of the node itself. Each list has the ready
// endpoints. If there is none, it has those that still serve while they terminate (KEP-1669).
func chooseEndpoints(e *node.Env, f *cluster.Frontend) (all, local []netip.AddrPort) {
	hinted := hintFilter(e.Node, f.Backends)
	all = pick(f.Backends, func(b *cluster.Backend) bool { return b.Ready && hinted(b) })
	if len(all) == 0 {
		all = pick(f.Backends, stillServes)
	}
	if !f.ExternalLocal && !f.InternalLocal {
		return all, nil
	}
	local = pick(f.Backends, func(b *cluster.Backend) bool { return b.Ready && e.Node.HasEndpoint(b) })
	if len(local) == 0 {
		local = pick(f.Backends, func(b *cluster.Backend) bool { return stillServes(b) && e.Node.HasEndpoint(b) })
	}
	return all, local
}

func stillServes(b *cluster.Backend) bool { return b.Serving && b.Terminating }

func pick(list []cluster.Backend, fit func(*cluster.Backend) bool) []netip.AddrPort {
	out := make([]netip.AddrPort, 0, len(list))
	for i := range list {
		if b := &list[i]; fit(b) {
			out = append(out, netip.AddrPortFrom(b.Addr, b.Port))
		}
	}
	return out
}

// hintFilter returns the filter that the hints of ready endpoints define (KEP-4444, KEP-3015). It
// selects the endpoints for this node if every one has hints for nodes and at least one names this
// node. Otherwise it selects those for this zone on the same terms, and otherwise all.
func hintFilter(n *cluster.Node, list []cluster.Backend) func(*cluster.Backend) bool {
	allNodes, allZones, node, zone := true, true, false, false
	for i := range list {
		b := &list[i]
		if !b.Ready {
			continue
		}
		allNodes, allZones = allNodes && len(b.ForNodes) > 0, allZones && len(b.ForZones) > 0
		if !allNodes && !allZones {
			break
		}
		node = node || slices.Contains(b.ForNodes, n.Name)
		zone = zone || n.Zone != "" && slices.Contains(b.ForZones, n.Zone)
	}
	switch {
	case allNodes && node:
		return func(b *cluster.Backend) bool { return slices.Contains(b.ForNodes, n.Name) }
	case allZones && zone:
		return func(b *cluster.Backend) bool { return slices.Contains(b.ForZones, n.Zone) }
	}
	return func(*cluster.Backend) bool { return true }
}
