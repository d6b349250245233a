package why

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/policy"
	"hairpin/walk"
	"hairpin/walk/explain/names"
	"hairpin/walk/openflow"
	"hairpin/walk/packet"
)

const (
	dhcpClient  = 68
	dhcp6Client = 546
)

// dhcp explains a packet of a Pod to a DHCP client.
func (r *reasoner) dhcp() Why {
	p, c, client := &r.now, r.Trace.Verdict.Cause, uint16(dhcpClient)
	if p.Dst.Is6() {
		client = dhcp6Client
	}
	if c != packet.ByRule && c != packet.Other || r.Trace.From.Pod == (cluster.Owner{}) || p.Protocol != cluster.UDP ||
		p.DstPort != client {
		return Why{}
	}
	return because(ReasonDHCP, noObject, "Pods may not send to port %d, that of DHCP clients", client)
}

// denied explains a packet that policies drop.
func (r *reasoner) denied() Why {
	n := len(r.Policies)
	if r.Trace.Verdict.Cause != packet.ByPolicies || n == 0 || r.Policies[n-1].Accepted {
		return Why{}
	}
	d := &r.Policies[n-1]
	end := "ingress to " + names.Object(d.Pod)
	if d.Direction == policy.Egress {
		end = "egress from " + names.Object(d.Pod)
	}
	if d.Reason != policy.Isolated {
		return because(ReasonPolicies, d.Owner, "%s is denied by %s, rule %d", end, names.Object(d.Owner), d.Rule+1)
	}
	by := make([]string, len(d.Isolating))
	for i, o := range d.Isolating {
		by[i] = names.Object(o)
	}
	w := because(ReasonPolicies, d.Isolating[0], "%s is denied by %s: no rule accepts it", end, names.List(by))
	if len(d.Misses) > 0 {
		w.Text += "; nearest is " + d.Misses[0].String()
	}
	return w
}

// spoofed explains a packet that is dropped for its source address.
func (r *reasoner) spoofed() Why {
	if c := r.Trace.Verdict.Cause; c != packet.NotItsOwn && c != packet.ByRule {
		return Why{}
	}
	return r.source()
}

// source explains a source address that the sender may not use.
func (r *reasoner) source() Why {
	src, from := r.Trace.Sent.Src, r.Trace.From
	if !src.IsValid() {
		return Why{}
	}
	if from.Pod != (cluster.Owner{}) {
		for _, p := range r.Cluster.Pods {
			if p.Owner == from.Pod && !slices.Contains(p.IPs, src) && !slices.Contains(p.Extra, src) {
				return because(ReasonSpoofed, p.Owner, "%s is no address of %s", src, names.Object(p.Owner))
			}
		}
		return Why{}
	}
	what := r.reserved(src)
	switch {
	case from.Node != "":
		return Why{}
	case what != "":
	case r.podRange(src) != "" || contains(clusterRanges(r.Cluster), src) ||
		contains(r.Cluster.Config.ServiceCIDRs, src):
		what = "an address within the cluster"
	case r.holder(src) != "":
		what = "the address of " + r.holder(src)
	default:
		return Why{}
	}
	return because(ReasonSpoofed, noObject, "source %s is %s, not of a client outside", src, what)
}

// egress explains a packet that the rule of an EgressIP or EgressService drops.
func (r *reasoner) egress() Why {
	if r.Trace.Verdict.Cause != packet.ByRule || r.last == nil {
		return Why{}
	}
	i := slices.IndexFunc(r.Cluster.EgressIPs, func(e *cluster.EgressIP) bool { return e.Owner == r.last.Why })
	if i < 0 {
		return Why{}
	}
	e, f, gone := r.Cluster.EgressIPs[i], cluster.FamilyOf(r.now.Dst), []string(nil)
	for _, a := range e.Assigned {
		switch {
		case cluster.FamilyOf(a.Address) != f:
		case r.Cluster.Node(a.Node) != nil:
			return because(ReasonEgress, e.Owner, "%s is on %s, and the rule of %s on %s drops what does not "+
				"leave there", a.Address, a.Node, names.Object(e.Owner), r.last.Node)
		default:
			gone = append(gone, fmt.Sprintf("%s is assigned to %s, which is no Node", a.Address, a.Node))
		}
	}
	w := because(ReasonEgress, e.Owner, "%s selects %s, and no node has an %s address of it", names.Object(e.Owner),
		names.Object(r.Trace.From.Pod), f)
	if len(gone) > 0 {
		w.Text += ": " + names.List(gone)
	}
	return w
}

