package parse

import (
	"fmt"
	"net/netip"
	"slices"
	"sort"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"hairpin/cluster"
)

// MaxBlocks is the largest number of prefixes that the ipBlocks of one rule may have, without
// those of their exceptions.
const MaxBlocks = 4096

type networkPolicyParser struct{ objectParser }

// NetworkPolicy returns the facts of a NetworkPolicy. The policy isolates its pods even if a
// part of it is invalid:
//
//   - An invalid peer or port admits nothing. The others of its rule, and other rules, apply. A rule
//     with only invalid peers, or only invalid ports, matches nothing.
//   - An invalid policy type isolates both directions.
//   - With an invalid spec.podSelector, the policy isolates all pods of its namespace, and its rules
//     admit nothing: they are meant for other pods, which are not known.
func NetworkPolicy(o *networkingv1.NetworkPolicy) (*cluster.Policy, []cluster.Problem) {
	p := networkPolicyParser{objectParser{owner: Owner(o)}}
	policy := &cluster.Policy{Owner: p.owner, Tier: cluster.TierNetworkPolicy,
		Subject: cluster.PodSelector{Namespace: o.Namespace}}
	policy.Ingress.Isolates = len(o.Spec.PolicyTypes) == 0
	policy.Egress.Isolates = len(o.Spec.PolicyTypes) == 0 && len(o.Spec.Egress) > 0
	for i, t := range o.Spec.PolicyTypes {
		switch t {
		case networkingv1.PolicyTypeIngress:
			policy.Ingress.Isolates = true
		case networkingv1.PolicyTypeEgress:
			policy.Egress.Isolates = true
		default:
			policy.Ingress.Isolates, policy.Egress.Isolates = true, true
			p.problem(fmt.Sprintf("spec.policyTypes[%d]", i),
				"%q is neither Ingress nor Egress: the policy isolates its pods in both directions", t)
		}
	}
	var err error
	if policy.Subject.Pods, err = parseSelector(&o.Spec.PodSelector); err != nil {
		p.problem("spec.podSelector", "%v: the policy isolates all pods of its namespace", err)
		return policy, p.problems.List()
	}
	if policy.Ingress.Isolates {
		for i, r := range o.Spec.Ingress {
			policy.Ingress.Rules = append(policy.Ingress.Rules,
				p.rule(fmt.Sprintf("spec.ingress[%d]", i), "from", r.From, r.Ports))
		}
	}
	if policy.Egress.Isolates {
		for i, r := range o.Spec.Egress {
			policy.Egress.Rules = append(policy.Egress.Rules,
				p.rule(fmt.Sprintf("spec.egress[%d]", i), "to", r.To, r.Ports))
		}
	}
	return policy, p.problems.List()
}

// rule parses one rule. field is its path, and list is the name of its list of peers, "from" or
// "to".
func (p *networkPolicyParser) rule(field, list string, peers []networkingv1.NetworkPolicyPeer,
	ports []networkingv1.NetworkPolicyPort) cluster.PolicyRule {
	r := cluster.PolicyRule{AllPeers: len(peers) == 0, AllPorts: len(ports) == 0}
	blocks := 0
	for i := range peers {
		at := fmt.Sprintf("%s.%s[%d]", field, list, i)
		if peers[i].IPBlock == nil {
			if s := p.podsPeer(at, &peers[i]); s != nil {
				r.Peers = append(r.Peers, cluster.PolicyPeer{Pods: s})
			}
			continue
		}
		if b := p.ipBlock(at, &peers[i], MaxBlocks-blocks); len(b) > 0 {
			r.Peers = append(r.Peers, cluster.PolicyPeer{Blocks: b})
			blocks += len(b)
		}
	}
	for i := range ports {
		if port, ok := p.port(fmt.Sprintf("%s.ports[%d]", field, i), &ports[i]); ok {
			r.Ports = append(r.Ports, port)
		}
	}
	return r
}

// podsPeer parses a peer with selectors. It returns nil for an invalid one.
func (p *networkPolicyParser) podsPeer(field string, peer *networkingv1.NetworkPolicyPeer) *cluster.PodSelector {
	var s cluster.PodSelector
	valid := true
	parse := func(name string, from *metav1.LabelSelector, to *cluster.Selector) {
		if from == nil {
			return
		}
		var err error
		if *to, err = parseSelector(from); err != nil {
			p.problem(field+"."+name, "%v: it admits nothing", err)
			valid = false
		}
	}
	switch {
	case peer.NamespaceSelector != nil:
		parse("namespaceSelector", peer.NamespaceSelector, &s.Namespaces)
	case peer.PodSelector != nil:
		s.Namespace = p.owner.Namespace
	default:
		p.problem(field, "has neither podSelector, namespaceSelector nor ipBlock: it admits nothing")
		return nil
	}
	parse("podSelector", peer.PodSelector, &s.Pods)
	if !valid {
		return nil
	}
	return &s
}

