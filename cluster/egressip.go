package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "hairpin/api/v1"
)

// LabelEgressAssignable on a Node, with any value, allows it to carry the addresses of EgressIPs
// that do not select nodes.
const LabelEgressAssignable = "k8s.ovn.org/egress-assignable"

// NodeEgress has the facts about a Node that matter only for carrying egress addresses.
type NodeEgress struct {
	Assignable bool              // label LabelEgressAssignable
	Ready      bool              // condition Ready is True, or kubelet shuts the node down
	Labels     map[string]string // EgressIPs, EgressServices and pools select nodes by them
	Leaving    bool              // cordoned, drained, shut down or deleted: addresses must move away first
}

// Namespace is one Kubernetes Namespace.
type Namespace struct {
	Name        string
	Labels      map[string]string
	ExtraRanges []netip.Prefix // of extra addresses that its Pods may have
}

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
	// Moving are addresses that move between two live nodes: both translate for a time. So does the
	// previous node of an address that moves to no node (To is empty). Only an agent sets it.
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

// Move is the move of an address from one node to another.
type Move struct {
	Address  netip.Addr
	From, To string
	// Early reports that pods are not routed to the new node yet, nor will be in a moment: its OVN
	// may not translate yet.
	Early bool
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

func namespaceOwner(name string) Owner { return Owner{Kind: "Namespace", Name: name} }
func egressIPOwner(name string) Owner  { return Owner{Kind: "EgressIP", Name: name} }

func parseNamespace(o *corev1.Namespace) (*Namespace, []Problem) {
	var problems Problems
	ranges := annotationList(&problems, namespaceOwner(o.Name), &o.ObjectMeta, AnnotationExtraRanges, netip.ParsePrefix)
	return &Namespace{Name: o.Name, Labels: maps.Clone(o.Labels), ExtraRanges: ranges}, problems.List()
}

// isAssignable reports whether a selector is the default of spec.egressNodeSelector.
func (s Selector) isAssignable() bool {
	return len(s.Requirements) == 1 && s.Requirements[0].Key == LabelEgressAssignable &&
		s.Requirements[0].Operator == metav1.LabelSelectorOpExists
}

type egressIPParser struct{ objectParser }

// parseEgressIP returns nil for an EgressIP without valid selectors or without a valid address.
func parseEgressIP(o *v1.EgressIP) (*EgressIP, []Problem) {
	p := egressIPParser{objectParser{owner: egressIPOwner(o.Name)}}
	e := &EgressIP{
		Owner: p.owner, UID: string(o.UID), Created: o.CreationTimestamp.Time, Generation: o.Generation,
		Releases: o.Spec.WhenUnreachable == v1.Release,
		Assigned: p.assigned(o.Status.Items), Conditions: o.DeepCopy().Status.Conditions,
	}
	p.addresses(e, "spec.egressIPs", o.Spec.EgressIPs)
	if named := len(e.Addresses); o.Spec.AddressPool != "" {
		p.addresses(e, "status.addresses", o.Status.Addresses)
		e.Allocated = e.Addresses[named:]
	}
	e.Excluded = p.ranges("spec.excludedCIDRs", o.Spec.ExcludedCIDRs)
	if len(o.Spec.DestinationCIDRs) > 0 {
		e.Destinations = append([]netip.Prefix{}, p.ranges("spec.destinationCIDRs", o.Spec.DestinationCIDRs)...)
	}
	usable := len(e.Addresses) > 0
	if len(o.Spec.EgressIPs) == 0 && o.Spec.AddressPool == "" {
		p.problem("spec.egressIPs", "has no address")
	}
	if o.Spec.NamespaceSelector == nil {
		p.problem("spec.namespaceSelector", "is missing; {} selects all namespaces")
		return nil, p.problems.List()
	}
	var nodes Selector
	valid := p.selectors(
		selectorField{"spec.namespaceSelector", o.Spec.NamespaceSelector, &e.Namespaces},
		selectorField{"spec.podSelector", &o.Spec.PodSelector, &e.Pods},
		selectorField{"spec.egressNodeSelector", o.Spec.EgressNodeSelector, &nodes})
	if !usable || !valid {
		return nil, p.problems.List()
	}
	if o.Spec.EgressNodeSelector != nil && !nodes.isAssignable() {
		e.Nodes = &nodes
	}
	return e, p.problems.List()
}

func (p *egressIPParser) addresses(e *EgressIP, list string, texts []string) {
	for i, text := range texts {
		field := fmt.Sprintf("%s[%d]", list, i)
		a, err := parseHostAddr(text)
		switch {
		case err != nil:
			p.problem(field, "%v", err)
		case slices.Contains(e.Addresses, a):
			p.problem(field, "%s is given twice", a)
		default:
			e.Addresses = append(e.Addresses, a)
		}
	}
}

// ranges parses destinations. An invalid one is none: the others count.
func (p *egressIPParser) ranges(field string, texts []string) (list []netip.Prefix) {
	for i, text := range texts {
		c, ok := parsePrefix(text)
		if !ok {
			p.problem(fmt.Sprintf("%s[%d]", field, i), "%q is not an address range", text)
			continue
		}
		list = append(list, c.Masked())
	}
	slices.SortFunc(list, ComparePrefixes)
	return widest(list)
}

// assigned reads the status. An item that cannot be read was not written by a controller, and is
// ignored.
func (p *egressIPParser) assigned(items []v1.EgressIPStatusItem) []Assignment {
	var list []Assignment
	for i, x := range items {
		a, err := parseHostAddr(x.EgressIP)
		if err != nil {
			p.problem(fmt.Sprintf("status.items[%d].egressIP", i), "%v", err)
		} else if x.Node != "" {
			list = append(list, Assignment{a, x.Node})
		}
	}
	slices.SortFunc(list, Assignment.Compare)
	return slices.CompactFunc(list, func(a, b Assignment) bool { return a.Address == b.Address })
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
