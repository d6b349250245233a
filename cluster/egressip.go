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
	// Nodes selects the nodes that may have the addresses; nil: those with LabelEgressAssignable.
	Nodes *Selector
	// Destinations are those to which pods leave with the addresses; nil: all outside of the
	// cluster. To Excluded they leave with the node's address. Both lists are sorted, and no prefix
	// is within another of the same list.
	Destinations, Excluded []netip.Prefix
	// Releases reports that an unreachable node loses its address even if no other node can have
	// one. Otherwise it keeps the address until another node can.
	Releases bool

	// Assigned is the status: which node has which address. Sorted, at most once per address.
	Assigned []Assignment
	// Previous are nodes that announced a load balancer address before and may have open
	// connections to it, according to the status of the pool. Sorted.
	Previous []Assignment
	// Moving are addresses that move between two live nodes: both do SNAT for a time. If an address
	// moves to no node (To is empty), its previous node still does SNAT. A load balancer address
	// has one Move for each node that may have open connections to it. Only an agent sets Moving.
	Moving     []Move
	Conditions []metav1.Condition
	// Claimed are those of Addresses that an older Service has: it is served there, and no pods
	// leave with them.
	Claimed []Claim
	// Service is set if this EgressIP was made from an EgressService, or for a load balancer
	// address.
	Service *EgressService
	// Routed select the nodes that announce the addresses by BGP. On these, an address need not be
	// in a network of the node.
	Routed []Selector
}

// Claim is an address of an EgressIP that an older Service has.
type Claim struct {
	Address netip.Addr
	By      Owner // the Service
}

// Assignment is an egress address and the node that has it.
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
	// Early reports that the new node is not ready. Its OVN may not do SNAT yet: until it does, and
	// shortly after, pods are not routed to the node. For a load balancer address, the new node may
	// not know yet which nodes had the address. It would answer packets of connections to these
	// nodes with a TCP reset.
	Early bool
	// Lost reports that From seems dead. Packets to a load balancer address are not forwarded to
	// it.
	Lost bool
}

// Compare orders assignments by address and node.
func (a Assignment) Compare(b Assignment) int {
	return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Node, b.Node))
}

// ComparePrecedence orders EgressIPs by precedence for pods and addresses: an EgressService's
// before an EgressIP, as in OVN-Kubernetes, then by age, then by name.
func (e *EgressIP) ComparePrecedence(f *EgressIP) int {
	rank := func(x *EgressIP) int {
		if x.Service != nil && !x.Service.Ended {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(rank(e), rank(f)), e.Created.Compare(f.Created), e.Owner.Compare(f.Owner))
}

// Serves reports whether pods leave with the addresses when they send to a, an address outside of
// the cluster.
func (e *EgressIP) Serves(a netip.Addr) bool {
	has := func(p netip.Prefix) bool { return p.Contains(a) }
	return (e.Destinations == nil || slices.ContainsFunc(e.Destinations, has)) && !slices.ContainsFunc(e.Excluded, has)
}

// ServesFamily reports whether pods leave with the addresses to any destination of a family.
func (e *EgressIP) ServesFamily(f Family) bool {
	return e.Destinations == nil || slices.ContainsFunc(e.Destinations,
		func(p netip.Prefix) bool { return FamilyOf(p.Addr()) == f })
}

// NodeOf returns the node that has an address of the EgressIP; empty if none has.
func (e *EgressIP) NodeOf(a netip.Addr) string {
	for _, x := range e.Assigned {
		if x.Address == a {
			return x.Node
		}
	}
	return ""
}

// CarriedBy reports whether a node must answer ARP requests and neighbor solicitations for an
// address: the node that has it, or the new node of an address that moves.
func (e *EgressIP) CarriedBy(node string, a netip.Addr) bool {
	for _, m := range e.Moving {
		if m.Address == a {
			return m.To == node
		}
	}
	return e.NodeOf(a) == node
}
