// Package linux runs a host's own network stack for one packet: routing rules and routes, nft,
// conntrack, neighbours, and the eBPF programs at its links.
//
// Input: the State and the facts of a node, a packet, and the link that it arrives by, if any.
// Output: the link that it leaves by, if it has not ended; the loopback link if a process of the
// host receives it. What is behind another link is not known here.
//
// Invariants: the hooks run in the kernel's order, and a connection is committed when its first
// packet leaves the kernel. The machine's own addresses, rules and routes count like those of the
// State.
package linux

import (
	"errors"
	"fmt"
	"net/netip"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/host"
	"hairpin/walk/conntrack"
	"hairpin/walk/nft"
	"hairpin/walk/packet"
	"hairpin/walk/path"
)

// Links is what a host needs to know about its links, and about what is behind them.
type Links interface {
	// MAC returns a link's own MAC, zero if unknown.
	MAC(link string) cluster.MAC
	// Neighbor resolves a neighbour on a link, as ARP or neighbour discovery would.
	Neighbor(link string, a netip.Addr) (m cluster.MAC, ok bool)
	// IsNodeMAC reports whether a MAC belongs to a node's link to a network.
	IsNodeMAC(m cluster.MAC) bool
}

// Host is a node's own network stack.
type Host struct {
	routing
	Links
	name    string
	owner   cluster.Owner // the Node object
	info    *cluster.Node // nil if it is not known
	state   *datapath.State
	ruleset *nft.Ruleset
}

// New returns the network stack of a node.
func New(name string, info *cluster.Node, state *datapath.State, links Links) *Host {
	return &Host{routing: newRouting(&state.Host, info), Links: links, name: name,
		owner: cluster.Owner{Kind: "Node", Name: name}, info: info, state: state, ruleset: nft.New(state.NFT)}
}

// localRoute is the route to an own address.
type localRoute netip.Addr

func (a localRoute) String() string { return "local " + netip.Addr(a).String() + " dev lo table local" }

// applyNAT translates the packet as its connection requires, and adds a step if it changes.
func (h *Host) applyNAT(pkt *path.Path, t *conntrack.Connection, translate func(*packet.Packet)) {
	before := pkt.Packet
	translate(&pkt.Packet)
	if did := pkt.Changed(&before); did != "" {
		pkt.Step("conntrack", t.Entry().String(), h.owner, did)
	}
}

// hook runs the chains of a hook.
func (h *Host) hook(pkt *path.Path, hook nft.Hook) (ok bool, err error) {
	hook.Host = h
	return h.ruleset.Run(pkt, &hook)
}

// enter looks up the connection of a packet that enters the kernel.
func enter(pkt *path.Path) *conntrack.Connection {
	pkt.Cost.ByKernel(1)
	return pkt.Connections.Enter(pkt.Node, &pkt.Packet)
}

// confirm commits a new connection when its first packet leaves the kernel, and shows the entry at
// the last step.
func confirm(pkt *path.Path, t *conntrack.Connection) {
	e := pkt.Connections.Confirm(pkt.Node, t, &pkt.Packet)
	if i := len(pkt.Steps) - 1; e != nil && i >= 0 {
		pkt.Steps[i].Entry, pkt.Steps[i].After = e.String(), pkt.Packet
	}
}

// Sends handles a packet from a process of the host: routing, output, postrouting. rejected is the
// connection that the packet rejects; nil if it rejects none. Sends returns the link by which the
// packet leaves, the loopback link if a process of the host receives it.
func (h *Host) Sends(pkt *path.Path, rejected *conntrack.Connection) (next string, err error) {
	if h.ruleset.Unknown != "" {
		return "", errors.New(h.ruleset.Unknown)
	}
	pkt.CT, pkt.EthSrc, pkt.EthDst = conntrack.State{}, cluster.MAC{}, cluster.MAC{}
	route, err := h.ipRoute(pkt, nft.Loopback)
	if route == nil || err != nil {
		return noRoute(pkt, err)
	}
	if !pkt.Src.IsValid() {
		if pkt.Src = h.source(route, pkt.Dst); !pkt.Src.IsValid() {
			return pkt.Drop(packet.NoRoute, fmt.Sprintf("%s has no address of the packet's family", route.Link))
		}
		pkt.Steps[len(pkt.Steps)-1].After = pkt.Packet
	}
	if pkt.Sent == nil {
		sent := pkt.Packet
		pkt.Sent = &sent
	}
	track := enter(pkt)
	if rejected != nil {
		track.Refuse(pkt.Node, rejected, &pkt.Packet)
	}
	before := pkt.Packet
	hook := nft.Hook{Name: "output", Out: route.Link, Track: track}
	hook.Translate = func() { h.applyNAT(pkt, track, track.TranslateDestination) }
	if ok, err := h.hook(pkt, hook); err != nil || !ok {
		return pkt.DropOr(err, "nft drops it on the way out of the host")
	}
	if before.Dst != pkt.Dst || before.Mark != pkt.Mark {
		if route, err = h.ipRoute(pkt, nft.Loopback); route == nil || err != nil {
			return noRoute(pkt, err)
		}
	}
	if pkt.Src.IsLoopback() && pkt.Src.Is4() && route.Link != nft.Loopback && !h.routesLocalnet(pkt.Src, route.Link) {
		return pkt.Drop(packet.Other, fmt.Sprintf("the kernel does not send a packet from %s through %s", pkt.Src, route.Link))
	}
	return h.postrouting(pkt, route, "", track)
}

