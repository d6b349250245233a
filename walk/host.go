package walk

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
)

// hostTrack is a packet's connection in the kernel's own conntrack (zone 0), while the packet is in
// the host.
type hostTrack struct {
	entry *entry // nil: the connection is new
	reply bool
	first tuple  // as the packet arrived
	mark  uint32 // of a new connection
	// source and destination are set when the packet is the first of its connection and has been
	// translated.
	source, destination bool
	// refusal is set for a reset that nft sends. It belongs to the connection that it rejects, and
	// ends it.
	refusal bool
}

// hostTracks looks up the connection of a packet that enters the kernel.
func (r *run) hostTracks(n *node) *hostTrack {
	r.cost.byKernel(1)
	t := &hostTrack{first: tupleOf(&r.p)}
	if t.entry, t.reply = r.ct.find(n.zone0, t.first); t.entry != nil && t.reply {
		t.entry.answered = true
	}
	return t
}

// mayTranslate reports whether nat chains of a hook see the packet.
func (t *hostTrack) mayTranslate(hook string) bool {
	switch hook {
	case "prerouting", "output":
		return t.entry == nil && !t.destination
	}
	return t.entry == nil && !t.source
}

// natDestination translates the destination of a packet of a known connection, as the kernel does
// before routing.
func (r *run) natDestination(t *hostTrack) {
	if to, ok := t.translated(); ok {
		r.p.Dst, r.p.DstPort = to.dst, to.dport
	}
}

// natSource translates the source, as the kernel does last.
func (r *run) natSource(t *hostTrack) {
	if to, ok := t.translated(); ok {
		r.p.Src, r.p.SrcPort = to.src, to.sport
	}
}

// natKnown translates, and adds a step if the packet changes.
func (r *run) natKnown(n *node, t *hostTrack, translate func(*hostTrack)) {
	before := r.p
	translate(t)
	if did := changed(&before, &r.p); did != "" {
		r.step(n, "conntrack", t.entry.String(), n.owner, did)
	}
}

func (t *hostTrack) translated() (tuple, bool) {
	switch {
	case t.entry == nil:
		return tuple{}, false
	case t.reply:
		return t.entry.orig.inverse(), true
	}
	return t.entry.reply.inverse(), true
}

// confirm commits a new connection when its first packet leaves the kernel, and shows the entry at
// the last step.
func (r *run) confirm(n *node, t *hostTrack) {
	if t.entry != nil || t.refusal {
		return
	}
	e, to := r.ct.commit(n.zone0, t.first, tupleOf(&r.p), false, portRange{})
	e.mark = t.mark
	r.p.SrcPort = to.sport
	if i := len(r.steps) - 1; i >= 0 {
		r.steps[i].Entry, r.steps[i].After = e.String(), r.p
	}
}

// hostSends handles a packet from a process of the host: routing, output, postrouting.
func (r *run) hostSends(n *node) (location, error) {
	k := n.kernel
	if k.unknown != "" {
		return location{}, errors.New(k.unknown)
	}
	r.ctState, r.p.EthSrc, r.p.EthDst = tracking{}, cluster.MAC{}, cluster.MAC{}
	route, err := r.ipRoute(n, loopback)
	if route == nil || err != nil {
		return r.noRoute(err)
	}
	if !r.p.Src.IsValid() {
		if r.p.Src = k.source(route, r.p.Dst); !r.p.Src.IsValid() {
			return r.drop(NoRoute, fmt.Sprintf("%s has no address of the packet's family", route.Link))
		}
		r.steps[len(r.steps)-1].After = r.p
	}
	if r.sent == nil {
		sent := r.p
		r.sent = &sent
	}
	track := r.hostTracks(n)
	if r.refusal != nil && r.refusal.from.place == hostSends && r.refusal.from.node == n {
		back := tupleOf(&r.p)
		track.refusal, track.reply, track.entry = true, true,
			&entry{zone: n.zone0, orig: r.refusal.track.first, reply: back}
	}
	before := r.p
	nat := func() { r.natKnown(n, track, r.natDestination) }
	if ok, err := r.hook(hooked{n: n, hook: "output", out: route.Link, track: track, nat: nat}); err != nil || !ok {
		return r.dropOr(err, "nft drops it on the way out of the host")
	}
	if before.Dst != r.p.Dst || before.Mark != r.p.Mark {
		if route, err = r.ipRoute(n, loopback); route == nil || err != nil {
			return r.noRoute(err)
		}
	}
	if r.p.Src.IsLoopback() && r.p.Src.Is4() && route.Link != loopback && !routesLocalnet(n, r.p.Src, route.Link) {
		return r.drop(Other, fmt.Sprintf("the kernel does not send a packet from %s through %s", r.p.Src, route.Link))
	}
	return r.postrouting(n, route, "", track)
}

