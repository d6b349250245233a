package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/policy"
	"hairpin/walk"
	"hairpin/walk/openflow"
	"hairpin/walk/packet"
)

const (
	dhcpClient  = 68
	dhcp6Client = 546
)

// dhcp explains a packet of a Pod to a DHCP client.
func (r *reasoner) dhcp() (Why, bool) {
	p, c, client := &r.now, r.t.Verdict.Cause, uint16(dhcpClient)
	if p.Dst.Is6() {
		client = dhcp6Client
	}
	if c != packet.ByRule && c != packet.Other || r.t.From.Pod == (cluster.Owner{}) || p.Protocol != cluster.UDP ||
		p.DstPort != client {
		return Why{}, false
	}
	return Why{Reason: ReasonDHCP, Text: fmt.Sprintf("Pods may not send to port %d, that of DHCP clients", client)},
		true
}

// denied explains a packet that policies drop.
func (r *reasoner) denied() (Why, bool) {
	n := len(r.e.Policies)
	if r.t.Verdict.Cause != packet.ByPolicies || n == 0 || r.e.Policies[n-1].Accepted {
		return Why{}, false
	}
	d := &r.e.Policies[n-1]
	end := "ingress to " + object(d.Pod)
	if d.Direction == policy.Egress {
		end = "egress from " + object(d.Pod)
	}
	if d.Reason != policy.Isolated {
		return Why{ReasonPolicies, fmt.Sprintf("%s is denied by %s, rule %d", end, object(d.Owner), d.Rule+1), d.Owner},
			true
	}
	by := make([]string, len(d.Isolating))
	for i, o := range d.Isolating {
		by[i] = object(o)
	}
	w := Why{ReasonPolicies, fmt.Sprintf("%s is denied by %s: no rule accepts it", end, enumerate(by)), d.Isolating[0]}
	if len(d.Misses) > 0 {
		w.Text += "; nearest is " + d.Misses[0].String()
	}
	return w, true
}

// spoofed explains a packet that is dropped for its source address.
func (r *reasoner) spoofed() (Why, bool) {
	if c := r.t.Verdict.Cause; c != packet.NotItsOwn && c != packet.ByRule {
		return Why{}, false
	}
	return r.source()
}

// source explains a source address that the sender may not use.
func (r *reasoner) source() (Why, bool) {
	src, from := r.t.Sent.Src, r.t.From
	if !src.IsValid() {
		return Why{}, false
	}
	if from.Pod != (cluster.Owner{}) {
		for _, p := range r.s.Pods {
			if p.Owner == from.Pod && !slices.Contains(p.IPs, src) && !slices.Contains(p.Extra, src) {
				return Why{ReasonSpoofed, fmt.Sprintf("%s is no address of %s", src, object(p.Owner)), p.Owner}, true
			}
		}
		return Why{}, false
	}
	what := r.reserved(src)
	switch {
	case from.Node != "":
		return Why{}, false
	case what != "":
	case r.podRange(src) != "" || contains(clusterRanges(r.s), src) || contains(r.s.Config.ServiceCIDRs, src):
		what = "an address within the cluster"
	case r.holder(src) != "":
		what = "the address of " + r.holder(src)
	default:
		return Why{}, false
	}
	return Why{Reason: ReasonSpoofed, Text: fmt.Sprintf("source %s is %s, not of a client outside", src, what)}, true
}

// egress explains a packet that the rule of an EgressIP or EgressService drops.
func (r *reasoner) egress() (Why, bool) {
	if r.t.Verdict.Cause != packet.ByRule || r.last == nil {
		return Why{}, false
	}
	i := slices.IndexFunc(r.s.EgressIPs, func(e *cluster.EgressIP) bool { return e.Owner == r.last.Why })
	if i < 0 {
		return Why{}, false
	}
	e, f, gone := r.s.EgressIPs[i], cluster.FamilyOf(r.now.Dst), []string(nil)
	for _, a := range e.Assigned {
		switch {
		case cluster.FamilyOf(a.Address) != f:
		case r.s.Node(a.Node) != nil:
			return Why{ReasonEgress,
				fmt.Sprintf("%s is on %s, and the rule of %s on %s drops what does not leave there",
					a.Address, a.Node, object(e.Owner), r.last.Node), e.Owner}, true
		default:
			gone = append(gone, fmt.Sprintf("%s is assigned to %s, which is no Node", a.Address, a.Node))
		}
	}
	text := fmt.Sprintf("%s selects %s, and no node has an %s address of it", object(e.Owner), object(r.t.From.Pod), f)
	if len(gone) > 0 {
		text += ": " + enumerate(gone)
	}
	return Why{ReasonEgress, text, e.Owner}, true
}

