package walk

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/nb"
)

// policy is a Logical_Router_Policy; its match is parsed when a packet first meets it.
type policy struct {
	row   *nb.Policy
	match expression
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

// gateway reports whether the whole router is on one chassis.
func (r *logicalRouter) gateway() bool { return r.row.Options["chassis"] != "" }

// forcesSNAT reports whether load-balanced packets get the address of their egress port as the
// source (lb_force_snat_ip=router_ip).
func (r *logicalRouter) forcesSNAT() bool { return r.row.Options["lb_force_snat_ip"] == "router_ip" }

// tracksOutgoing reports whether every outgoing packet passes the router's DNAT zone (lr_out_undnat
// of a gateway router).
func (r *logicalRouter) tracksOutgoing() bool { return len(r.balancers) > 0 || len(r.nats) > 0 }

func (r *logicalRouter) check(n *node) error {
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
	case !r.gateway() && r.tracksOutgoing():
		return fmt.Errorf("%s: NAT or load balancers on a router without a chassis are not known", r.row.Key())
	case r.gateway() && r.row.Options["chassis"] != n.chassis():
		return fmt.Errorf("%s: it is on chassis %q, this node is %q", r.row.Key(), r.row.Options["chassis"],
			n.chassis())
	}
	err := r.checkDistributed()
	r.checked = err == nil
	return err
}

// routerReceives runs a logical router's pipelines.
func (r *run) routerReceives(n *node, name string) (location, error) {
	in := n.ovn.routerPorts[name]
	rt := in.router
	if err := rt.check(n); err != nil {
		return location{}, err
	}
	r.ctState = tracking{}
	if reason := r.admit(n, in); reason != "" {
		return r.drop(Other, reason)
	}
	r.unSNAT(n, in)
	r.enterDistributed(n, in)
	flags, err := r.routerBalances(n, in)
	if err != nil || r.done {
		return location{}, err
	}
	to, ok, err := r.route(n, rt)
	if err != nil {
		return location{}, err
	}
	if !ok {
		return r.drop(NoRoute, fmt.Sprintf("%s has no route to %s", rt.row.Name, r.p.Dst))
	}
	if to, ok, err = r.policy(n, rt, name, to); err != nil || !ok {
		return r.dropOr(err, fmt.Sprintf("a policy of %s drops it", rt.row.Name))
	}
	mac, reason := r.neighbour(n, rt, to)
	if reason != "" {
		return r.drop(NoNeighbor, reason)
	}
	if home := to.out.row.Chassis; home != "" && home != n.chassis() {
		return location{}, fmt.Errorf("%s is on chassis %q, not here: not known", to.out.row.Key(), home)
	}
	r.p.EthSrc, r.p.EthDst = to.out.row.MAC, mac
	if err := r.leaveDistributed(n, to.out); err != nil {
		return location{}, err
	}
	r.unDNAT(n, rt)
	if err := r.sourceNAT(n, rt, to.out, flags); err != nil {
		return location{}, err
	}
	return r.leaveRouter(n, to.out)
}

// dropOr drops the packet by a rule, or returns err. A packet that was rejected has already ended.
func (r *run) dropOr(err error, reason string) (location, error) {
	if err != nil || r.done {
		return location{}, err
	}
	return r.drop(ByRule, reason)
}

// leaveRouter runs lr_out_delivery.
func (r *run) leaveRouter(n *node, out *routerPort) (location, error) {
	if out.peer == nil {
		return r.drop(Other, fmt.Sprintf("router port %s leads nowhere", out.row.Name))
	}
	return location{switchReceives, n, out.peer.row.Name}, nil
}

// routerRefuses sends the refusal of a router's load balancer: from lr_out_snat on, with the flags
// of the rejected packet.
func (r *run) routerRefuses(n *node, name string) (location, error) {
	out := n.ovn.routerPorts[name]
	r.ctState = tracking{}
	if err := r.sourceNAT(n, out.router, out, r.refusal.flags); err != nil {
		return location{}, err
	}
	return r.leaveRouter(n, out)
}

// admit runs lr_in_admission and lr_in_ip_input. It returns the reason if the router does not
// accept the packet, else "".
func (r *run) admit(n *node, in *routerPort) string {
	rt := in.router
	if r.p.EthDst != in.row.MAC && !in.externalMAC(n, r.p.EthDst) {
		return fmt.Sprintf("the frame is for %s, router port %s has %s", r.p.EthDst, in.row.Name, in.row.MAC)
	}
	for _, a := range [...]netip.Addr{r.p.Src, r.p.Dst} {
		if a.Is4() && (a.IsLoopback() || a.As4()[0] == 0) {
			return fmt.Sprintf("%s lr_in_ip_input drops it: %s must not be forwarded by a router", rt.row.Name, a)
		}
	}
	if r.p.Src.Is4() && rt.byIP[r.p.Src] != nil {
		return fmt.Sprintf("%s lr_in_ip_input drops it: its source %s is the router's own address", rt.row.Name,
			r.p.Src)
	}
	if rt.byIP[r.p.Dst] != nil && !rt.translates(r.p.Dst) {
		return fmt.Sprintf("%s lr_in_ip_input drops it: %s is the router's own address", rt.row.Name, r.p.Dst)
	}
	return ""
}

// translates reports whether an own address of the router is also a NAT or load balancer address.
// Packets to such an address continue to lr_in_arp_resolve.
func (r *logicalRouter) translates(a netip.Addr) bool {
	return r.forcesSNAT() || r.externals[a] != nil || r.balancers.holds(a)
}