// postrouting is the last part of the kernel's path, for own and forwarded packets.
func (r *run) postrouting(n *node, route *kernelRoute, in string, track *hostTrack) (location, error) {
	h := hooked{n: n, hook: "postrouting", in: in, out: route.Link, hop: route.hop(r.p.Dst), track: track}
	h.nat = func() { r.natKnown(n, track, r.natSource) }
	if ok, err := r.hook(h); err != nil || !ok {
		return r.dropOr(err, "nft drops it on the way out of the host")
	}
	r.confirm(n, track)
	if route.Link == loopback {
		return r.loopback(n, track)
	}
	return r.transmit(n, route)
}

// loopback handles a packet of the host to itself. nat chains do not see it a second time.
func (r *run) loopback(n *node, track *hostTrack) (location, error) {
	track = &hostTrack{entry: track.entry, reply: track.reply, first: track.first, source: true, destination: true}
	for _, hook := range [...]string{"prerouting", "input"} {
		if ok, err := r.hook(hooked{n: n, hook: hook, in: loopback, track: track}); err != nil || !ok {
			return r.dropOr(err, "nft drops it on the way into the host")
		}
	}
	return r.deliver(Point{Node: n.name}, "delivered to host "+n.name+" port "+strconv.Itoa(int(r.p.DstPort)))
}

// transmit sets the frame's MACs and sends it by a link.
func (r *run) transmit(n *node, route *kernelRoute) (location, error) {
	hop := route.hop(r.p.Dst)
	r.p.EthSrc = n.mac(route.Link)
	if nb, ok := n.state.Host.Neighbors[host.NeighborKey{Link: route.Link, IP: hop}]; ok {
		r.p.EthDst = nb.MAC
		r.step(n, "ip neigh", nb, nb.Owner, "to MAC "+ethernet(nb.MAC))
	} else {
		mac, ok := r.ask(n, route.Link, hop)
		if !ok {
			return r.drop(NoNeighbor, fmt.Sprintf("no neighbour on %s has %s", route.Link, hop))
		}
		r.p.EthDst = mac
	}
	if route.Link == n.bridge.name {
		return location{bridgeReceives, n, flow.Local}, nil
	}
	if n.bridgeOf(route.Link) != n.bridge {
		return location{bridgeReceives, n, route.Link}, nil
	}
	if n.pluggedInto(route.Link) != nil {
		return location{plainReceives, n, route.Link}, nil
	}
	if port, ok := n.logicalPort(route.Link); ok {
		return location{switchReceives, n, port}, nil
	}
	r.p.Mark = 0
	return location{outsideReceives, n, ""}, nil
}

// ask resolves a neighbour on a link as ARP or neighbour discovery would.
func (r *run) ask(n *node, link string, hop netip.Addr) (cluster.MAC, bool) {
	if port, ok := n.logicalPort(link); ok {
		p := n.ovn.ports[port]
		if p == nil {
			return cluster.MAC{}, false
		}
		return p.sw.neighbour(hop)
	}
	if b := n.pluggedInto(link); b != nil {
		return n.ovn.ports[b.localnet].sw.neighbour(hop)
	}
	return r.w.resolve(hop)
}

// ipRoute looks up the route and adds a step; nil if there is no route.
func (r *run) ipRoute(n *node, in string) (*kernelRoute, error) {
	k := n.kernel
	if k.isLocal(r.p.Dst) {
		r.step(n, "ip route", localRoute(r.p.Dst), n.owner, "the host's own address")
		return &kernelRoute{Route: host.Route{Link: loopback, Src: r.p.Dst}, connected: true}, nil
	}
	route, rules := k.lookup(&r.p, in)
	ours := host.Rule{}
	for _, x := range rules {
		switch {
		case x.own == nil:
			ours = x.Rule
		case x.own.More:
			r.step(n, "ip rule", x.own, n.owner,
				"not considered: it has conditions, an action or routes that are not known here")
		case x.own.Refuse:
			r.step(n, "ip rule", x.own, n.owner, "refused")
		default:
			r.step(n, "ip rule", x.own, n.owner, fmt.Sprintf("by table %d", x.Table))
		}
	}
	if route == nil {
		return nil, nil
	}
	why := route.Owner
	if why == (cluster.Owner{}) {
		why = n.owner
	}
	did := "out of " + route.Link
	if route.Via.IsValid() {
		did += " to " + route.Via.String()
	}
	for _, x := range route.or {
		did += ", or out of " + x.Link
		if x.Via.IsValid() {
			did += " to " + x.Via.String()
		}
	}
	if ours != (host.Rule{}) {
		did += fmt.Sprintf(" (rule %d, table %d)", ours.Priority, ours.Table)
	}
	r.step(n, "ip route", route, why, did)
	return route, nil
}

func (r *run) noRoute(err error) (location, error) {
	if err != nil || r.done {
		return location{}, err
	}
	return r.drop(NoRoute, fmt.Sprintf("the host has no route to %s", r.p.Dst))
}

