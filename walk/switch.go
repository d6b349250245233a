package walk

import (
	"fmt"
	"net/netip"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/nb"
)

// stateful reports whether packets of a port pass conntrack. On a switch with load balancers, those
// of all ports do, except router and localnet ports (ls_in_pre_lb, ls_out_pre_lb).
func (p *switchPort) stateful() bool {
	return len(p.sw.balancers) > 0 && p.row.Type != "router" && p.row.Type != "localnet"
}

// switchReceives runs a logical switch's ingress pipeline.
func (r *run) switchReceives(n *node, name string) (location, error) {
	in := n.ovn.ports[name]
	if in == nil {
		return r.drop(Other, "there is no logical switch port "+name)
	}
	sw := in.sw
	if err := in.check(); err != nil {
		return location{}, err
	}
	r.ctState = tracking{}
	if r.p.VLAN != 0 {
		return r.drop(Other, fmt.Sprintf("%s ls_in_check_port_sec drops it: the frame is for VLAN %d", sw.row.Name,
			r.p.VLAN))
	}
	if !in.lets(r.p.EthSrc, r.p.Src) {
		return r.drop(NotItsOwn,
			fmt.Sprintf("port security of %s (%s ls_in_apply_port_sec) drops it: %s with %s is not the port's", name,
				sw.row.Name, r.p.Src, r.p.EthSrc))
	}
	if in.stateful() {
		if hairpin, err := r.switchBalances(n, in); err != nil || r.done {
			return location{}, err
		} else if hairpin {
			r.p.EthSrc, r.p.EthDst = r.p.EthDst, r.p.EthSrc
			return r.switchEgress(n, in)
		}
	} else if err := r.qos(n, sw, in); err != nil {
		return location{}, err
	}
	if err := r.acl(n, sw, in); err != nil || r.done {
		return location{}, err
	}
	if in.stateful() {
		r.commitNew(n, r.w.join(sw.row.Name, " ls_in_stateful"), n.zone(in.row.Name), sw.row.Owner)
	}
	out, unknown := sw.byMAC[r.p.EthDst], false
	if out == nil {
		out, unknown = sw.unknown, true
	}
	switch {
	case out == nil:
		return r.drop(NoNeighbor, fmt.Sprintf("switch %s has no port for %s", sw.row.Name, r.p.EthDst))
	case out == in:
		return r.drop(Other, fmt.Sprintf("switch %s: %s is behind port %s, where the packet comes from", sw.row.Name,
			r.p.EthDst, name))
	}
	if unknown {
		r.step(n, r.w.join(sw.row.Name, " ls_in_l2_unknown"), `outport == "none", outport = "_MC_unknown"`,
			out.row.Owner, r.w.join("out of port ", out.row.Name))
	} else {
		r.step(n, r.w.join(sw.row.Name, " ls_in_l2_lkup"), lookedUp{r.p.EthDst, out.row.Name}, out.row.Owner,
			r.w.join("out of port ", out.row.Name))
	}
	return r.switchEgress(n, out)
}

