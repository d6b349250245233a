package linux

import (
	"fmt"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/redirect"
	"hairpin/walk/packet"
	"hairpin/walk/path"
)

// redirect runs the eBPF program at a link's ingress, before the rest of the host sees the frame.
// ok is false when the program passes the packet on.
func (h *Host) redirect(pkt *path.Path, link string) (to string, ok bool, err error) {
	p, there := h.state.Redirect.Programs[link]
	if !there {
		return to, false, nil
	}
	key := redirect.Service{Addr: pkt.Destination(), Protocol: pkt.Protocol}
	switch p.Name {
	case claims.ProgramRequest:
		service, found := h.state.Redirect.Services[key]
		bridge := h.replyProgram()
		if !found || bridge == nil {
			return to, false, nil
		}
		// The kernel's function looks up TCP and UDP only.
		if e := pkt.Connections.Replies(pkt.Node, &pkt.Packet); e != nil && pkt.Protocol != cluster.SCTP {
			pkt.Step("tc "+link+" ingress "+p.Name, e.String(), p.Owner,
				"left to the host, whose connection it replies to")
			return to, false, nil
		}
		mac := claims.MasqMAC
		if service.Tracked {
			mac = claims.RedirectMAC
		}
		sender, _ := cluster.ParseMAC(mac) // the constant is valid
		pkt.EthSrc, pkt.EthDst = sender, bridge.MAC
		pkt.Step("tc "+link+" ingress "+p.Name, key, service.Owner, "redirected to "+bridge.Link+", from MAC "+
			packet.MACText(sender)+", to MAC "+packet.MACText(bridge.MAC))
		if bridge.Link != h.state.Bridge.Bridge {
			return to, false, fmt.Errorf("%s: %s is not the gateway bridge", bridge, bridge.Link)
		}
		return bridge.Link, true, nil
	case claims.ProgramReply:
		if mac, _ := cluster.ParseMAC(claims.RedirectMAC); pkt.EthSrc != mac {
			return to, false, nil
		}
		return h.redirectReply(pkt, "tc "+link+" ingress "+p.Name, p)
	}
	return to, false, fmt.Errorf("%s: not a program that is known", p)
}

// redirectReply forwards a reply by the host's routes. A reply without a route is left to the host.
func (h *Host) redirectReply(pkt *path.Path, stage string, p redirect.Program) (to string, ok bool, err error) {
	pkt.Mark = 0
	if route, _ := h.lookup(&pkt.Packet, h.state.Bridge.Bridge); route == nil || h.IsLocal(pkt.Dst) ||
		!h.forwards(cluster.FamilyOf(pkt.Dst)) {
		pkt.Step(stage, p, p.Owner, "left to the host, whose routes do not lead out")
		return to, false, nil
	}
	pkt.Step(stage, p, p.Owner, "redirected as the host routes")
	route, err := h.ipRoute(pkt, h.state.Bridge.Bridge)
	if err == nil {
		to, err = h.transmit(pkt, route)
	}
	return to, true, err
}

// replyProgram returns the program for replies, at the bridge to which requests are redirected; nil
// if there is none.
func (h *Host) replyProgram() *redirect.Program {
	for _, p := range h.state.Redirect.Programs {
		if p.Name == claims.ProgramReply && p.MAC != (cluster.MAC{}) {
			return &p
		}
	}
	return nil
}