// hostReceives handles a frame that arrives at the host's kernel by a link.
func (r *run) hostReceives(n *node, link string) (location, error) {
	k := n.kernel
	if k.unknown != "" {
		return location{}, errors.New(k.unknown)
	}
	if n.userspace() {
		r.p.Mark = 0 // the frame comes by a tap
	}
	r.ctState = tracking{}
	if r.p.VLAN != 0 {
		return r.drop(Other,
			fmt.Sprintf("the frame is for VLAN %d of %s: only an interface of the host for that VLAN gets it",
				r.p.VLAN, link))
	}
	if own := n.mac(link); own != (cluster.MAC{}) && own != r.p.EthDst {
		return r.drop(Other, fmt.Sprintf("the frame is for %s, %s has %s", r.p.EthDst, link, own))
	}
	if to, ok, err := r.redirect(n, link); ok || err != nil {
		return to, err
	}
	if ok, err := r.hook(hooked{n: n, hook: "ingress", in: link}); err != nil || !ok {
		return r.dropOr(err, "nft drops it at "+link)
	}
	if r.p.Src.Is4() && k.isLocal(r.p.Src) {
		return r.drop(NotItsOwn, fmt.Sprintf("the kernel drops a packet from outside with its own address %s as the "+
			"source (martian source)", r.p.Src))
	}
	track := r.hostTracks(n)
	nat := func() { r.natKnown(n, track, r.natDestination) }
	if ok, err := r.hook(hooked{n: n, hook: "prerouting", in: link, track: track, nat: nat}); err != nil || !ok {
		return r.dropOr(err, "nft drops it on the way into the host")
	}
	if r.p.Dst.IsLoopback() && !routesLocalnet(n, r.p.Dst, link) {
		return r.drop(Other, fmt.Sprintf("the kernel does not accept a packet for %s from %s", r.p.Dst, link))
	}
	if k.isLocal(r.p.Dst) {
		return r.input(n, link, track)
	}
	return r.forward(n, link, track)
}

// input delivers a packet to a process of the host.
func (r *run) input(n *node, link string, track *hostTrack) (location, error) {
	before := r.p
	r.natSource(track)
	r.step(n, "ip route", localRoute(r.p.Dst), n.owner, "delivered to the host")
	if did := changed(&before, &r.p); did != "" {
		r.steps[len(r.steps)-1].Did += ", " + did
	}
	if ok, err := r.hook(hooked{n: n, hook: "input", in: link, track: track}); err != nil || !ok {
		return r.dropOr(err, "nft drops it on the way into the host")
	}
	r.confirm(n, track)
	return r.deliver(Point{Node: n.name}, "delivered to host "+n.name+" port "+strconv.Itoa(int(r.p.DstPort)))
}

// forward forwards a packet that is not for the host.
func (r *run) forward(n *node, link string, track *hostTrack) (location, error) {
	if !forwards(n, cluster.FamilyOf(r.p.Dst)) {
		return r.drop(NotLocal, fmt.Sprintf("%s is not the host's, and the kernel does not forward %s", r.p.Dst,
			cluster.FamilyOf(r.p.Dst)))
	}
	route, err := r.ipRoute(n, link)
	if route == nil || err != nil {
		return r.noRoute(err)
	}
	if ok, err := r.hook(hooked{n: n, hook: "forward", in: link, out: route.Link, track: track}); err != nil || !ok {
		return r.dropOr(err, "nft drops what the host would forward")
	}
	return r.postrouting(n, route, link, track)
}

// mac returns a link's own MAC, zero if unknown.
func (n *node) mac(link string) cluster.MAC {
	if l := n.hostLink(link); l != nil && link != n.info.Gateway.Device {
		return l.MAC
	}
	if m := n.state.Host.Links[link].MAC; m != (cluster.MAC{}) {
		return m
	}
	if m := n.state.Bridge.Ports[link].MAC; m != (cluster.MAC{}) {
		return m
	}
	switch {
	case n.info == nil:
	case n.info.Gateway.Device != "" && link == n.info.Gateway.Device:
		return ExternalMAC(n.info)
	case link == n.bridge.name || n.info.Gateway.Uplink == "":
		return n.info.Gateway.MAC
	}
	return cluster.MAC{}
}

// forwards reports whether the kernel forwards packets of a family.
func forwards(n *node, f cluster.Family) bool {
	paths := [...]string{"net/ipv4/ip_forward", "net/ipv4/conf/all/forwarding"}
	if f == cluster.IPv6 {
		paths = [...]string{"net/ipv6/conf/all/forwarding", "net/ipv6/conf/default/forwarding"}
	}
	for _, p := range paths {
		if n.state.Host.Sysctls[p].Value == "1" {
			return true
		}
	}
	return false
}

// routesLocalnet reports whether the kernel lets a packet with a loopback address out or in by a
// link. 127.0.0.0/8 needs route_localnet. ::1 may leave by all links, and arrive by a link with a
// local route to it.
func routesLocalnet(n *node, a netip.Addr, link string) bool {
	if a.Is6() {
		r, ok := n.state.Host.Routes[host.RouteKey{Table: host.LocalTable, Prefix: netip.PrefixFrom(a, a.BitLen())}]
		return ok && r.Link == link
	}
	for _, l := range [...]string{"all", link} {
		if n.state.Host.Sysctls["net/ipv4/conf/"+l+"/route_localnet"].Value == "1" {
			return true
		}
	}
	return false
}
