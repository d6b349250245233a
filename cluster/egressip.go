package cluster

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// EgressIP is one EgressIP: selected pods leave the cluster with one of its addresses.
type EgressIP struct {
	Owner      Owner
	UID        string
	Created    time.Time // the older of two that select the same pod has precedence
	Generation int64
	Addresses  []netip.Addr // as in the spec, without rejected ones, and then Allocated
	Allocated  []netip.Addr // of a LoadBalancerPool
	Namespaces Selector
	Pods       Selector // of these Namespaces
	// Nodes selects the nodes that may carry the addresses; nil: those with LabelEgressAssignable.
	Nodes *Selector
	// Destinations are those to which pods leave with the addresses; nil: all outside of the
	// cluster. To Excluded they leave with the node's address. Both are sorted, none within
	// another.
	Destinations, Excluded []netip.Prefix
	// Releases reports that an unreachable node loses an address also if no other node can have
	// one.
	Releases bool

	// Assigned is the status: which node has which address. Sorted, at most once per address.
	Assigned []Assignment
	// Previous are nodes that announced a load balancer address before, and may have open
	// connections to it, by the status of the pool. Sorted.
	Previous []Assignment
	// Moving are addresses that move between two live nodes: both translate for a time. So does the
	// previous node of an address that moves to no node (To is empty). A load balancer address
	// moves from every node that may have open connections to it. Only an agent sets it.
	Moving     []Move
	Conditions []metav1.Condition
	// Claimed are addresses at which an older Service is served.
	Claimed []Claim
	// Service is set if an EgressService requests it.
	Service *EgressService
	// Routed select the nodes that announce its addresses by BGP: there, an address need not be in
	// a network of a node.
	Routed []Selector
}

// Claim names the object that has an address.
type Claim struct {
	Address netip.Addr
	By      Owner
}

// Assignment is an egress address and the node that carries it.
type Assignment struct {
	Address netip.Addr
	Node    string
}

// ForwardTime is how long nodes that had a load balancer address forward packets of its open
// connections to each other.
const ForwardTime = 5 * time.Minute

// Move is the move of an address from one node to another.
type Move struct {
	Address  netip.Addr
	From, To string
	// Early reports that pods are not routed to the new node yet, nor will be in a moment: its OVN
	// may not translate yet. Of a load balancer address, it reports that the new node may not know
	// yet which nodes had the address, and would answer a packet of their connections with a reset.
	Early bool
	// Lost reports that From seems dead. Nothing of a load balancer address is forwarded to it.
	Lost bool
}

// Compare orders by address and node.
func (a Assignment) Compare(b Assignment) int {
	return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Node, b.Node))
}

// Older orders EgressIPs by precedence for pods and addresses: an EgressService's before an
// EgressIP, as in OVN-Kubernetes, then by age, then by name.
func (e *EgressIP) Older(f *EgressIP) int {
	rank := func(x *EgressIP) int {
		if x.Service != nil && !x.Service.Ended {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(rank(e), rank(f)), e.Created.Compare(f.Created), e.Owner.Compare(f.Owner))
}

// Serves reports whether a destination outside of the cluster is one to which pods leave with the
// addresses.
func (e *EgressIP) Serves(a netip.Addr) bool {
	has := func(p netip.Prefix) bool { return p.Contains(a) }
	return (e.Destinations == nil || slices.ContainsFunc(e.Destinations, has)) && !slices.ContainsFunc(e.Excluded, has)
}

// ServesFamily reports whether the EgressIP has destinations of a family.
func (e *EgressIP) ServesFamily(f Family) bool {
	return e.Destinations == nil || slices.ContainsFunc(e.Destinations,
		func(p netip.Prefix) bool { return FamilyOf(p.Addr()) == f })
}

// NodeOf returns the node that has an address of an EgressIP; empty if none has.
func (e *EgressIP) NodeOf(a netip.Addr) string {
	for _, x := range e.Assigned {
		if x.Address == a {
			return x.Node
		}
	}
	return ""
}

// CarriedBy reports whether a node must answer for an address: for a moving address, the new node.
func (e *EgressIP) CarriedBy(node string, a netip.Addr) bool {
	for _, m := range e.Moving {
		if m.Address == a {
			return m.To == node
		}
	}
	return e.NodeOf(a) == node
}