// postrouting is the last part of the kernel's path, for own and forwarded packets.
func (h *Host) postrouting(pkt *path.Path, route *kernelRoute, in string,
	track *conntrack.Connection) (next string, err error) {
	hook := nft.Hook{Name: "postrouting", In: in, Out: route.Link, Hop: route.hop(pkt.Dst), Track: track}
	hook.Translate = func() { h.applyNAT(pkt, track, track.TranslateSource) }
	if ok, err := h.hook(pkt, hook); err != nil || !ok {
		return pkt.DropOr(err, "nft drops it on the way out of the host")
	}
	confirm(pkt, track)
	if route.Link == nft.Loopback {
		return h.loopback(pkt, track)
	}
	return h.transmit(pkt, route)
}

// loopback handles a packet of the host to itself. nat chains do not see it a second time.
func (h *Host) loopback(pkt *path.Path, track *conntrack.Connection) (next string, err error) {
	track = track.Again()
	for _, hook := range [...]string{"prerouting", "input"} {
		if ok, err := h.hook(pkt, nft.Hook{Name: hook, In: nft.Loopback, Track: track}); err != nil || !ok {
			return pkt.DropOr(err, "nft drops it on the way into the host")
		}
	}
	return nft.Loopback, nil
}

// transmit sets the frame's MACs and sends it by a link.
func (h *Host) transmit(pkt *path.Path, route *kernelRoute) (next string, err error) {
	hop := route.hop(pkt.Dst)
	pkt.EthSrc = h.MAC(route.Link)
	if nb, ok := h.state.Host.Neighbors[host.NeighborKey{Link: route.Link, IP: hop}]; ok {
		pkt.EthDst = nb.MAC
		pkt.Step("ip neigh", nb, nb.Owner, "to MAC "+packet.MACText(nb.MAC))
	} else {
		mac, ok := h.Neighbor(route.Link, hop)
		if !ok {
			return pkt.Drop(packet.NoNeighbor, fmt.Sprintf("no neighbour on %s has %s", route.Link, hop))
		}
		pkt.EthDst = mac
	}
	return route.Link, nil
}

// ipRoute looks up the route and adds a step; nil if there is no route.
func (h *Host) ipRoute(pkt *path.Path, in string) (*kernelRoute, error) {
	if h.IsLocal(pkt.Dst) {
		pkt.Step("ip route", localRoute(pkt.Dst), h.owner, "the host's own address")
		return &kernelRoute{Route: host.Route{Link: nft.Loopback, Src: pkt.Dst}, connected: true}, nil
	}
	route, rules := h.lookup(&pkt.Packet, in)
	ours := host.Rule{}
	for _, x := range rules {
		switch {
		case x.hostRule == nil:
			ours = x.Rule
		case x.hostRule.More:
			pkt.Step("ip rule", x.hostRule, h.owner,
				"not considered: it has conditions, an action or routes that are not known here")
		case x.hostRule.Refuse:
			pkt.Step("ip rule", x.hostRule, h.owner, "refused")
		default:
			pkt.Step("ip rule", x.hostRule, h.owner, fmt.Sprintf("by table %d", x.Table))
		}
	}
	if route == nil {
		return nil, nil
	}
	why := route.Owner
	if why == (cluster.Owner{}) {
		why = h.owner
	}
	did := "out of " + route.Link
	if route.Via.IsValid() {
		did += " to " + route.Via.String()
	}
	for _, x := range route.alternatives {
		did += ", or out of " + x.Link
		if x.Via.IsValid() {
			did += " to " + x.Via.String()
		}
	}
	if ours != (host.Rule{}) {
		did += fmt.Sprintf(" (rule %d, table %d)", ours.Priority, ours.Table)
	}
	pkt.Step("ip route", route, why, did)
	return route, nil
}

func noRoute(pkt *path.Path, err error) (next string, _ error) {
	if err != nil || pkt.End != nil {
		return "", err
	}
	return pkt.Drop(packet.NoRoute, fmt.Sprintf("the host has no route to %s", pkt.Dst))
}

