package ovn

import (
	"fmt"
	"net/netip"

	"hairpin/datapath/flow"
	"hairpin/datapath/nb"
	"hairpin/walk/conntrack"
	"hairpin/walk/ovn/match"
	"hairpin/walk/packet"
	"hairpin/walk/path"
)

// stateful reports whether packets of a port pass conntrack. On a switch with load balancers, those
// of all ports do, except router and localnet ports (ls_in_pre_lb, ls_out_pre_lb).
func (p *Port) stateful() bool {
	return len(p.sw.balancers) > 0 && p.row.Type != "router" && p.row.Type != "localnet"
}

// SwitchReceives runs a logical switch's pipelines, for a packet from one of its ports. It returns
// the egress port.
func (n *Network) SwitchReceives(pkt *path.Path, name string) (next string, err error) {
	in := n.ports[name]
	if in == nil {
		return pkt.Drop(packet.Other, "there is no logical switch port "+name)
	}
	sw := in.sw
	if err := in.Check(); err != nil {
		return "", err
	}
	pkt.CT = conntrack.State{}
	if pkt.VLAN != 0 {
		return pkt.Drop(packet.Other, fmt.Sprintf("%s ls_in_check_port_sec drops it: the frame is for VLAN %d", sw.row.Name,
			pkt.VLAN))
	}
	if !in.allows(pkt.EthSrc, pkt.Src) {
		return pkt.Drop(packet.NotItsOwn,
			fmt.Sprintf("port security of %s (%s ls_in_apply_port_sec) drops it: %s with %s is not the port's", name,
				sw.row.Name, pkt.Src, pkt.EthSrc))
	}
	if in.stateful() {
		if hairpin, err := n.switchBalances(pkt, in); err != nil || pkt.End != nil {
			return "", err
		} else if hairpin {
			pkt.EthSrc, pkt.EthDst = pkt.EthDst, pkt.EthSrc
			return switchEgress(pkt, in)
		}
	} else if err := n.qos(pkt, sw, in); err != nil {
		return "", err
	}
	if err := n.acl(pkt, sw, in); err != nil || pkt.End != nil {
		return "", err
	}
	if in.stateful() {
		commitNew(pkt, pkt.Join(sw.row.Name, " ls_in_stateful"), in.row.Name, sw.row.Owner)
	}
	out, unknown := sw.byMAC[pkt.EthDst], false
	if out == nil {
		out, unknown = sw.unknown, true
	}
	switch {
	case out == nil:
		return pkt.Drop(packet.NoNeighbor, fmt.Sprintf("switch %s has no port for %s", sw.row.Name, pkt.EthDst))
	case out == in:
		return pkt.Drop(packet.Other, fmt.Sprintf("switch %s: %s is behind port %s, where the packet comes from", sw.row.Name,
			pkt.EthDst, name))
	}
	if unknown {
		pkt.Step(pkt.Join(sw.row.Name, " ls_in_l2_unknown"), `outport == "none", outport = "_MC_unknown"`,
			out.row.Owner, pkt.Join("out of port ", out.row.Name))
	} else {
		pkt.Step(pkt.Join(sw.row.Name, " ls_in_l2_lkup"), lookupRule{pkt.EthDst, out.row.Name}, out.row.Owner,
			pkt.Join("out of port ", out.row.Name))
	}
	return switchEgress(pkt, out)
}

// Check rejects options of a switch or a port that walk does not know.
func (p *Port) Check() error {
	if p.checked {
		return nil
	}
	switch p.row.Type {
	case "", "router", "localnet":
	default:
		return fmt.Errorf("%s: type %q is not known", p.row.Key(), p.row.Type)
	}
	if err := unknownOption(p.sw.row, p.sw.row.OtherConfig, "subnet", "ipv6_prefix", "exclude_ips", "interconn-ts",
		"requested-tnl-key", "mcast_snoop",
		"mcast_querier", "mcast_flood_unregistered", "broadcast-arps-to-all-routers", "fdb_age_threshold",
		"ct-zone-limit"); err != nil {
		return err
	}
	err := unknownOption(p.row, p.row.Options, "router-port", "nat-addresses", "exclude-lb-vips-from-garp", "arp_proxy",
		"network_name",
		"requested-tnl-key", "iface-id-ver", "mcast_flood", "localnet_learn_fdb", "disable_arp_nd_rsp")
	p.checked = err == nil
	return err
}

// switchBalances runs ls_in_pre_stateful to ls_in_hairpin: conntrack in the port's zone, load
// balancing of new connections, and the hairpin of connections whose endpoint is the sender.
func (n *Network) switchBalances(pkt *path.Path, in *Port) (hairpin bool, err error) {
	sw, z := in.sw, in.row.Name
	trackKnown(pkt, pkt.Join(sw.row.Name, " ls_in_pre_stateful"), "ct_lb_mark", z, sw.row.Owner)
	if err := n.qos(pkt, sw, in); err != nil {
		return false, err
	}
	snat := sw.snatZone
	if !pkt.CT.Is(flow.CTNew) {
		return continueHairpin(pkt, in, snat)
	}
	vip := pkt.Dst
	v, err := sw.balancers.lookup(&pkt.Packet)
	switch {
	case err != nil:
		return false, err
	case v != nil:
		err := balance(pkt, pkt.Join(sw.row.Name, " ls_in_lb"), pkt.Join(sw.row.Name, " ls_in_lb_aff_learn"),
			z, v, Flags{})
		switch {
		case err != nil || pkt.End != nil:
			return false, err
		case pkt.Src == pkt.Dst:
			return true, translateHairpin(pkt, in, v, vip, snat)
		}
	default:
		return continueHairpin(pkt, in, snat)
	}
	return false, nil
}

