package apply

import (
	"context"
	"maps"
	"net/netip"

	"hairpin/claims"
	"hairpin/datapath/conn"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/ovs"
	"hairpin/delta"
	"hairpin/pipeline"
)

// A phase selects the part of a difference that one step applies. all selects everything.
func all[S, D any](d D, _ S) D { return d }

// ports selects what the host part depends on: ports, bridges and settings.
func ports(d ovs.Delta, _ ovs.State) ovs.Delta {
	return ovs.Delta{Bridge: d.Bridge, Bridges: d.Bridges, Settings: d.Settings, Ports: d.Ports, Named: d.Named}
}

// flows selects what depends on the host part: flows and groups, tunnel neighbours and routes,
// without releasedReplies.
func flows(d ovs.Delta, _ ovs.State) ovs.Delta {
	_, d.Flows.Delete = splitReplies(d)
	return ovs.Delta{Bridge: d.Bridge, TunnelBridge: d.TunnelBridge, Flows: d.Flows, Groups: d.Groups,
		TunnelNeighbors: d.TunnelNeighbors, TunnelRoutes: d.TunnelRoutes, Unknown: d.Unknown,
		NoFlows: d.NoFlows}
}

// releasedReplies selects unwanted flows that let the gateway router answer ARP requests and
// neighbor solicitations for an address that another node may have. They are removed first,
// whatever fails: a hanging OVN keeps the address and would answer.
func releasedReplies(d ovs.Delta, _ ovs.State) ovs.Delta {
	replies, _ := splitReplies(d)
	return ovs.Delta{Bridge: d.Bridge, Flows: delta.Delta[flow.ID, *flow.Flow]{Delete: replies}}
}

// splitReplies divides the flows to remove: those in the gateway bridge's table for replies of the
// gateway router, and the others.
func splitReplies(d ovs.Delta) (replies, others map[flow.ID]*flow.Flow) {
	if len(d.Flows.Delete) == 0 { // the common case
		return nil, nil
	}
	replies, others = map[flow.ID]*flow.Flow{}, map[flow.ID]*flow.Flow{}
	for id, f := range d.Flows.Delete {
		if k := id.Value(); k.Bridge == "" && k.Table == pipeline.GatewayNeighborReplies { // "": the gateway bridge
			replies[id] = f
		} else {
			others[id] = f
		}
	}
	return replies, others
}

// kernelPart is the host's part.
type kernelPart = part[host.State, host.Delta]

// prepareForNFT selects the host changes that nft rules depend on.
func prepareForNFT(p *kernelPart) func(host.Delta, host.State) host.Delta {
	return func(d host.Delta, want host.State) host.Delta {
		d.Addresses.Add = newAddresses(d, want, false)
		d.Routes.Add, d.Routes.Change = newRoutes(p, d, false), changedRoutes(p, d, false)
		return d
	}
}

// switchRoutes selects routes that change to the pod network, or to another service engine. What
// serves these packets must exist first, and nft must admit the replies. A route that changes away
// from the management port belongs to prepareForNFT: its new target existed before.
func switchRoutes(p *kernelPart) func(host.Delta, host.State) host.Delta {
	return func(d host.Delta, _ host.State) (t host.Delta) {
		t.Routes.Add, t.Routes.Change = newRoutes(p, d, true), changedRoutes(p, d, true)
		return t
	}
}

// newRoutes selects new routes: those of switchRoutes, or those of prepareForNFT. Routes with a
// next hop behind the host's port of the service bridge come after the routes that change to this
// link: the kernel rejects them while it has the next hop on the previous link.
func newRoutes(p *kernelPart, d host.Delta, switched bool) map[host.RouteKey]host.Route {
	wait := len(changedRoutes(p, d, true)) > 0
	some := maps.Clone(d.Routes.Add)
	maps.DeleteFunc(some, func(_ host.RouteKey, r host.Route) bool {
		return (wait && r.Link == claims.ServiceHost && r.Via.IsValid()) != switched
	})
	return some
}

