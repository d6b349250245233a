package cluster

import (
	"net/netip"
)

// Limits of a ClusterNetworkPolicy (network-policy-api).
const (
	MaxPriority = 1000 // the last of its priorities; the first is 0
	MaxRules    = 25   // of a direction
)

// PolicyTier is the step of the evaluation to which a Policy belongs. A packet passes the tiers in
// the order of their values (network-policy-api, "Tiers").
type PolicyTier uint8

// The tiers.
const (
	TierAdmin         PolicyTier = iota + 1 // ClusterNetworkPolicy with tier Admin
	TierNetworkPolicy                       // NetworkPolicy
	TierBaseline                            // ClusterNetworkPolicy with tier Baseline
)

// PolicyAction is what a PolicyRule does with packets that it matches.
type PolicyAction uint8

// The actions.
const (
	Accept PolicyAction = iota // the only one of a NetworkPolicy
	Deny
	Pass // continue in the next tier
)

// Policy is one NetworkPolicy or one ClusterNetworkPolicy. It restricts packets from and to the
// pods that it selects.
type Policy struct {
	Owner    Owner // NetworkPolicy/NAMESPACE/NAME, or ClusterNetworkPolicy/NAME
	Tier     PolicyTier
	Priority int // of a ClusterNetworkPolicy, 0 to 1000, the lowest first
	Subject  PodSelector
	Ingress  PolicyDirection
	Egress   PolicyDirection
}

// PolicyDirection has the rules of a Policy for packets to its pods, or from them.
type PolicyDirection struct {
	// Isolates reports that packets which no rule of any NetworkPolicy accepts are dropped
	// (spec.policyTypes). A ClusterNetworkPolicy never isolates.
	Isolates bool
	Rules    []PolicyRule // in the order of the spec
}

// PolicyRule matches packets from or to any of its peers, on any of its ports.
type PolicyRule struct {
	Action PolicyAction
	// AllPeers reports that the rule has no list of peers, so it matches every address. A rule with
	// AllPeers has no Peers; one with neither matches nothing.
	AllPeers bool
	Peers    []PolicyPeer
	// AllPorts reports that the rule has no list of ports, so it matches every protocol, ICMP too.
	AllPorts bool
	Ports    []PolicyPort
}

// PolicyPeer is one item of a PolicyRule's list of peers: pods by labels, nodes by labels, or
// addresses.
type PolicyPeer struct {
	Pods *PodSelector // nil: Nodes or Blocks
	// Nodes selects nodes by their labels: the peers are their IPs. Only egress rules of a
	// ClusterNetworkPolicy have it.
	Nodes *Selector
	// Blocks are the addresses of an ipBlock without those of its exceptions, or of a list of
	// networks: sorted, and none within another.
	Blocks []netip.Prefix
}

// PodSelector selects pods by their namespaces and labels. It never selects pods of the host's
// network.
type PodSelector struct {
	Namespace  string   // the only namespace; empty: those that Namespaces selects
	Namespaces Selector // by their labels
	Pods       Selector
}

// Selects reports whether a pod with these labels, in this namespace, is selected.
func (s *PodSelector) Selects(namespace *Namespace, labels map[string]string) bool {
	return s.In(namespace) && s.Pods.Matches(labels)
}

// In reports whether pods of a namespace may be selected.
func (s *PodSelector) In(namespace *Namespace) bool {
	if s.Namespace != "" {
		return s.Namespace == namespace.Name
	}
	return s.Namespaces.Matches(namespace.Labels)
}

// PolicyPort is one item of a PolicyRule's list of ports. It is compared with the destination port
// after DNAT of a Service: that of the pod.
type PolicyPort struct {
	Protocol Protocol
	Name     string // of a container port, resolved for each pod; empty: First and Last
	// First and Last are the range of port numbers. 0 and 65535: all ports of the protocol.
	First, Last uint16
}
