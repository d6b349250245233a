package ovn

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/nb"
	"hairpin/walk/conntrack"
	"hairpin/walk/ovn/match"
	"hairpin/walk/packet"
	"hairpin/walk/path"
)

// policy is a Logical_Router_Policy.
type policy struct {
	row   *nb.Policy
	match rowMatch
}

// prepare sorts policies, routes and NAT rows as OVN does, and sets the names of the zones.
func (r *logicalRouter) prepare() {
	r.dnatZone, r.snatZone = r.row.Name+"_dnat", cmp.Or(r.row.Options["snat-ct-zone"], r.row.Name+"_snat")
	r.sortRoutes()
	slices.SortFunc(r.policies, func(a, b *policy) int {
		return cmp.Or(cmp.Compare(b.row.Priority, a.row.Priority), cmp.Compare(a.row.Match, b.row.Match))
	})
	slices.SortFunc(r.nats, func(a, b *nat) int {
		return cmp.Or(cmp.Compare(b.priority(), a.priority()), a.row.Logical.Compare(b.row.Logical),
			cmp.Compare(a.row.Match, b.row.Match))
	})
}

// isGateway reports whether it is a gateway router: the whole router is on one chassis.
func (r *logicalRouter) isGateway() bool { return r.row.Options["chassis"] != "" }

// forcesSNAT reports whether load-balanced packets get the address of their egress port as the
// source (lb_force_snat_ip=router_ip).
func (r *logicalRouter) forcesSNAT() bool { return r.row.Options["lb_force_snat_ip"] == "router_ip" }

// tracksOutgoing reports whether every outgoing packet passes the router's DNAT zone (lr_out_undnat
// of a gateway router).
func (r *logicalRouter) tracksOutgoing() bool { return len(r.balancers) > 0 || len(r.nats) > 0 }

func (r *logicalRouter) check(n *Network) error {
	if r.checked {
		return nil
	}
	if err := unknownOption(r.row, r.row.Options, "chassis", "lb_force_snat_ip", "snat-ct-zone",
		"dynamic_neigh_routers", "always_learn_from_arp_request",
		"mac_binding_age_threshold", "requested-tnl-key", "mcast_relay", "ct-zone-limit"); err != nil {
		return err
	}
	switch ip := r.row.Options["lb_force_snat_ip"]; {
	case ip != "" && ip != "router_ip":
		return fmt.Errorf("%s: lb_force_snat_ip=%s is not known", r.row.Key(), ip)
	case !r.isGateway() && r.tracksOutgoing():
		return fmt.Errorf("%s: NAT or load balancers on a router without a chassis are not known", r.row.Key())
	case r.isGateway() && r.row.Options["chassis"] != n.chassis:
		return fmt.Errorf("%s: it is on chassis %q, this node is %q", r.row.Key(), r.row.Options["chassis"],
			n.chassis)
	}
	err := r.checkDistributed()
	r.checked = err == nil
	return err
}

// RouterReceives runs a logical router's pipelines, for a packet from one of its ports. It returns
// the logical switch port behind the egress port. flags are those of the packet, which a rejection
// keeps.
func (n *Network) RouterReceives(pkt *path.Path, port string) (next string, flags Flags, err error) {
	in := n.routerPorts[port]
	if err := in.router.check(n); err != nil {
		return "", flags, err
	}
	pkt.CT = conntrack.State{}
	if reason := n.admit(pkt, in); reason != "" {
		pkt.Drop(packet.Other, reason)
		return "", flags, nil
	}
	unSNAT(pkt, in)
	enterDistributed(pkt, in)
	if flags, err = routerBalances(pkt, in); err != nil || pkt.End != nil {
		return "", flags, err
	}
	next, err = n.forward(pkt, in, flags)
	return next, flags, err
}

// forward runs a logical router's pipelines from lr_in_ip_routing on.
func (n *Network) forward(pkt *path.Path, in *routerPort, flags Flags) (next string, err error) {
	rt := in.router
	to, ok, err := route(pkt, rt)
	if err != nil {
		return "", err
	}
	if !ok {
		return pkt.Drop(packet.NoRoute, fmt.Sprintf("%s has no route to %s", rt.row.Name, pkt.Dst))
	}
	if to, ok, err = n.policy(pkt, rt, in.row.Name, to); err != nil || !ok {
		return pkt.DropOr(err, fmt.Sprintf("a policy of %s drops it", rt.row.Name))
	}
	mac, reason := n.resolveNextHop(pkt, rt, to)
	if reason != "" {
		return pkt.Drop(packet.NoNeighbor, reason)
	}
	if chassis := to.out.row.Chassis; chassis != "" && chassis != n.chassis {
		return "", fmt.Errorf("%s is on chassis %q, not here: not known", to.out.row.Key(), chassis)
	}
	pkt.EthSrc, pkt.EthDst = to.out.row.MAC, mac
	if err := n.leaveDistributed(pkt, to.out); err != nil {
		return "", err
	}
	unDNAT(pkt, rt)
	if err := n.sourceNAT(pkt, rt, to.out, flags); err != nil {
		return "", err
	}
	return leaveRouter(pkt, to.out)
}