// changedRoutes selects routes that change: those of switchRoutes, or those of prepareForNFT.
func changedRoutes(p *kernelPart, d host.Delta, switched bool) (some map[host.RouteKey]host.Route) {
	for k, r := range d.Routes.Change {
		if (r.Link == claims.ManagementPort || r.Link == claims.ServiceHost ||
			p.have.Routes[k].Link == claims.ServiceHost) != switched {
			continue
		}
		if some == nil {
			some = map[host.RouteKey]host.Route{}
		}
		some[k] = r
	}
	return some
}

// hostAddresses selects addresses that need nft rules first: egress addresses, which have a
// single-address prefix. A node receives packets to such an address as soon as it has it. Without
// the rules it would refuse replies that it must forward to another node. An address that is the
// source of a route belongs to prepareForNFT: the kernel rejects the route without it.
func hostAddresses(d host.Delta, want host.State) (s host.Delta) {
	s.Addresses.Add = newAddresses(d, want, true)
	return s
}

func newAddresses(d host.Delta, want host.State, single bool) map[host.AddressKey]host.Address {
	return filterAddresses(d.Addresses.Add, want.Routes, func(_ host.AddressKey, s bool) bool { return s == single })
}

// releasedAddresses selects addresses to remove that another node may have. They are removed first,
// whatever fails: no other system refers to them.
func releasedAddresses(p *kernelPart) func(host.Delta, host.State) host.Delta {
	return func(d host.Delta, _ host.State) (s host.Delta) {
		s.Addresses.Delete = removedAddresses(p, d, true)
		return s
	}
}

// allButReleased selects everything except releasedAddresses.
func allButReleased(p *kernelPart) func(host.Delta, host.State) host.Delta {
	return func(d host.Delta, _ host.State) host.Delta {
		d.Addresses.Delete = removedAddresses(p, d, false)
		return d
	}
}

// removedAddresses selects the single addresses to remove that another node may have, or the
// others. No other node has that of claims.ServiceHost, which replies to the host need until the
// flows have changed.
func removedAddresses(p *kernelPart, d host.Delta, released bool) map[host.AddressKey]host.Address {
	return filterAddresses(d.Addresses.Delete, p.have.Routes, func(k host.AddressKey, single bool) bool {
		return (single && k.Link != claims.ServiceHost) == released
	})
}

// filterAddresses returns the addresses for which keep returns true. single reports whether an
// address is Hairpin's, has a single-address prefix, and is no source of a route.
func filterAddresses(list map[host.AddressKey]host.Address, routes map[host.RouteKey]host.Route,
	keep func(k host.AddressKey, single bool) bool) (some map[host.AddressKey]host.Address) {
	if len(list) == 0 { // the common case
		return nil
	}
	sources := map[netip.Addr]bool{}
	for _, r := range routes {
		sources[r.Src] = true
	}
	some = map[host.AddressKey]host.Address{}
	for k, a := range list {
		if keep(k, k.Prefix.IsSingleIP() && !a.Borrowed && !sources[k.Prefix.Addr()]) {
			some[k] = a
		}
	}
	return some
}

// endedConns selects connections to end: those that the last Read found, and those that changes of
// the wanted State end, which no Read may have seen.
func endedConns(p *part[conn.State, conn.Delta]) func(conn.Delta, conn.State) conn.Delta {
	return func(d conn.Delta, want conn.State) conn.Delta {
		if !p.read {
			d = d.AddRevived(p.have, want)
		}
		return d.AddEnded(p.lastApplied, want).AddLeftEgress(p.lastApplied, want)
	}
}

// staleConns selects connections that still use a previous path.
func staleConns(p *part[conn.State, conn.Delta]) func(conn.Delta, conn.State) conn.Delta {
	return func(_ conn.Delta, want conn.State) conn.Delta {
		return conn.Delta{}.AddWrongSource(p.lastApplied, want)
	}
}

// waitForOVN is the step before routes change to the pod network: it waits until OVN's changes are
// in the switch. If OVN takes longer than the limit, the routes change anyway.
func waitForOVN(ovn *part[nb.State, nb.Delta], kernel *kernelPart) step {
	return step{after: []system{ovn}, do: func(ctx context.Context, waitFor string) {
		s, ok := ovn.target.(Syncer)
		if !ok || waitFor != "" || kernel.err != nil || switchRoutes(kernel)(kernel.diff, kernel.want).Empty() {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, ovnLimit)
		defer cancel()
		_ = s.Sync(ctx)
	}}
}
