package ovn

import (
	"fmt"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/nb"
	"hairpin/walk/conntrack"
	"hairpin/walk/packet"
	"hairpin/walk/path"
)

// A distributed gateway port has the router's NAT rows that reference it (gateway_port). Only
// packets that arrive or leave by the port pass the router's conntrack zones (OVN 25.03).

// addDistributed adds a NAT row to its gateway port. The port's switch knows the row's MAC
// (ls_in_l2_lkup, priority 50) and answers for its address.
func (r *logicalRouter) addDistributed(n *nat) error {
	for _, p := range r.ports {
		if p.row.Name != n.row.GatewayPort {
			continue
		}
		p.nats = append(p.nats, n)
		if p.peer != nil {
			p.peer.sw.byMAC[n.row.ExternalMAC], p.peer.sw.byIP[n.row.External] = p.peer, n.row.ExternalMAC
		}
		return nil
	}
	return missing(n.row, nb.TableRouterPort, n.row.GatewayPort)
}

// checkDistributed rejects rows that are not the 1-to-1 NAT of a logical port.
func (r *logicalRouter) checkDistributed() error {
	for _, p := range r.ports {
		for _, x := range p.nats {
			row := x.row
			switch {
			case r.isGateway():
				return fmt.Errorf("%s: NAT of a distributed gateway port on a router with a chassis is not known",
					row.Key())
			case row.Type != nb.DNATAndSNAT, !row.Logical.IsSingleIP(), row.LogicalPort == "",
				row.ExternalMAC == (cluster.MAC{}), row.PortRange+row.Match != "", p.row.Chassis == "":
				return fmt.Errorf("%s: it is not known what it does at port %s", row.Key(), p.row.Name)
			}
		}
	}
	return nil
}

// isLocal reports whether the row's logical port is on this node. If so, this node translates.
func (x *nat) isLocal(n *Network) bool { return n.node.HasPort(x.row.LogicalPort) }

// hasExternalMAC runs lr_in_admission at priority 50.
func (p *routerPort) hasExternalMAC(n *Network, m cluster.MAC) bool {
	for _, x := range p.nats {
		if x.row.ExternalMAC == m && x.isLocal(n) {
			return true
		}
	}
	return false
}

// enterDistributed runs lr_in_unsnat and lr_in_dnat of a distributed gateway port.
func enterDistributed(pkt *path.Path, in *routerPort) {
	for _, x := range in.nats {
		if pkt.Dst != x.row.External {
			continue
		}
		rt := in.router
		trackKnown(pkt, pkt.Join(rt.row.Name, " lr_in_unsnat"), unSNATRule{port: in.row.Name, dst: x.row.External},
			rt.snatZone, x.row.Owner)
		if pkt.Dst != x.row.External {
			return
		}
		before := pkt.Packet
		made := pkt.Track(rt.dnatZone,
			conntrack.Translation{Commit: true, NAT: flow.NATDst, Addr: x.row.Logical.Addr()})
		s := pkt.Step(pkt.Join(rt.row.Name, " lr_in_dnat"), x.row, x.row.Owner, pkt.Changed(&before))
		if made != nil {
			s.Entry = made.String()
		}
		return
	}
}

// leaveDistributed runs lr_in_gw_redirect, lr_out_undnat and lr_out_snat of a distributed gateway
// port. A packet without a row leaves by the port's chassis, with the port's own MAC, untranslated.
func (n *Network) leaveDistributed(pkt *path.Path, out *routerPort) error {
	for _, x := range out.nats {
		if pkt.Dst == x.row.External {
			return fmt.Errorf("%s: a packet from within to its external address is not known (lr_out_egr_loop)",
				x.row.Key())
		}
	}
	for _, x := range out.nats {
		if pkt.Src != x.row.Logical.Addr() || !x.isLocal(n) {
			continue
		}
		rt := out.router
		pkt.EthSrc = x.row.ExternalMAC
		pkt.Step(pkt.Join(rt.row.Name, " lr_in_gw_redirect"), x.row, x.row.Owner, "from MAC "+
			packet.MACText(x.row.ExternalMAC)+", on this node")
		trackKnown(pkt, pkt.Join(rt.row.Name, " lr_out_undnat"), "ip, ct_dnat", rt.dnatZone, x.row.Owner)
		if pkt.CT.Is(flow.CTRpl) {
			return nil
		}
		return snat(pkt, rt, x.row, x.row.Owner, conntrack.Translation{Addr: x.row.External}, "")
	}
	return nil
}
