package policy

import (
	"cmp"
	"net/netip"
	"slices"

	"hairpin/cluster"
)

// Direction is seen from the pod to which a policy applies.
type Direction uint8

// The directions.
const (
	Egress  Direction = iota // from the pod
	Ingress                  // to the pod
)

// String returns "egress" or "ingress".
func (d Direction) String() string {
	if d == Egress {
		return "egress"
	}
	return "ingress"
}

// Endpoint is one end of a packet.
type Endpoint struct {
	Addr netip.Addr   // as the destination pod sees it
	Pod  *cluster.Pod // that has the address; nil: it is not a pod's
}

// Packet is the first packet of a connection, or one without ports.
type Packet struct {
	From, To Endpoint
	Protocol cluster.Protocol // 0: without ports, such as ICMP
	Port     uint16           // of the destination
	// FromOwnNode reports that the sender is the node of the destination pod.
	FromOwnNode bool
	// ToOwnNode reports that the destination is an address of the source pod's node.
	ToOwnNode bool
}

// Evaluate returns whether the policies of the source pod accept a packet, and those of the
// destination pod. A packet arrives only if both do.
func Evaluate(s *cluster.Snapshot, p Packet) (egress, ingress Verdict) {
	return evaluate(s, p, Egress), evaluate(s, p, Ingress)
}

func evaluate(s *cluster.Snapshot, p Packet, d Direction) Verdict {
	subject, peer := p.From.Pod, p.To
	if d == Ingress {
		subject, peer = p.To.Pod, p.From
	}
	switch {
	case subject == nil:
		return Verdict{Direction: d, Accepted: true, Reason: NoPod}
	case peer.Pod != nil && peer.Pod.Owner == subject.Owner:
		return Verdict{Direction: d, Accepted: true, Reason: Self}
	case d == Ingress && p.FromOwnNode:
		return Verdict{Direction: d, Accepted: true, Reason: OwnNode}
	}
	var misses []Miss
	for tier := cluster.TierAdmin; tier <= cluster.TierBaseline; tier++ {
		policies := selecting(s, subject, d, tier)
		if tier == cluster.TierNetworkPolicy && len(policies) > 0 && d == Egress && p.ToOwnNode {
			return Verdict{Direction: d, Accepted: true, Reason: OwnNode}
		}
		rule, missed := firstMatch(s, rules(policies, d), p, peer)
		misses = append(misses, missed...)
		switch {
		case rule != nil && rule.Action == cluster.Pass: // to the next tier
		case rule != nil && rule.Action == cluster.Accept:
			return Verdict{Direction: d, Accepted: true, Reason: ByRule, Owner: rule.owner, Rule: rule.place}
		case rule != nil:
			return Verdict{Direction: d, Reason: ByRule, Owner: rule.owner, Rule: rule.place, Misses: nearest(misses)}
		case tier == cluster.TierNetworkPolicy && len(policies) > 0:
			v := Verdict{Direction: d, Reason: Isolated, Misses: nearest(misses)}
			for _, x := range policies {
				v.Isolating = append(v.Isolating, x.Owner)
			}
			return v
		}
	}
	return Verdict{Direction: d, Accepted: true, Reason: NoRule}
}

// Selecting returns the policies that apply to a pod in a direction, in the order of their
// evaluation: NetworkPolicies that isolate it, and ClusterNetworkPolicies with rules for it.
func Selecting(s *cluster.Snapshot, pod *cluster.Pod, d Direction) []*cluster.Policy {
	var all []*cluster.Policy
	for tier := cluster.TierAdmin; tier <= cluster.TierBaseline; tier++ {
		all = append(all, selecting(s, pod, d, tier)...)
	}
	return all
}

func selecting(s *cluster.Snapshot, pod *cluster.Pod, d Direction, tier cluster.PolicyTier) []*cluster.Policy {
	var found []*cluster.Policy
	for _, x := range s.Policies {
		applies := directionOf(x, d).Isolates
		if tier != cluster.TierNetworkPolicy {
			applies = len(directionOf(x, d).Rules) > 0
		}
		if x.Tier == tier && applies && selects(s, &x.Subject, pod) {
			found = append(found, x)
		}
	}
	slices.SortStableFunc(found, func(a, b *cluster.Policy) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), a.Owner.Compare(b.Owner))
	})
	return found
}

func directionOf(x *cluster.Policy, d Direction) *cluster.PolicyDirection {
	if d == Egress {
		return &x.Egress
	}
	return &x.Ingress
}

// Members returns how many pods the selectors of a rule select, and the number of its address
// blocks plus that of the addresses of nodes that it selects. A rule with AllPeers has neither.
func Members(s *cluster.Snapshot, r *cluster.PolicyRule) (pods, blocks int) {
	for _, pod := range s.Pods {
		if slices.ContainsFunc(r.Peers, func(x cluster.PolicyPeer) bool {
			return x.Pods != nil && selects(s, x.Pods, pod)
		}) {
			pods++
		}
	}
	for i := range r.Peers {
		blocks += len(r.Peers[i].Blocks)
		if by := r.Peers[i].Nodes; by != nil {
			for _, n := range nodes(s, by) {
				blocks += len(n.IPs)
			}
		}
	}
	return pods, blocks
}