// resolveNextHop runs lr_in_arp_resolve and lr_in_arp_request. It returns the MAC of the next hop,
// or the reason why there is none. It looks at ports of the same switch, then at static MAC
// bindings, then at the external network.
func (n *Network) resolveNextHop(pkt *path.Path, rt *logicalRouter, to routed) (mac cluster.MAC, reason string) {
	stage := pkt.Join(rt.row.Name, " lr_in_arp_resolve")
	var sw *logicalSwitch
	if to.out.peer != nil {
		sw = to.out.peer.sw
		if m, ok := sw.macFor(to.hop); ok && rt.byIP[to.hop] == nil {
			return m, ""
		}
	}
	if rt.byIP[pkt.Dst] != nil {
		return mac, fmt.Sprintf("%s drops it: %s is the router's own address, and nothing translated the packet", stage,
			pkt.Dst)
	}
	if b := n.bindings[binding{to.out.row.Name, to.hop}]; b != nil {
		pkt.Step(stage, b, b.Owner, "next hop "+to.hop.String()+" has "+packet.MACText(b.MAC))
		return b.MAC, ""
	}
	if sw != nil && sw.localnet() {
		if m, ok := n.node.Resolve(to.hop); ok {
			return m, ""
		}
	}
	return mac, fmt.Sprintf("no neighbour of %s has %s", to.out.row.Name, to.hop)
}

// localnet reports whether the switch reaches a network outside of OVN.
func (sw *logicalSwitch) localnet() bool {
	for _, p := range sw.ports {
		if p.row.Type == "localnet" {
			return true
		}
	}
	return false
}

// leaveRouter runs lr_out_delivery.
func leaveRouter(pkt *path.Path, out *routerPort) (next string, err error) {
	if out.peer == nil {
		return pkt.Drop(packet.Other, fmt.Sprintf("router port %s leads nowhere", out.row.Name))
	}
	return out.peer.row.Name, nil
}

// RouterRejects sends the rejection by a router's load balancer out of a port of the router: from
// lr_out_snat on, with the flags of the rejected packet.
func (n *Network) RouterRejects(pkt *path.Path, port string, flags Flags) (next string, err error) {
	out := n.routerPorts[port]
	pkt.CT = conntrack.State{}
	if err := n.sourceNAT(pkt, out.router, out, flags); err != nil {
		return "", err
	}
	return leaveRouter(pkt, out)
}

// admit runs lr_in_admission and lr_in_ip_input. It returns the reason if the router does not
// accept the packet, else "".
func (n *Network) admit(pkt *path.Path, in *routerPort) string {
	rt := in.router
	if pkt.EthDst != in.row.MAC && !in.hasExternalMAC(n, pkt.EthDst) {
		return fmt.Sprintf("the frame is for %s, router port %s has %s", pkt.EthDst, in.row.Name, in.row.MAC)
	}
	for _, a := range [...]netip.Addr{pkt.Src, pkt.Dst} {
		if a.Is4() && (a.IsLoopback() || a.As4()[0] == 0) {
			return fmt.Sprintf("%s lr_in_ip_input drops it: %s must not be forwarded by a router", rt.row.Name, a)
		}
	}
	if pkt.Src.Is4() && rt.byIP[pkt.Src] != nil {
		return fmt.Sprintf("%s lr_in_ip_input drops it: its source %s is the router's own address", rt.row.Name,
			pkt.Src)
	}
	if rt.byIP[pkt.Dst] != nil && !rt.translates(pkt.Dst) {
		return fmt.Sprintf("%s lr_in_ip_input drops it: %s is the router's own address", rt.row.Name, pkt.Dst)
	}
	return ""
}

// translates reports whether an own address of the router is also a NAT or load balancer address.
// Packets to such an address continue to lr_in_arp_resolve.
func (r *logicalRouter) translates(a netip.Addr) bool {
	return r.forcesSNAT() || r.externals[a] != nil || r.balancers.haveAddress(a)
}

// unSNAT runs lr_in_unsnat.
func unSNAT(pkt *path.Path, in *routerPort) {
	rt := in.router
	stage, rule := pkt.Join(rt.row.Name, " lr_in_unsnat"), unSNATRule{dst: pkt.Dst}
	switch x := rt.externals[pkt.Dst]; {
	case rt.forcesSNAT() && rt.byIP[pkt.Dst] == in:
		rule.port = in.row.Name
		trackKnown(pkt, stage, rule, rt.snatZone, rt.row.Owner)
	case x != nil:
		trackKnown(pkt, stage, rule, rt.snatZone, x.row.Owner)
	}
}