// qos is a row of the QoS table.
type qos struct {
	row   *nb.QoS
	match rowMatch
}

// qos runs ls_in_qos: the first row that matches marks the packet.
func (n *Network) qos(pkt *path.Path, sw *logicalSwitch, in *Port) error {
	m := match.Facts{Packet: &pkt.Packet, In: in.row.Name, Reply: pkt.CT.Is(flow.CTRpl)}
	for _, q := range sw.qos {
		holds, err := q.match.holds(q.row, q.row.Match, &m, n.sets)
		switch {
		case err != nil:
			return err
		case holds:
			pkt.Mark = q.row.Mark
			pkt.Step(pkt.Join(sw.row.Name, " ls_in_qos"), q.row, q.row.Owner, fmt.Sprintf("mark %d", q.row.Mark))
			return nil
		}
	}
	return nil
}

// acl is a row of the ACL table.
type acl struct {
	row   *nb.ACL
	match rowMatch
}

// acl runs ls_in_acl_after_lb_eval and ls_in_acl_after_lb_action: the first row that matches
// decides. It does not apply to replies, which ls_in_acl_eval has allowed (priority 65532).
func (n *Network) acl(pkt *path.Path, sw *logicalSwitch, in *Port) error {
	if pkt.CT.Is(flow.CTRpl) {
		return nil
	}
	m := match.Facts{Packet: &pkt.Packet, In: in.row.Name}
	for _, a := range sw.acls {
		holds, err := a.match.holds(a.row, a.row.Match, &m, n.sets)
		if err != nil {
			return err
		}
		if !holds {
			continue
		}
		stage := pkt.Join(sw.row.Name, " ls_in_acl_after_lb_eval")
		switch a.row.Action {
		case nb.Allow:
			pkt.Step(stage, a.row, a.row.Owner, "allowed")
			return nil
		case nb.Drop:
			pkt.Drop(packet.Other, fmt.Sprintf("an ACL of %s drops it: %s", stage, a.row.Match))
			return nil
		}
		return fmt.Errorf("%s: action %q is not known", a.row.Key(), a.row.Action)
	}
	return nil
}

// translateHairpin gives a packet that returns to its sender a source address that the sender does
// not have (ls_in_nat_hairpin).
func translateHairpin(pkt *path.Path, in *Port, v *vip, vip netip.Addr, snat string) error {
	source, err := hairpinSource(v.lb, vip)
	if err != nil {
		return err
	}
	before := pkt.Packet
	made := pkt.Track(snat, conntrack.Translation{Commit: true, NAT: flow.NATSrc, Addr: source, Inline: true})
	s := pkt.Step(pkt.Join(in.sw.row.Name, " ls_in_nat_hairpin"), optionRule{v.lb, "hairpin_snat_ip"}, v.lb.Owner,
		"the endpoint is the sender: "+pkt.Changed(&before)+", back out of port "+in.row.Name)
	if made != nil {
		s.Entry = made.String()
	}
	return nil
}

// continueHairpin handles a later packet of a hairpinned connection, or its reply.
func continueHairpin(pkt *path.Path, in *Port, snat string) (bool, error) {
	e, reply := pkt.Connections.Find(pkt.Zone(snat), conntrack.TupleOf(&pkt.Packet))
	if e == nil {
		return false, nil
	}
	before := pkt.Packet
	pkt.Track(snat, conntrack.Translation{NAT: flow.NATUndo})
	words := "the endpoint is the sender: "
	if reply {
		words = "a reply to the hairpin address: "
	}
	pkt.Step(pkt.Join(in.sw.row.Name, " ls_in_nat_hairpin"), "ct_snat", in.sw.row.Owner, words+pkt.Changed(&before)+
		", back out of port "+in.row.Name)
	return true, nil
}

// switchEgress runs a logical switch's egress pipeline: conntrack in the zone of the port.
func switchEgress(pkt *path.Path, out *Port) (next string, err error) {
	if out.stateful() {
		z := out.row.Name
		trackKnown(pkt, pkt.Join(out.sw.row.Name, " ls_out_pre_stateful"), "ct_lb_mark", z, out.sw.row.Owner)
		commitNew(pkt, pkt.Join(out.sw.row.Name, " ls_out_stateful"), z, out.sw.row.Owner)
	}
	if !out.allows(pkt.EthDst, pkt.Dst) {
		return pkt.Drop(packet.Other, fmt.Sprintf("port security of %s (%s ls_out_apply_port_sec) drops it: %s with "+
			"%s is not the port's", out.row.Name, out.sw.row.Name, pkt.Dst, pkt.EthDst))
	}
	return out.row.Name, nil
}