// rule is a rule with its place in its policy, from 0.
type rule struct {
	*cluster.PolicyRule
	owner    cluster.Owner
	priority int
	place    int
}

// rules returns the rules of policies of one tier in the order of their evaluation. The API leaves
// the order of policies with equal priority open. Here their first rules come first, then their
// second ones, and so on. Of those with the same place, Deny wins, then Pass. (The flows of plan
// leave open which of Pass and Accept wins.)
func rules(policies []*cluster.Policy, d Direction) []rule {
	var all []rule
	for _, x := range policies {
		for i := range directionOf(x, d).Rules {
			all = append(all, rule{&directionOf(x, d).Rules[i], x.Owner, x.Priority, i})
		}
	}
	if len(policies) > 0 && policies[0].Tier == cluster.TierNetworkPolicy {
		return all // any of them accepts
	}
	strict := []cluster.PolicyAction{cluster.Deny, cluster.Pass, cluster.Accept}
	slices.SortStableFunc(all, func(a, b rule) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.place, b.place),
			cmp.Compare(slices.Index(strict, a.Action), slices.Index(strict, b.Action)))
	})
	return all
}

// firstMatch returns the first rule that matches a packet, or nil, and the rules before it that
// would accept the packet but for one point.
func firstMatch(s *cluster.Snapshot, rules []rule, p Packet, peer Endpoint) (*rule, []Miss) {
	var misses []Miss
	for i := range rules {
		r := &rules[i]
		peerMatches, portMatches := matchesPeer(s, r.PolicyRule, peer), matchesPort(r.PolicyRule, p)
		switch {
		case peerMatches && portMatches:
			return r, misses
		case r.Action != cluster.Accept:
		case peerMatches:
			misses = append(misses, portMiss(s, r, p, peer))
		case portMatches:
			misses = append(misses, peerMiss(s, r, p, peer))
		}
	}
	return nil, misses
}

func matchesPeer(s *cluster.Snapshot, r *cluster.PolicyRule, peer Endpoint) bool {
	if r.AllPeers {
		return true
	}
	for _, x := range r.Peers {
		if x.Pods != nil {
			if peer.Pod != nil && selects(s, x.Pods, peer.Pod) {
				return true
			}
			continue
		}
		if x.Nodes != nil && ofNode(s, x.Nodes, peer.Addr) {
			return true
		}
		for _, block := range x.Blocks {
			if block.Contains(peer.Addr) {
				return true
			}
		}
	}
	return false
}

func matchesPort(r *cluster.PolicyRule, p Packet) bool {
	if r.AllPorts {
		return true
	}
	if p.Protocol == 0 {
		return false
	}
	for _, x := range r.Ports {
		first, last := x.First, x.Last
		if x.Name != "" {
			number, known := portNumber(p.To.Pod, x)
			if !known {
				continue
			}
			first, last = number, number
		}
		if x.Protocol == p.Protocol && first <= p.Port && p.Port <= last {
			return true
		}
	}
	return false
}

// nodes returns the nodes that a selector selects.
func nodes(s *cluster.Snapshot, by *cluster.Selector) (list []*cluster.Node) {
	for _, n := range s.Nodes {
		if by.Matches(n.Egress.Labels) {
			list = append(list, n)
		}
	}
	return list
}

// ofNode reports whether an address is one of a node that a selector selects.
func ofNode(s *cluster.Snapshot, by *cluster.Selector, a netip.Addr) bool {
	return slices.ContainsFunc(nodes(s, by), func(n *cluster.Node) bool { return slices.Contains(n.IPs, a) })
}

// portNumber returns the number of a named port of a pod.
func portNumber(pod *cluster.Pod, x cluster.PolicyPort) (number uint16, known bool) {
	if pod == nil {
		return 0, false
	}
	for _, y := range pod.Ports {
		if y.Name == x.Name && y.Protocol == x.Protocol {
			return y.Port, true
		}
	}
	return 0, false
}

// selects reports whether a selector selects a pod. A selector of namespaces by their labels never
// selects a pod whose namespace is not known.
func selects(s *cluster.Snapshot, by *cluster.PodSelector, pod *cluster.Pod) bool {
	if by.Namespace != "" {
		return by.Namespace == pod.Owner.Namespace && by.Pods.Matches(pod.Labels)
	}
	n := namespaceOf(s, pod)
	return n != nil && by.Selects(n, pod.Labels)
}

// namespaceOf returns the namespace of a pod, or nil if it is not known.
func namespaceOf(s *cluster.Snapshot, pod *cluster.Pod) *cluster.Namespace {
	for _, n := range s.Namespaces {
		if n.Name == pod.Owner.Namespace {
			return n
		}
	}
	return nil
}