// check rejects options of a switch or a port that walk does not know.
func (p *switchPort) check() error {
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
func (r *run) switchBalances(n *node, in *switchPort) (hairpin bool, err error) {
	sw, z := in.sw, n.zone(in.row.Name)
	r.unNAT(n, r.w.join(sw.row.Name, " ls_in_pre_stateful"), "ct_lb_mark", z, sw.row.Owner)
	if err := r.qos(n, sw, in); err != nil {
		return false, err
	}
	snat := n.zone(sw.snatZone)
	if !r.ctState.is(flow.CTNew) {
		return r.hairpinAgain(n, in, snat)
	}
	asked := r.p.Dst
	v, err := sw.balancers.lookup(&r.p)
	switch {
	case err != nil:
		return false, err
	case v != nil:
		out, reason, err := r.balance(n, r.w.join(sw.row.Name, " ls_in_lb"),
			r.w.join(sw.row.Name, " ls_in_lb_aff_learn"), z, v, routerFlags{})
		switch {
		case err != nil:
			return false, err
		case out == refused:
			_, err = r.refuse(location{switchOutput, n, in.row.Name}, routerFlags{}, NoEndpoint, reason)
			return false, err
		case out == dropped:
			_, err = r.drop(v.lost(), reason)
			return false, err
		case r.p.Src == r.p.Dst:
			return true, r.hairpin(n, in, v, asked, snat)
		}
	default:
		return r.hairpinAgain(n, in, snat)
	}
	return false, nil
}

// qos is a row of the QoS table; its match is parsed when a packet first meets it.
type qos struct {
	row   *nb.QoS
	match expression
}

// qos runs ls_in_qos: the first row that matches marks the packet.
func (r *run) qos(n *node, sw *logicalSwitch, in *switchPort) error {
	m := matched{p: &r.p, in: in.row.Name, reply: r.ctState.is(flow.CTRpl)}
	for _, q := range sw.qos {
		if q.match == nil {
			var err error
			if q.match, err = parseMatch(q.row.Match, n.ovn.sets); err != nil {
				return fmt.Errorf("%s: %w", q.row.Key(), err)
			}
		}
		if q.match.holds(&m) {
			r.p.Mark = q.row.Mark
			r.step(n, r.w.join(sw.row.Name, " ls_in_qos"), q.row, q.row.Owner, fmt.Sprintf("mark %d", q.row.Mark))
			return nil
		}
	}
	return nil
}

// acl is a row of the ACL table; its match is parsed when a packet first meets it.
type acl struct {
	row   *nb.ACL
	match expression
}

// acl runs ls_in_acl_after_lb_eval and ls_in_acl_after_lb_action: the first row that matches
// decides. It does not apply to replies, which ls_in_acl_eval has allowed (priority 65532).
func (r *run) acl(n *node, sw *logicalSwitch, in *switchPort) error {
	if r.ctState.is(flow.CTRpl) {
		return nil
	}
	m := matched{p: &r.p, in: in.row.Name}
	for _, a := range sw.acls {
		if a.match == nil {
			var err error
			if a.match, err = parseMatch(a.row.Match, n.ovn.sets); err != nil {
				return fmt.Errorf("%s: %w", a.row.Key(), err)
			}
		}
		if !a.match.holds(&m) {
			continue
		}
		stage := r.w.join(sw.row.Name, " ls_in_acl_after_lb_eval")
		switch a.row.Action {
		case nb.Allow:
			r.step(n, stage, a.row, a.row.Owner, "allowed")
			return nil
		case nb.Drop:
			_, err := r.drop(Other, fmt.Sprintf("an ACL of %s drops it: %s", stage, a.row.Match))
			return err
		}
		return fmt.Errorf("%s: action %q is not known", a.row.Key(), a.row.Action)
	}
	return nil
}

// hairpin gives a packet that returns to its sender a source address that the sender does not have
// (ls_in_nat_hairpin).
func (r *run) hairpin(n *node, in *switchPort, v *vip, asked netip.Addr, snat zone) error {
	source, err := hairpinSource(v.lb, asked)
	if err != nil {
		return err
	}
	before := r.p
	made := r.track(snat, translation{commit: true, nat: flow.NATSrc, addr: source, inline: true})
	s := r.step(n, r.w.join(in.sw.row.Name, " ls_in_nat_hairpin"), option{v.lb, "hairpin_snat_ip"}, v.lb.Owner,
		"the endpoint is the sender: "+changed(&before, &r.p)+", back out of port "+in.row.Name)
	if made != nil {
		s.Entry = made.String()
	}
	return nil
}

// hairpinAgain handles a later packet of a hairpinned connection, or its reply.
func (r *run) hairpinAgain(n *node, in *switchPort, snat zone) (bool, error) {
	e, reply := r.ct.find(snat, tupleOf(&r.p))
	if e == nil {
		return false, nil
	}
	before := r.p
	r.track(snat, translation{nat: flow.NATUndo})
	words := "the endpoint is the sender: "
	if reply {
		words = "a reply to the hairpin address: "
	}
	r.step(n, r.w.join(in.sw.row.Name, " ls_in_nat_hairpin"), "ct_snat", in.sw.row.Owner, words+changed(&before, &r.p)+
		", back out of port "+in.row.Name)
	return true, nil
}

// unNAT looks the packet up in a zone and translates it as its connection requires. It adds a step
// only if the packet changes.
func (r *run) unNAT(n *node, stage string, rule any, z zone, why cluster.Owner) {
	before := r.p
	r.track(z, translation{nat: flow.NATUndo})
	if did := changed(&before, &r.p); did != "" {
		r.step(n, stage, rule, why, did)
	}
}

// commitNew commits a new connection that nothing has translated.
func (r *run) commitNew(n *node, stage string, z zone, why cluster.Owner) {
	if !r.ctState.is(flow.CTNew) {
		return
	}
	if made := r.track(z, translation{commit: true, inline: true}); made != nil {
		s := r.step(n, stage, "ct.new, ct_commit", why, "committed")
		s.Entry = made.String()
	}
}

// switchEgress runs a logical switch's egress pipeline: conntrack in the zone of the port.
func (r *run) switchEgress(n *node, out *switchPort) (location, error) {
	if out.stateful() {
		z := n.zone(out.row.Name)
		r.unNAT(n, r.w.join(out.sw.row.Name, " ls_out_pre_stateful"), "ct_lb_mark", z, out.sw.row.Owner)
		r.commitNew(n, r.w.join(out.sw.row.Name, " ls_out_stateful"), z, out.sw.row.Owner)
	}
	if !out.lets(r.p.EthDst, r.p.Dst) {
		return r.drop(Other, fmt.Sprintf("port security of %s (%s ls_out_apply_port_sec) drops it: %s with "+
			"%s is not the port's", out.row.Name, out.sw.row.Name, r.p.Dst, r.p.EthDst))
	}
	return location{switchOutput, n, out.row.Name}, nil
}

// switchOutput delivers the packet to what a port connects to.
func (r *run) switchOutput(n *node, name string) (location, error) {
	p := n.ovn.ports[name]
	r.ctState = tracking{}
	if err := p.check(); err != nil {
		return location{}, err
	}
	switch p.row.Type {
	case "router":
		return location{routerReceives, n, p.peer.row.Name}, nil
	case "localnet":
		patch := patchPort(p.row)
		if b := n.bridge.behind(patch); b != nil {
			return location{plainReceives, n, patch}, nil
		}
		if n.bridge.patch[patch] == "" {
			return r.drop(Other, fmt.Sprintf("port %s: no bridge is mapped to network %q (ovn-bridge-mappings)", name,
				p.row.Options["network_name"]))
		}
		return location{bridgeReceives, n, patch}, nil
	}
	if pod := n.pods[name]; pod != nil {
		return r.podReceives(n, pod)
	}
	if link, ok := n.link(name); ok {
		if peer := n.state.Bridge.Ports[link].Peer; peer != "" {
			return location{bridgeReceives, n, peer}, nil
		}
		return location{hostReceives, n, link}, nil
	}
	return r.drop(Other, fmt.Sprintf("no interface is bound to port %s", name))
}
