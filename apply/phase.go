package apply

import (
	"context"
	"net/netip"

	"hairpin/claims"
	"hairpin/datapath/conn"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
)

// A phase is what of a difference is changed in one step. all is that of a system with one phase.
func all[S, D any](d D, _ S) D { return d }

// ports is what the host stands on: bridges and settings, too.
func ports(d flow.Delta, _ flow.State) flow.Delta {
	return flow.Delta{Bridge: d.Bridge, Bridges: d.Bridges, Settings: d.Settings, Ports: d.Ports}
}

// flows is what stands on the host: tunnel neighbours, too.
func flows(d flow.Delta, _ flow.State) flow.Delta {
	return flow.Delta{Bridge: d.Bridge, TunnelBridge: d.TunnelBridge, Flows: d.Flows, Groups: d.Groups,
		TunnelNeighbors: d.TunnelNeighbors, TunnelRoutes: d.TunnelRoutes, Unknown: d.Unknown,
		NoFlows: d.NoFlows}
}

// kernelPart is the host's part.
type kernelPart = part[host.State, host.Delta]

// ground is what rules of nft stand on.
func ground(p *kernelPart) func(host.Delta, host.State) host.Delta {
	return func(d host.Delta, want host.State) host.Delta {
		d.Addresses.Add = addresses(d, want, false)
		d.Routes.Change = turned(p, d, false)
		return d
	}
}

// turns is routes that turn to the pod network, or to another engine of Services: what serves what
// comes there must be there, and nft let in what comes back. A route that turns away from the
// management port is ground: where it leads then has been there before.
func turns(p *kernelPart) func(host.Delta, host.State) host.Delta {
	return func(d host.Delta, _ host.State) (t host.Delta) {
		t.Routes.Change = turned(p, d, true)
		return t
	}
}

func turned(p *kernelPart, d host.Delta, late bool) (some map[host.RouteKey]host.Route) {
	for k, r := range d.Routes.Change {
		if (r.Link == claims.ManagementPort || r.Link == claims.ServiceHost ||
			p.have.Routes[k].Link == claims.ServiceHost) != late {
			continue
		}
		if some == nil {
			some = map[host.RouteKey]host.Route{}
		}
		some[k] = r
	}
	return some
}

// singles is what rules of nft must be there for: a node is asked for an egress address, which is
// one alone, the moment it has it, and would refuse the answers to connections that it is to send
// on to another node. An address that a route has as its source is ground: the kernel refuses the
// route without it.
func singles(d host.Delta, want host.State) (s host.Delta) {
	s.Addresses.Add = addresses(d, want, true)
	return s
}

func addresses(d host.Delta, want host.State, single bool) (some map[host.AddressKey]host.Address) {
	if len(d.Addresses.Add) == 0 { // as in nearly every Run
		return nil
	}
	sources := map[netip.Addr]bool{}
	for _, r := range want.Routes {
		sources[r.Src] = true
	}
	some = map[host.AddressKey]host.Address{}
	for k, a := range d.Addresses.Add {
		if single == (k.Prefix.IsSingleIP() && !a.Borrowed && !sources[k.Prefix.Addr()]) {
			some[k] = a
		}
	}
	return some
}

// dead is connections that end, also those that were not read in this Run.
func dead(p *part[conn.State, conn.Delta]) func(conn.Delta, conn.State) conn.Delta {
	return func(d conn.Delta, want conn.State) conn.Delta {
		if !p.read {
			d = d.Since(p.have, want)
		}
		return d.End(p.lastApplied, want).Leave(p.lastApplied, want)
	}
}

// strays is connections that keep to a way of before.
func strays(p *part[conn.State, conn.Delta]) func(conn.Delta, conn.State) conn.Delta {
	return func(_ conn.Delta, want conn.State) conn.Delta { return conn.Delta{}.Turn(p.lastApplied, want) }
}

// confirmed is the step before routes turn to the pod network: what OVN was told is in the switch.
// With an OVN that takes longer, they turn all the same.
func confirmed(rows *part[nb.State, nb.Delta], kernel *kernelPart) step {
	return step{after: []system{rows}, do: func(ctx context.Context, waitFor string) {
		s, ok := rows.target.(Syncer)
		if !ok || waitFor != "" || kernel.err != nil || turns(kernel)(kernel.due, kernel.want).Empty() {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, confirming)
		defer cancel()
		_ = s.Sync(ctx)
	}}
}