// address explains a destination that nothing has.
func (r *reasoner) address() (Why, bool) {
	c, to, outside := r.t.Verdict.Cause, r.now.Dst, r.t.From == walk.Point{}
	if !slices.Contains([]packet.Cause{packet.ByRule, packet.Unclaimed, packet.NoNeighbor, packet.NotLocal}, c) {
		return Why{}, false
	}
	pod := r.holder(to)
	if c == packet.Unclaimed {
		for _, f := range r.s.Frontends {
			switch {
			case f.ClusterIP == to:
				return Why{ReasonClusterOnly,
					fmt.Sprintf("%s is the ClusterIP of %s, which is not reachable from outside "+
						"the cluster", to, object(f.Owner)), f.Owner}, true
			case slices.Contains(f.LoadBalancerIPs, to) || slices.Contains(f.ExternalIPs, to):
				why := "no node has it"
				if e := r.egressIP(to); e != nil && e.OnlyAnnounced() {
					why = cmp.Or(e.Service.Announced.Message, why) + r.advertised(e, to)
				}
				return Why{ReasonNotAnnounced, fmt.Sprintf("nothing announces %s on its network, an external address of "+
					"%s: %s; --via NODE follows a packet that a router sends to a node", to, object(f.Owner), why),
					f.Owner}, true
			}
		}
		if outside && pod != "" && r.podRange(to) != "" {
			return Why{Reason: ReasonClusterOnly,
				Text: fmt.Sprintf("%s is the address of %s, which is not reachable from "+
					"outside the cluster", to, pod)}, true
		}
		if e := r.egressIP(to); e != nil {
			return Why{ReasonNotAnnounced, fmt.Sprintf("%s is an address of %s, which no node has now", to,
				object(e.Owner)), e.Owner}, true
		}
	}
	endpoint := ""
	if r.f != nil && r.translated() {
		endpoint = ", the endpoint of " + object(r.f.Owner)
	}
	node := r.podRange(to)
	switch what := r.reserved(to); {
	case pod != "" && node != "":
		return Why{}, false
	case contains(r.s.Config.ServiceCIDRs, to):
		return Why{Reason: ReasonNoService, Text: fmt.Sprintf("no Service has %s", to)}, true
	case what != "":
		return Why{Reason: ReasonReserved, Text: fmt.Sprintf("%s is %s, not of a Pod or Service", to, what)}, true
	case node != "":
		return Why{Reason: ReasonNoPod, Text: fmt.Sprintf("no Pod has %s%s, which is in the Pod range of %s", to,
			endpoint,
			node)}, true
	case contains(clusterRanges(r.s), to):
		return Why{Reason: ReasonNoPod, Text: fmt.Sprintf("no Pod has %s%s, and no node has a Pod range with it", to,
			endpoint)}, true
	case c == packet.NotLocal:
		return Why{Reason: ReasonNoAddress, Text: fmt.Sprintf("neither %s nor a Service has %s%s", r.nodeName(), to,
			endpoint)}, true
	case c == packet.Unclaimed && outside:
		return Why{Reason: ReasonNoAddress, Text: fmt.Sprintf("neither a node nor a Service has %s%s", to, endpoint)},
			true
	case c != packet.ByRule:
		return Why{Reason: ReasonNoAddress, Text: fmt.Sprintf("nothing on the network of %s has %s%s", r.nodeName(), to,
			endpoint)}, true
	}
	return Why{}, false
}

// route explains a missing route.
func (r *reasoner) route() (Why, bool) {
	if r.t.Verdict.Cause != packet.NoRoute || r.node == nil {
		return Why{}, false
	}
	f := cluster.FamilyOf(r.now.Dst)
	if !slices.ContainsFunc(r.node.Gateway.NextHops, func(a netip.Addr) bool { return cluster.FamilyOf(a) == f }) {
		return Why{ReasonNoRoute, fmt.Sprintf("%s has no %s default gateway, and no other route to %s", r.node.Name, f,
			r.now.Dst), nodeOwner(r.node)}, true
	}
	return Why{ReasonNoRoute, fmt.Sprintf("%s has no route to %s", r.node.Name, r.now.Dst), nodeOwner(r.node)}, true
}

// rule names the rule that drops or rejects the packet.
func (r *reasoner) rule() Why {
	s := r.last
	if s.Rule == openflow.NoFlow || s.Why == (cluster.Owner{}) {
		return Why{Reason: ReasonRule, Text: fmt.Sprintf("nothing accepts the packet in %s on %s", s.Stage, s.Node)}
	}
	return Why{ReasonRule, fmt.Sprintf("a rule of %s drops it in %s on %s", object(s.Why), s.Stage, s.Node), s.Why}
}
