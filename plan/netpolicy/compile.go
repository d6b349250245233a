package netpolicy

import (
	"net/netip"
	"slices"

	"hairpin/cluster"
)

// compiler compiles the rules of one own pod.
type compiler struct {
	x    *Index
	pod  *cluster.Pod
	join []netip.Addr
	// named are the expressions of named ports in egress rules: their numbers depend on other pods.
	named map[string]bool
}

// rules returns the rules of a direction, and whether any Policy isolates the pod there.
func (c *compiler) rules(d Direction, policies []*cluster.Policy) (list []rule, isolated bool) {
	for _, p := range policies {
		part := d.of(p)
		if !part.Isolates || !selects(&p.Subject, c.pod, c.x.namespaces[c.pod.Owner.Namespace]) {
			continue
		}
		isolated = true
		for i := range part.Rules {
			list = append(list, c.rule(d, &part.Rules[i], p.Owner)...)
		}
	}
	return list, isolated
}

// rule compiles one rule of a Policy.
func (c *compiler) rule(d Direction, r *cluster.PolicyRule, policy cluster.Owner) (list []rule) {
	base := rule{all: r.AllPorts, policy: policy}
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
		if r.peers = p; p != nil {
			r.key = p.text()
		}
		list = append(list, r)
	}
	var blocks []netip.Prefix
	for i := range r.Peers {
		if p := &r.Peers[i]; p.Pods == nil {
			blocks = append(blocks, p.Blocks...)
		} else {
			add(base, &peers{pods: p.Pods})
			list = append(list, c.namedPorts(peers{pods: p.Pods}, names, policy)...)
		}
	}
	if len(blocks) > 0 {
		slices.SortFunc(blocks, netip.Prefix.Compare)
		blocks = slices.Compact(blocks)
		add(base, &peers{blocks: blocks})
		list = append(list, c.namedPorts(peers{pods: everyPod, blocks: blocks}, names, policy)...)
	}
	if r.AllPeers {
		add(base, nil)
		list = append(list, c.namedPorts(peers{pods: everyPod}, names, policy)...)
	}
	return list
}

// namedPorts compiles named ports of an egress rule: each pod of the peer has its own number.
func (c *compiler) namedPorts(of peers, names []cluster.PolicyPort, policy cluster.Owner) (list []rule) {
	for _, n := range names {
		of.port = cluster.PodPort{Name: n.Name, Protocol: n.Protocol}
		key := of.text()
		c.named[key] = true
		for _, number := range c.x.numbersOf(key, &of) {
			p := of
			p.port.Port = number
			list = append(list, rule{peers: &p, key: p.text(), policy: policy,
				ports: []PortRange{{n.Protocol, number, number}}})
		}
	}
	return list
}

// joined returns the rules as they apply to a packet that will get one of the join addresses as its
// source: a set that has the address accepts everyone, other sets accept no one.
func (c *compiler) joined(list []rule) (out []rule) {
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
