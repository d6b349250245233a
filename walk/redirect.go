package walk

import (
	"fmt"
	"net/netip"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/redirect"
)

// redirect runs the eBPF program at a link's ingress, before the rest of the host sees the frame.
// ok is false when the program passes the packet on.
func (r *run) redirect(n *node, link string) (to location, ok bool, err error) {
	p, there := n.state.Redirect.Programs[link]
	if !there {
		return to, false, nil
	}
	service := redirect.Service{Addr: netip.AddrPortFrom(r.p.Dst, r.p.DstPort), Protocol: r.p.Protocol}
	switch p.Name {
	case claims.ProgramRequest:
		way, found := n.state.Redirect.Services[service]
		bridge := n.redirectsTo()
		if !found || bridge == nil {
			return to, false, nil
		}
		// The kernel's function looks up TCP and UDP only.
		if e, reply := r.ct.find(n.zone0, tupleOf(&r.p)); reply && r.p.Protocol != cluster.SCTP {
			r.step(n, "tc "+link+" ingress "+p.Name, e.String(), p.Owner,
				"left to the host, whose connection it replies to")
			return to, false, nil
		}
		mac := claims.MasqMAC
		if way.Tracked {
			mac = claims.RedirectMAC
		}
		sender, _ := cluster.ParseMAC(mac) // it is one
		r.p.EthSrc, r.p.EthDst = sender, bridge.MAC
		r.step(n, "tc "+link+" ingress "+p.Name, service, way.Owner, "redirected to "+bridge.Link+", from MAC "+
			ethernet(sender)+", to MAC "+ethernet(bridge.MAC))
		if bridge.Link != n.bridge.name {
			return to, false, fmt.Errorf("%s: %s is not the gateway bridge", bridge, bridge.Link)
		}
		return location{bridgeReceives, n, flow.Local}, true, nil
	case claims.ProgramReply:
		if mac, _ := cluster.ParseMAC(claims.RedirectMAC); r.p.EthSrc != mac {
			return to, false, nil
		}
		return r.redirectReply(n, "tc "+link+" ingress "+p.Name, p)
	}
	return to, false, fmt.Errorf("%s: not a program that is known", p)
}

// redirectReply forwards a reply by the host's routes. A reply without a route is left to the host.
func (r *run) redirectReply(n *node, stage string, p redirect.Program) (to location, ok bool, err error) {
	r.p.Mark = 0
	if route, _ := n.kernel.lookup(&r.p, n.bridge.name); route == nil || n.kernel.isLocal(r.p.Dst) ||
		!forwards(n, cluster.FamilyOf(r.p.Dst)) {
		r.step(n, stage, p, p.Owner, "left to the host, whose routes do not lead out")
		return to, false, nil
	}
	r.step(n, stage, p, p.Owner, "redirected as the host routes")
	route, err := r.ipRoute(n, n.bridge.name)
	if err == nil {
		to, err = r.transmit(n, route)
	}
	return to, true, err
}

// redirectsTo returns the program of the gateway bridge, to which requests are redirected; nil if
// none.
func (n *node) redirectsTo() *redirect.Program {
	for _, p := range n.state.Redirect.Programs {
		if p.Name == claims.ProgramReply && p.MAC != (cluster.MAC{}) {
			return &p
		}
	}
	return nil
}