// ipBlock returns the prefixes of a peer with an ipBlock. It returns none if the peer is invalid or
// has more than most prefixes.
func (p *networkPolicyParser) ipBlock(field string, peer *networkingv1.NetworkPolicyPeer, most int) []netip.Prefix {
	b := peer.IPBlock
	if peer.PodSelector != nil || peer.NamespaceSelector != nil {
		p.problem(field, "has an ipBlock and a selector: it admits nothing")
		return nil
	}
	block, ok := cluster.ParsePrefix(b.CIDR)
	if !ok {
		p.problem(field+".ipBlock.cidr", "%q is not an address range: it admits nothing", b.CIDR)
		return nil
	}
	block = block.Masked()
	var except []netip.Prefix
	valid := true
	for i, text := range b.Except {
		e, ok := cluster.ParsePrefix(text)
		at := fmt.Sprintf("%s.ipBlock.except[%d]", field, i)
		switch {
		case !ok:
			p.problem(at, "%q is not an address range: the ipBlock admits nothing", text)
			valid = false
		case e.Bits() <= block.Bits() || !block.Contains(e.Addr()):
			p.problem(at, "%s is not within %s, or is all of it: the ipBlock admits nothing", e, block)
			valid = false
		default:
			except = append(except, e.Masked())
		}
	}
	if !valid {
		return nil
	}
	slices.SortFunc(except, cluster.ComparePrefixes)
	list, fits := subtract(nil, block, except, most)
	if !fits {
		p.problem(field+".ipBlock.except", "the ipBlocks of the rule, without their exceptions, are more than %d "+
			"prefixes: this ipBlock admits nothing", MaxBlocks)
		return nil
	}
	return list
}

// subtract appends to list the fewest prefixes with the addresses of block, but none of except:
// sorted, and none within another. The exceptions are sorted and within block. It returns false if
// list has more than most elements then.
func subtract(list []netip.Prefix, block netip.Prefix, except []netip.Prefix, most int) ([]netip.Prefix, bool) {
	switch {
	case len(except) == 0:
		return append(list, block), len(list) < most
	case except[0] == block: // the widest of those with the first address comes first
		return list, true
	}
	lower, upper := cluster.Halves(block)
	n := sort.Search(len(except), func(i int) bool { return !except[i].Addr().Less(upper.Addr()) })
	list, fits := subtract(list, lower, except[:n], most)
	if !fits {
		return list, false
	}
	return subtract(list, upper, except[n:], most)
}

// port parses one item of a rule's list of ports. It returns false for an invalid one.
func (p *networkPolicyParser) port(field string, o *networkingv1.NetworkPolicyPort) (cluster.PolicyPort, bool) {
	bad := func(name, format string, args ...any) (cluster.PolicyPort, bool) {
		p.problem(field+"."+name, "%s: it admits nothing", fmt.Sprintf(format, args...))
		return cluster.PolicyPort{}, false
	}
	protocol, err := cluster.ParseProtocol(deref(o.Protocol))
	if err != nil {
		return bad("protocol", "%v", err)
	}
	port := cluster.PolicyPort{Protocol: protocol, Last: 65535}
	switch {
	case o.Port == nil && o.EndPort != nil:
		return bad("endPort", "needs a port")
	case o.Port == nil:
		return port, true
	case o.Port.Type == intstr.String:
		if o.EndPort != nil {
			return bad("endPort", "needs a port number, and %q is a name", o.Port.StrVal)
		}
		if wrong := validation.IsValidPortName(o.Port.StrVal); len(wrong) > 0 {
			return bad("port", "%q is not the name of a port: %s", o.Port.StrVal, wrong[0])
		}
		return cluster.PolicyPort{Protocol: protocol, Name: o.Port.StrVal}, true
	case o.Port.IntVal < 1 || o.Port.IntVal > 65535:
		return bad("port", "%d is not a port number (1 to 65535)", o.Port.IntVal)
	}
	last := o.Port.IntVal
	if o.EndPort != nil {
		last = *o.EndPort
	}
	if last < o.Port.IntVal || last > 65535 {
		return bad("endPort", "%d is not a port number from %d to 65535", last, o.Port.IntVal)
	}
	port.First, port.Last = uint16(o.Port.IntVal), uint16(last)
	return port, true
}