// address explains a destination that nothing has.
func (r *reasoner) address() Why {
	c, to, outside := r.Trace.Verdict.Cause, r.now.Dst, r.Trace.From == walk.Point{}
	if !slices.Contains([]packet.Cause{packet.ByRule, packet.Unclaimed, packet.NoNeighbor, packet.NotLocal}, c) {
		return Why{}
	}
	holder := r.holder(to)
	if c == packet.Unclaimed {
		for _, f := range r.Cluster.Frontends {
			switch {
			case f.ClusterIP == to:
				return because(ReasonClusterOnly, f.Owner,
					"%s is the ClusterIP of %s, which is not reachable from outside the cluster", to,
					names.Object(f.Owner))
			case slices.Contains(f.LoadBalancerIPs, to) || slices.Contains(f.ExternalIPs, to):
				why := "no node has it"
				if e := r.egressIP(to); e != nil && e.OnlyAnnounced() {
					why = cmp.Or(e.Service.Announced.Message, why) + r.advertised(e, to)
				}
				return because(ReasonNotAnnounced, f.Owner, "nothing announces %s on its network, an external "+
					"address of %s: %s; --via NODE follows a packet that a router sends to a node", to,
					names.Object(f.Owner), why)
			}
		}
		if outside && holder != "" && r.podRange(to) != "" {
			return because(ReasonClusterOnly, noObject,
				"%s is the address of %s, which is not reachable from outside the cluster", to, holder)
		}
		if e := r.egressIP(to); e != nil {
			return because(ReasonNotAnnounced, e.Owner, "%s is an address of %s, which no node has now", to,
				names.Object(e.Owner))
		}
	}
	endpoint := ""
	if r.Service != nil && r.translated() {
		endpoint = ", the endpoint of " + names.Object(r.Service.Owner)
	}
	node := r.podRange(to)
	switch what := r.reserved(to); {
	case holder != "" && node != "": // the Pod exists: something else loses the packet
		return Why{}
	case contains(r.Cluster.Config.ServiceCIDRs, to):
		return because(ReasonNoService, noObject, "no Service has %s", to)
	case what != "":
		return because(ReasonReserved, noObject, "%s is %s, not of a Pod or Service", to, what)
	case node != "":
		return because(ReasonNoPod, noObject, "no Pod has %s%s, which is in the Pod range of %s", to, endpoint,
			node)
	case contains(clusterRanges(r.Cluster), to):
		return because(ReasonNoPod, noObject, "no Pod has %s%s, and no node has a Pod range with it", to, endpoint)
	case c == packet.NotLocal:
		return because(ReasonNoAddress, noObject, "neither %s nor a Service has %s%s", r.nodeName(), to, endpoint)
	case c == packet.Unclaimed && outside:
		return because(ReasonNoAddress, noObject, "neither a node nor a Service has %s%s", to, endpoint)
	case c != packet.ByRule:
		return because(ReasonNoAddress, noObject, "nothing on the network of %s has %s%s", r.nodeName(), to, endpoint)
	}
	return Why{}
}

// route explains a missing route.
func (r *reasoner) route() Why {
	if r.Trace.Verdict.Cause != packet.NoRoute || r.node == nil {
		return Why{}
	}
	node, f := cluster.NodeOwner(r.node.Name), cluster.FamilyOf(r.now.Dst)
	if !slices.ContainsFunc(r.node.Gateway.NextHops, func(a netip.Addr) bool { return cluster.FamilyOf(a) == f }) {
		return because(ReasonNoRoute, node, "%s has no %s default gateway, and no other route to %s", r.node.Name, f,
			r.now.Dst)
	}
	return because(ReasonNoRoute, node, "%s has no route to %s", r.node.Name, r.now.Dst)
}

// rule names the rule that drops or rejects the packet.
func (r *reasoner) rule() Why {
	s := r.last
	if s.Rule == openflow.NoFlow || s.Why == (cluster.Owner{}) {
		return because(ReasonRule, noObject, "nothing accepts the packet in %s on %s", s.Stage, s.Node)
	}
	return because(ReasonRule, s.Why, "a rule of %s drops it in %s on %s", names.Object(s.Why), s.Stage, s.Node)
}