// unSNAT runs lr_in_unsnat.
func (r *run) unSNAT(n *node, in *routerPort) {
	rt := in.router
	stage, rule := r.w.join(rt.row.Name, " lr_in_unsnat"), unSNAT{dst: r.p.Dst}
	switch x := rt.externals[r.p.Dst]; {
	case rt.forcesSNAT() && rt.byIP[r.p.Dst] == in:
		rule.port = in.row.Name
		r.unNAT(n, stage, rule, n.zone(rt.snatZone), rt.row.Owner)
	case x != nil:
		r.unNAT(n, stage, rule, n.zone(rt.snatZone), x.row.Owner)
	}
}

// routerBalances runs lr_in_defrag and lr_in_dnat.
func (r *run) routerBalances(n *node, in *routerPort) (routerFlags, error) {
	rt := in.router
	if !rt.balancers.holds(r.p.Dst) {
		return routerFlags{}, nil
	}
	stage, z := r.w.join(rt.row.Name, " lr_in_dnat"), n.zone(rt.dnatZone)
	v, err := rt.balancers.lookup(&r.p)
	if err != nil {
		return routerFlags{}, err
	}
	r.unNAT(n, r.w.join(rt.row.Name, " lr_in_defrag"), defrag{r.p.Dst}, z, rt.row.Owner)
	if !r.ctState.is(flow.CTNew) || v == nil {
		if e := r.ctState.entry; e != nil && !r.ctState.is(flow.CTRpl) {
			return routerFlags{force: e.mark&markForceSNAT != 0, skip: e.mark&markSkipSNAT != 0}, nil
		}
		return routerFlags{}, nil
	}
	flags := routerFlags{skip: v.lb.Options["skip_snat"] == "true"}
	flags.force = rt.forcesSNAT() && !flags.skip
	out, reason, err := r.balance(n, stage, r.w.join(rt.row.Name, " lr_in_lb_aff_learn"), z, v, flags)
	switch {
	case err != nil:
		return flags, err
	case out == refused:
		_, err = r.refuse(location{routerRefuses, n, in.row.Name}, flags, NoEndpoint, reason)
	case out == dropped:
		_, err = r.drop(v.lost(), reason)
	}
	return flags, err
}

// policy runs lr_in_policy and lr_in_policy_ecmp, which may change the next hop. ok is false when
// the packet is dropped.
func (r *run) policy(n *node, rt *logicalRouter, in string, to routed) (routed, bool, error) {
	var found *policy
	m := matched{p: &r.p, in: in, out: to.out.row.Name}
	if e := r.ctState.entry; e != nil {
		m.ctMark = e.mark
	}
	for _, p := range rt.policies {
		if found != nil && p.row.Priority < found.row.Priority {
			break
		}
		if p.match == nil {
			var err error
			if p.match, err = parseMatch(p.row.Match, n.ovn.sets); err != nil {
				return to, false, fmt.Errorf("%s: %w", p.row.Key(), err)
			}
		}
		switch {
		case !p.match.holds(&m):
		case found == nil:
			found = p
		case !samePolicy(found.row, p.row):
			return to, false, fmt.Errorf("%s and %s both match, OVN may take either", found.row.Key(), p.row.Key())
		}
	}
	if found == nil {
		return to, true, nil
	}
	return r.applyPolicy(n, rt, found.row, to)
}

func samePolicy(a, b *nb.Policy) bool {
	return a.Action == b.Action && slices.Equal(a.NextHops, b.NextHops) &&
		a.Options["pkt_mark"] == b.Options["pkt_mark"]
}

func (r *run) applyPolicy(n *node, rt *logicalRouter, row *nb.Policy, to routed) (routed, bool, error) {
	if err := unknownOption(row, row.Options, "pkt_mark"); err != nil {
		return to, false, err
	}
	did := ""
	if mark := row.Options["pkt_mark"]; mark != "" {
		if _, err := fmt.Sscanf(mark, "%v", &r.p.Mark); err != nil {
			return to, false, fmt.Errorf("%s: pkt_mark %q: %w", row.Key(), mark, err)
		}
		did = ", mark " + mark
	}
	stage := r.w.join(rt.row.Name, " lr_in_policy")
	switch row.Action {
	case nb.Drop:
		r.step(n, stage, row, row.Owner, "drops it")
		return to, false, nil
	case nb.Allow:
		r.step(n, stage, row, row.Owner, "continues as routed"+did)
		return to, true, nil
	case nb.Reroute:
	default:
		return to, false, fmt.Errorf("%s: action %q is not known", row.Key(), row.Action)
	}
	hops := make([]netip.AddrPort, 0, len(row.NextHops))
	for _, h := range row.NextHops {
		if cluster.FamilyOf(h) == cluster.FamilyOf(r.p.Dst) {
			hops = append(hops, netip.AddrPortFrom(h, 0))
		}
	}
	if len(hops) == 0 {
		return to, false, fmt.Errorf("%s has no next hop of the packet's family", row.Key())
	}
	to.hop = hops[r.choose(hops)].Addr()
	if to.out = rt.towards(to.hop); to.out == nil {
		return to, false, fmt.Errorf("%s: no port leads to %s", row.Key(), to.hop)
	}
	s := r.step(n, stage, row, row.Owner, "to "+to.hop.String()+" out of port "+to.out.row.Name+did)
	if len(hops) > 1 {
		s.Choices = hops
	}
	return to, true, nil
}