// routerBalances runs lr_in_defrag and lr_in_dnat.
func routerBalances(pkt *path.Path, in *routerPort) (Flags, error) {
	rt := in.router
	if !rt.balancers.haveAddress(pkt.Dst) {
		return Flags{}, nil
	}
	stage, z := pkt.Join(rt.row.Name, " lr_in_dnat"), rt.dnatZone
	v, err := rt.balancers.lookup(&pkt.Packet)
	if err != nil {
		return Flags{}, err
	}
	trackKnown(pkt, pkt.Join(rt.row.Name, " lr_in_defrag"), defragRule{pkt.Dst}, z, rt.row.Owner)
	if !pkt.CT.Is(flow.CTNew) || v == nil {
		if mark := pkt.CT.Mark(); !pkt.CT.Is(flow.CTRpl) {
			return Flags{force: mark&match.ForceSNAT != 0, skip: mark&match.SkipSNAT != 0}, nil
		}
		return Flags{}, nil
	}
	flags := Flags{skip: v.lb.Options["skip_snat"] == "true"}
	flags.force = rt.forcesSNAT() && !flags.skip
	return flags, balance(pkt, stage, pkt.Join(rt.row.Name, " lr_in_lb_aff_learn"), z, v, flags)
}

// policy runs lr_in_policy and lr_in_policy_ecmp, which may change the next hop. ok is false when
// the packet is dropped.
func (n *Network) policy(pkt *path.Path, rt *logicalRouter, in string, to routed) (routed, bool, error) {
	var found *policy
	m := match.Facts{Packet: &pkt.Packet, In: in, Out: to.out.row.Name, CTMark: pkt.CT.Mark()}
	for _, p := range rt.policies {
		if found != nil && p.row.Priority < found.row.Priority {
			break
		}
		switch holds, err := p.match.holds(p.row, p.row.Match, &m, n.sets); {
		case err != nil:
			return to, false, err
		case !holds:
		case found == nil:
			found = p
		case !samePolicy(found.row, p.row):
			return to, false, fmt.Errorf("%s and %s both match, OVN may take either", found.row.Key(), p.row.Key())
		}
	}
	if found == nil {
		return to, true, nil
	}
	return applyPolicy(pkt, rt, found.row, to)
}

func samePolicy(a, b *nb.Policy) bool {
	return a.Action == b.Action && slices.Equal(a.NextHops, b.NextHops) &&
		a.Options["pkt_mark"] == b.Options["pkt_mark"]
}

func applyPolicy(pkt *path.Path, rt *logicalRouter, row *nb.Policy, to routed) (routed, bool, error) {
	if err := unknownOption(row, row.Options, "pkt_mark"); err != nil {
		return to, false, err
	}
	effect := ""
	if mark := row.Options["pkt_mark"]; mark != "" {
		if _, err := fmt.Sscanf(mark, "%v", &pkt.Packet.Mark); err != nil {
			return to, false, fmt.Errorf("%s: pkt_mark %q: %w", row.Key(), mark, err)
		}
		effect = ", mark " + mark
	}
	stage := pkt.Join(rt.row.Name, " lr_in_policy")
	switch row.Action {
	case nb.Drop:
		pkt.Step(stage, row, row.Owner, "drops it")
		return to, false, nil
	case nb.Allow:
		pkt.Step(stage, row, row.Owner, "continues as routed"+effect)
		return to, true, nil
	case nb.Reroute:
	default:
		return to, false, fmt.Errorf("%s: action %q is not known", row.Key(), row.Action)
	}
	hops := make([]netip.AddrPort, 0, len(row.NextHops))
	for _, h := range row.NextHops {
		if cluster.FamilyOf(h) == cluster.FamilyOf(pkt.Dst) {
			hops = append(hops, netip.AddrPortFrom(h, 0))
		}
	}
	if len(hops) == 0 {
		return to, false, fmt.Errorf("%s has no next hop of the packet's family", row.Key())
	}
	to.hop = hops[pkt.Choose(hops)].Addr()
	if to.out = rt.portTo(to.hop); to.out == nil {
		return to, false, fmt.Errorf("%s: no port leads to %s", row.Key(), to.hop)
	}
	s := pkt.Step(stage, row, row.Owner, "to "+to.hop.String()+" out of port "+to.out.row.Name+effect)
	if len(hops) > 1 {
		s.Choices = hops
	}
	return to, true, nil
}
