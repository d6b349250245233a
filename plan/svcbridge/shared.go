package svcbridge

import (
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/datapath/nb"
	"hairpin/plan/admission"
	"hairpin/plan/node"
)

// Shared plans what several pods or Services of a node share on claims.ServiceBridge: OVN's port
// with the addresses of all pods, the pods that have an extra address, and the tracking of single
// addresses.
type Shared struct {
	pods datapath.State
	refs map[netip.Addr]refs
}

// refs counts the Frontends that use an address outside the tracked ranges, as an external address
// or as an endpoint.
type refs struct{ vip, endpoint int }

// NewShared returns Shared without pods and Services.
func NewShared() *Shared { return &Shared{refs: map[netip.Addr]refs{}} }

// Update plans the changes. The node's port is planned again if a pod changed.
func (p *Shared) Update(_ *cluster.Snapshot, env *node.Env, c node.Changes, all bool) (gone, come datapath.State) {
	if !env.Engine.ServiceBridge {
		return gone, come
	}
	before, after := newServiceBridge(env), newServiceBridge(env)
	changed := map[netip.Addr]bool{}
	count := func(list []*admission.Frontend, by int) {
		for _, f := range list {
			singleAddresses(env, f, func(a netip.Addr, vip bool) {
				u := p.refs[a]
				if !changed[a] {
					changed[a] = true
					before.trackAddress(a, u)
				}
				if vip {
					u.vip += by
				} else {
					u.endpoint += by
				}
				p.refs[a] = u
			})
		}
	}
	count(c.Frontends.Removed, -1)
	count(c.Frontends.Added, 1)
	for a := range changed {
		after.trackAddress(a, p.refs[a])
		if p.refs[a] == (refs{}) {
			delete(p.refs, a)
		}
	}
	if all || len(c.Pods.Removed)+len(c.Pods.Added) > 0 {
		gone, p.pods = p.pods, podsPortState(env)
		come = p.pods
	}
	return datapath.Union(gone, datapath.State{Bridge: before.State}),
		datapath.Union(come, datapath.State{Bridge: after.State})
}

// singleAddresses calls do for the addresses of a Frontend that are tracked one by one.
func singleAddresses(e *node.Env, f *admission.Frontend, do func(a netip.Addr, vip bool)) {
	s := e.Stack(f.Family)
	if s == nil {
		return
	}
	own := func(a netip.Addr) bool { return slices.Contains(ownVIPs(e, s), a) }
	for _, v := range f.External() {
		if a := v.Addr(); !node.InRanges(s.Services, a) && !own(a) {
			do(a, true)
		}
	}
	for i := range f.Backends { // also those that get no new connections
		if a := f.Backends[i].Addr; !node.InRanges(s.Cluster, a) && !own(a) {
			do(a, false)
		}
	}
}

// ownVIPs returns the node's addresses that may have NodePorts. They are tracked even without one,
// because a connection outlives its Service.
func ownVIPs(e *node.Env, s *node.Stack) []netip.Addr {
	if !e.Config.Gateway.NodePort {
		return nil
	}
	return e.NodePortAddresses(s)
}

// trackAddress tracks packets from an address that is an endpoint, and packets to and from one that
// Services have: of their connections, both directions must be tracked.
func (w *serviceBridge) trackAddress(a netip.Addr, u refs) {
	if u.vip > 0 {
		w.trackVIPs(prioVIP, node.HostPrefix(a))
	}
	if u.vip+u.endpoint > 0 {
		w.trackEndpoints(node.HostPrefix(a))
	}
}

// podsPortState plans the node switch's port for the pods, and the flows that output to several
// pods: multicast, and requests for extra addresses.
func podsPortState(e *node.Env) datapath.State {
	port := &nb.SwitchPort{Name: podsPort(e.Node.Name), Switch: e.Node.Name, Owner: cluster.NodeOwner(e.Node.Name)}
	extra := map[netip.Addr][]string{}
	var flooded []*cluster.Pod
	for _, p := range e.Pods {
		address, _ := e.AddressOf(p)
		if address == "" {
			continue
		}
		port.Addresses = append(port.Addresses, address)
		flooded = append(flooded, p)
		for _, a := range p.Extra {
			extra[a] = append(extra[a], portOf(p))
		}
	}
	// Packets to clients on the join switch leave by this port, to claims.ServiceBridge. This is
	// the MAC of their next hop.
	port.Addresses = append(port.Addresses, node.MasqMAC().String())
	slices.Sort(port.Addresses)
	w := newServiceBridge(e)
	w.outputMulticast(flooded)
	for a, ports := range extra {
		slices.Sort(ports)
		var out []flow.Action
		for _, name := range ports {
			out = append(out, flow.Output{Port: name})
		}
		w.answerNeighbors(a, out...)
	}
	s := datapath.State{NB: nb.State{}, Bridge: w.State}
	s.NB.Add(port)
	return s
}

// track looks up the packet's connection, applies its translation, and continues in table next.
func track(zone uint16, next uint8) flow.CT {
	return flow.CT{Zone: zone, Table: next, NAT: flow.NAT{Kind: flow.NATUndo}}
}

// tracked matches packets after the lookup, of connections that have the states of set and not
// those of clear.
func tracked(p flow.Protocol, set, clear flow.CTBits) flow.Match {
	return flow.Match{Protocol: p, CTState: flow.CTState{Set: set | flow.CTTrk, Clear: clear}}
}
