package netpolicy

import (
	"net/netip"
	"slices"

	"hairpin/cluster"
)

// compiler compiles the rules of one own pod.
type compiler struct {
	index *Index
	pod   *cluster.Pod
	join  []netip.Addr
	// named are the expressions of named ports in egress rules: their numbers depend on other pods.
	named map[string]bool
}

// rules returns the rules of a direction, whether any Policy applies to the pod there, and whether
// one isolates it.
func (c *compiler) rules(d Direction, policies, clusterwide []*cluster.Policy) (list []rule, applies, isolated bool) {
	namespace := c.index.namespaces[c.pod.Owner.Namespace]
	for _, p := range policies {
		if d.part(p).Isolates && selects(&p.Subject, c.pod, namespace) {
			isolated = true
			list = append(list, c.rulesOf(d, p)...)
		}
	}
	applies = isolated
	for _, p := range clusterwide {
		if isolated && p.Tier == cluster.TierBaseline || len(d.part(p).Rules) == 0 ||
			!selects(&p.Subject, c.pod, namespace) {
			continue
		}
		applies = true
		list = append(list, c.rulesOf(d, p)...)
	}
	return list, applies, isolated
}

// rulesOf compiles the rules of a Policy.
func (c *compiler) rulesOf(d Direction, p *cluster.Policy) (list []rule) {
	for i := range d.part(p).Rules {
		r := &d.part(p).Rules[i]
		base := rule{place: placeOf(p, i, r.Action), action: r.Action, all: r.AllPorts, policy: p.Owner}
		list = append(list, c.rule(d, r, base)...)
	}
	return list
}

// rule compiles one rule of a Policy.
func (c *compiler) rule(d Direction, r *cluster.PolicyRule, base rule) (list []rule) {
	var names []cluster.PolicyPort
	for _, p := range r.Ports {
		switch {
		case p.Name == "":
			base.ports = append(base.ports, PortRange{p.Protocol, p.First, p.Last})
		case d == Egress:
			names = append(names, p)
		default: // the pod's own port
			for _, own := range c.pod.Ports {
				if own.Name == p.Name && own.Protocol == p.Protocol {
					base.ports = append(base.ports, PortRange{p.Protocol, own.Port, own.Port})
				}
			}
		}
	}
	add := func(r rule, p *peers) {
		if !r.all && len(r.ports) == 0 {
			return
		}
		r.setPeers(p)
		list = append(list, r)
	}
	var blocks []netip.Prefix
	for i := range r.Peers {
		switch p := &r.Peers[i]; {
		case p.Pods != nil:
			add(base, &peers{pods: p.Pods})
			list = append(list, c.namedPorts(peers{pods: p.Pods}, names, base)...)
		case p.Nodes != nil:
			add(base, &peers{nodes: p.Nodes})
		default:
			blocks = append(blocks, p.Blocks...)
		}
	}
	if len(blocks) > 0 {
		slices.SortFunc(blocks, netip.Prefix.Compare)
		blocks = slices.Compact(blocks)
		add(base, &peers{blocks: blocks})
		list = append(list, c.namedPorts(peers{pods: everyPod, blocks: blocks}, names, base)...)
	}
	if r.AllPeers {
		add(base, nil)
		list = append(list, c.namedPorts(peers{pods: everyPod}, names, base)...)
	}
	return list
}

// namedPorts compiles named ports of an egress rule: each pod of the peer has its own number.
func (c *compiler) namedPorts(of peers, names []cluster.PolicyPort, base rule) (list []rule) {
	base.all = false
	for _, n := range names {
		of.port = cluster.PodPort{Name: n.Name, Protocol: n.Protocol}
		key := of.text()
		c.named[key] = true
		for _, number := range c.index.portNumbers(key, &of) {
			p, r := of, base
			p.port.Port = number
			r.setPeers(&p)
			r.ports = []PortRange{{n.Protocol, number, number}}
			list = append(list, r)
		}
	}
	return list
}

// rulesFromJoin returns the rules as they apply to a packet that will get one of the join addresses
// as its source. A rule with this address among its peers becomes a rule for every address; rules
// with other peers are omitted.
func (c *compiler) rulesFromJoin(list []rule) (out []rule) {
	for _, r := range list {
		if r.peers == nil {
			out = append(out, r)
			continue
		}
		for _, a := range c.join {
			if r.peers.pods == nil && slices.ContainsFunc(r.peers.blocks,
				func(p netip.Prefix) bool { return p.Contains(a) }) {
				x := r
				x.peers, x.key, x.family = nil, "", cluster.FamilyOf(a)
				out = append(out, x)
			}
		}
	}
	return out
}