// Receives handles a frame that arrives at the host's kernel by a link. It returns the same as
// Sends.
func (h *Host) Receives(pkt *path.Path, link string) (next string, err error) {
	if h.ruleset.Unknown != "" {
		return "", errors.New(h.ruleset.Unknown)
	}
	if pkt.Userspace {
		pkt.Mark = 0 // the frame comes by a tap
	}
	pkt.CT = conntrack.State{}
	if pkt.VLAN != 0 {
		return pkt.Drop(packet.Other,
			fmt.Sprintf("the frame is for VLAN %d of %s: only an interface of the host for that VLAN gets it",
				pkt.VLAN, link))
	}
	if own := h.MAC(link); own != (cluster.MAC{}) && own != pkt.EthDst {
		return pkt.Drop(packet.Other, fmt.Sprintf("the frame is for %s, %s has %s", pkt.EthDst, link, own))
	}
	if to, ok, err := h.redirect(pkt, link); ok || err != nil {
		return to, err
	}
	if ok, err := h.hook(pkt, nft.Hook{Name: "ingress", In: link}); err != nil || !ok {
		return pkt.DropOr(err, "nft drops it at "+link)
	}
	if pkt.Src.Is4() && h.IsLocal(pkt.Src) {
		return pkt.Drop(packet.NotItsOwn, fmt.Sprintf("the kernel drops a packet from outside with its own address %s as the "+
			"source (martian source)", pkt.Src))
	}
	track := enter(pkt)
	hook := nft.Hook{Name: "prerouting", In: link, Track: track}
	hook.Translate = func() { h.applyNAT(pkt, track, track.TranslateDestination) }
	if ok, err := h.hook(pkt, hook); err != nil || !ok {
		return pkt.DropOr(err, "nft drops it on the way into the host")
	}
	if pkt.Dst.IsLoopback() && !h.routesLocalnet(pkt.Dst, link) {
		return pkt.Drop(packet.Other, fmt.Sprintf("the kernel does not accept a packet for %s from %s", pkt.Dst, link))
	}
	if h.IsLocal(pkt.Dst) {
		return h.input(pkt, link, track)
	}
	return h.forward(pkt, link, track)
}

// input delivers a packet to a process of the host.
func (h *Host) input(pkt *path.Path, link string, track *conntrack.Connection) (next string, err error) {
	before := pkt.Packet
	track.TranslateSource(&pkt.Packet)
	pkt.Step("ip route", localRoute(pkt.Dst), h.owner, "delivered to the host")
	if did := pkt.Changed(&before); did != "" {
		pkt.Steps[len(pkt.Steps)-1].Did += ", " + did
	}
	if ok, err := h.hook(pkt, nft.Hook{Name: "input", In: link, Track: track}); err != nil || !ok {
		return pkt.DropOr(err, "nft drops it on the way into the host")
	}
	confirm(pkt, track)
	return nft.Loopback, nil
}

// forward forwards a packet that is not for the host.
func (h *Host) forward(pkt *path.Path, link string, track *conntrack.Connection) (next string, err error) {
	if !h.forwards(cluster.FamilyOf(pkt.Dst)) {
		return pkt.Drop(packet.NotLocal, fmt.Sprintf("%s is not the host's, and the kernel does not forward %s", pkt.Dst,
			cluster.FamilyOf(pkt.Dst)))
	}
	route, err := h.ipRoute(pkt, link)
	if route == nil || err != nil {
		return noRoute(pkt, err)
	}
	if ok, err := h.hook(pkt, nft.Hook{Name: "forward", In: link, Out: route.Link, Track: track}); err != nil || !ok {
		return pkt.DropOr(err, "nft drops what the host would forward")
	}
	return h.postrouting(pkt, route, link, track)
}

// forwards reports whether the kernel forwards packets of a family.
func (h *Host) forwards(f cluster.Family) bool {
	paths := [...]string{"net/ipv4/ip_forward", "net/ipv4/conf/all/forwarding"}
	if f == cluster.IPv6 {
		paths = [...]string{"net/ipv6/conf/all/forwarding", "net/ipv6/conf/default/forwarding"}
	}
	for _, p := range paths {
		if h.state.Host.Sysctls[p].Value == "1" {
			return true
		}
	}
	return false
}

// routesLocalnet reports whether the kernel lets a packet with a loopback address out or in by a
// link. 127.0.0.0/8 needs route_localnet. ::1 may leave by all links, and arrive by a link with a
// local route to it.
func (h *Host) routesLocalnet(a netip.Addr, link string) bool {
	if a.Is6() {
		r, ok := h.state.Host.Routes[host.RouteKey{Table: host.LocalTable, Prefix: netip.PrefixFrom(a, a.BitLen())}]
		return ok && r.Link == link
	}
	for _, l := range [...]string{"all", link} {
		if h.state.Host.Sysctls["net/ipv4/conf/"+l+"/route_localnet"].Value == "1" {
			return true
		}
	}
	return false
}
