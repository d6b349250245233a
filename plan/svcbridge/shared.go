package svcbridge

import (
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/datapath/nb"
	"hairpin/plan/node"
)

// Shared is what several pods or Services of a node want of claims.ServiceBridge alike: OVN's port
// with the addresses of all pods, who has an address that several pods may have, and the tracking
// of single addresses.
type Shared struct {
	pods datapath.State
	refs map[netip.Addr]refs
}

// refs counts the Frontends that have an address, from outside or as an endpoint, which is in no
// range that is tracked anyway.
type refs struct{ vip, endpoint int }

func NewShared() *Shared { return &Shared{refs: map[netip.Addr]refs{}} }

func (p *Shared) Update(_ *cluster.Snapshot, env *node.Env, c node.Changes, again bool) (gone, come datapath.State) {
	if !env.Node.Gateway.OpenFlow {
		return gone, come
	}
	before, after := newServiceBridge(env), newServiceBridge(env)
	touched := map[netip.Addr]bool{}
	count := func(list []*cluster.Frontend, by int) {
		for _, f := range list {
			singleAddresses(env, f, func(a netip.Addr, vip bool) {
				u := p.refs[a]
				if !touched[a] {
					touched[a] = true
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
	count(c.Frontends.Gone, -1)
	count(c.Frontends.Come, 1)
	for a := range touched {
		after.trackAddress(a, p.refs[a])
		if p.refs[a] == (refs{}) {
			delete(p.refs, a)
		}
	}
	if again || len(c.Pods.Gone)+len(c.Pods.Come) > 0 {
		gone, p.pods = p.pods, podsPortRow(env)
		come = p.pods
	}
	return datapath.Union(gone, datapath.State{Bridge: before.State}),
		datapath.Union(come, datapath.State{Bridge: after.State})
}

// singleAddresses names the addresses of a Frontend that are tracked one by one.
func singleAddresses(e *node.Env, f *cluster.Frontend, do func(a netip.Addr, vip bool)) {
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

// ownVIPs are the node's addresses that may have NodePorts. They are tracked whether a Service has
// one or not: a connection outlives its Service.
func ownVIPs(e *node.Env, s *node.Stack) []netip.Addr {
	if !e.Config.Gateway.NodePort {
		return nil
	}
	return e.NodePortAddresses(s)
}

// trackAddress tracks what is sent to and from an address. From one that has Services both ways of
// each connection are, or none.
func (w *serviceBridge) trackAddress(a netip.Addr, u refs) {
	if u.vip > 0 {
		w.trackVIPs(prioVIP, node.HostPrefix(a))
	}
	if u.vip+u.endpoint > 0 {
		w.trackEndpoints(node.HostPrefix(a))
	}
}

// podsPortRow is the port of the node switch behind which pods are, and who has extra addresses.
func podsPortRow(e *node.Env) datapath.State {
	port := &nb.SwitchPort{Name: podsPort(e.Node.Name), Switch: e.Node.Name, Owner: node.OwnerOf(e.Node.Name)}
	extra := map[netip.Addr][]string{}
	var flooded []*cluster.Pod
	for _, p := range e.Pods {
		has, _ := e.AddressOf(p)
		if has == "" {
			continue
		}
		port.Addresses = append(port.Addresses, has)
		flooded = append(flooded, p)
		for _, a := range p.Extra {
			extra[a] = append(extra[a], portOf(p))
		}
	}
	// What claims.ServiceBridge serves has an address on the join switch; its next hop is behind
	// the port, too.
	port.Addresses = append(port.Addresses, node.MasqMAC().String())
	slices.Sort(port.Addresses)
	w := newServiceBridge(e)
	w.flood(flooded)
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
